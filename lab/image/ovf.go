package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
)

// descriptor describes a virtual machine for vSphere: one processor, 512 MB, a paravirtual SCSI controller with the
// disk at 0:0, and a CD-ROM drive that the CPI connects. Debian's cloud kernel has no driver for the LSI controller.
const descriptor = `<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1" xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData" xmlns:vmw="http://www.vmware.com/schema/ovf" xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData">
  <References><File ovf:href="image-disk1.vmdk" ovf:id="file1" ovf:size="%[2]d"/></References>
  <DiskSection><Info>Virtual disks</Info>
    <Disk ovf:capacity="%[3]d" ovf:capacityAllocationUnits="byte" ovf:diskId="vmdisk1" ovf:fileRef="file1" ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
  </DiskSection>
  <NetworkSection><Info>Networks</Info><Network ovf:name="VM Network"><Description>The network of the VM</Description></Network></NetworkSection>
  <VirtualSystem ovf:id="%[1]s"><Info>A virtual machine</Info><Name>%[1]s</Name>
    <OperatingSystemSection ovf:id="96" vmw:osType="debian11_64Guest"><Info>The guest operating system</Info></OperatingSystemSection>
    <VirtualHardwareSection><Info>Virtual hardware</Info>
      <System><vssd:ElementName>Virtual Hardware Family</vssd:ElementName><vssd:InstanceID>0</vssd:InstanceID><vssd:VirtualSystemIdentifier>%[1]s</vssd:VirtualSystemIdentifier><vssd:VirtualSystemType>vmx-13</vssd:VirtualSystemType></System>
      <Item><rasd:AllocationUnits>hertz * 10^6</rasd:AllocationUnits><rasd:ElementName>1 CPU</rasd:ElementName><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
      <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:ElementName>512 MB</rasd:ElementName><rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>512</rasd:VirtualQuantity></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:ElementName>SCSI Controller 0</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard Disk 1</rasd:ElementName><rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID><rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:ElementName>SATA Controller 0</rasd:ElementName><rasd:InstanceID>5</rasd:InstanceID><rasd:ResourceSubType>vmware.sata.ahci</rasd:ResourceSubType><rasd:ResourceType>20</rasd:ResourceType></Item>
      <Item ovf:required="false"><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:AutomaticAllocation>false</rasd:AutomaticAllocation><rasd:ElementName>CD/DVD Drive 1</rasd:ElementName><rasd:InstanceID>6</rasd:InstanceID><rasd:Parent>5</rasd:Parent><rasd:ResourceSubType>vmware.cdrom.remotepassthrough</rasd:ResourceSubType><rasd:ResourceType>15</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>7</rasd:AddressOnParent><rasd:AutomaticAllocation>true</rasd:AutomaticAllocation><rasd:Connection>VM Network</rasd:Connection><rasd:ElementName>Network Adapter 1</rasd:ElementName><rasd:InstanceID>7</rasd:InstanceID><rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType><rasd:ResourceType>10</rasd:ResourceType></Item>
      <vmw:Config ovf:required="false" vmw:key="firmware" vmw:value="efi"/>
      <vmw:Config ovf:required="false" vmw:key="tools.syncTimeWithHost" vmw:value="false"/>
      <vmw:Config ovf:required="false" vmw:key="tools.toolsUpgradePolicy" vmw:value="manual"/>
    </VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
`

// addOVF adds the description, and the digests of description and disk, which vSphere checks.
func addOVF(w *tar.Writer, name, raw, vmdk string) error {
	capacity, err1 := os.Stat(raw)
	size, err2 := os.Stat(vmdk)
	digest, err3 := sha1File(vmdk)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	ovf := fmt.Sprintf(descriptor, name, size.Size(), capacity.Size())
	digests := fmt.Sprintf("SHA1(image.ovf)= %x\nSHA1(image-disk1.vmdk)= %s\n", sha1Sum(ovf), digest)
	return errors.Join(addBytes(w, "image.ovf", []byte(ovf)), addBytes(w, "image.mf", []byte(digests)))
}
