package image

import (
	"fmt"
	"slices"
	"strings"
)

// Infrastructure describes the stemcells of one IaaS: names that CPIs and the Director know, and the format of the
// image.
type Infrastructure struct {
	Name string
	// Hypervisor is the hypervisor in cloud_properties. NameHypervisor is the one in names, if it differs.
	Hypervisor, NameHypervisor string
	DiskFormat                 string
	Formats                    []string // value of stemcell_formats
	// Cloud has additional lines of cloud_properties.
	Cloud []string
	// Member is the name of the disk in the image's tarball.
	Member string
	// convert has the arguments of qemu-img to convert the raw disk. If it is empty, the disk stays raw.
	convert []string
	// Container means that the image is a root file system.
	Container bool
	// bzip2 means that the image is the compressed disk.
	bzip2 bool
	ovf   bool
	// sizeUnit is the unit in bytes to which the size of the raw disk is rounded up; 0 means no rounding.
	sizeUnit int64
}

const (
	sda1 = "root_device_name: /dev/sda1"
	auto = "auto_disk_config: true"
)

// Infrastructures lists the IaaS for which stemcells can be built.
var Infrastructures = []Infrastructure{
	{Name: "openstack", Hypervisor: "kvm", DiskFormat: "qcow2", Formats: []string{"openstack-qcow2", "openstack-raw"}, Cloud: []string{auto}, Member: "root.img",
		convert: []string{"-O", "qcow2", "-c", "-o", "compat=0.10"}},
	{Name: "qemu", Hypervisor: "kvm", DiskFormat: "raw", Formats: []string{"qemu-raw", "openstack-raw"}, Cloud: []string{auto}, Member: "root.img"},
	{Name: "aws", Hypervisor: "xen", NameHypervisor: "xen-hvm", DiskFormat: "raw", Formats: []string{"aws-raw"}, Cloud: []string{sda1, "boot_mode: uefi-preferred"}, Member: "root.img"},
	{Name: "google", Hypervisor: "kvm", DiskFormat: "rawdisk", Formats: []string{"google-rawdisk"}, Cloud: []string{sda1}, Member: "disk.raw", sizeUnit: 1 << 30},
	{Name: "azure", Hypervisor: "hyperv", DiskFormat: "vhd", Formats: []string{"azure-vhd"}, Cloud: []string{sda1}, Member: "root.vhd",
		convert: []string{"-O", "vpc", "-o", "subformat=fixed,force_size=on"}},
	{Name: "vsphere", Hypervisor: "esxi", DiskFormat: "ovf", Formats: []string{"vsphere-ova", "vsphere-ovf"}, Cloud: []string{sda1}, Member: "image-disk1.vmdk",
		convert: []string{"-O", "vmdk", "-o", "subformat=streamOptimized"}, ovf: true},
	{Name: "warden", Hypervisor: "boshlite", DiskFormat: "files", Formats: []string{"warden-tar"}, Cloud: []string{sda1}, Container: true},
	{Name: "alicloud", Hypervisor: "kvm", DiskFormat: "raw", Formats: []string{"alicloud-raw"}, Cloud: []string{"root_device_name: /dev/vda1"}, Member: "root.img"},
	{Name: "cloudstack", Hypervisor: "xen", DiskFormat: "vhdx", Formats: []string{"cloudstack-vhdx"}, Cloud: []string{auto}, Member: "root.vhd",
		convert: []string{"-O", "vpc", "-o", "subformat=dynamic"}, bzip2: true},
}

// sameAs maps IaaS to others whose stemcells their CPIs use.
var sameAs = map[string]string{"docker": "warden", "virtualbox": "vsphere", "vcloud": "vsphere"}

// FindInfrastructure returns the infrastructure with a name.
func FindInfrastructure(name string) (Infrastructure, error) {
	if other, found := sameAs[name]; found {
		name = other
	}
	i := slices.IndexFunc(Infrastructures, func(i Infrastructure) bool { return i.Name == name })
	if i < 0 {
		return Infrastructure{}, fmt.Errorf("unknown stemcell infrastructure %q; want one of %s", name,
			strings.Join(InfrastructureNames(), ", "))
	}
	return Infrastructures[i], nil
}

// InfrastructureNames lists the names that FindInfrastructure knows.
func InfrastructureNames() []string {
	var names []string
	for _, i := range Infrastructures {
		names = append(names, i.Name)
	}
	for name := range sameAs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// slug returns the part of names with IaaS, hypervisor and operating system.
func (i Infrastructure) slug() string {
	hypervisor := i.Hypervisor
	if i.NameHypervisor != "" {
		hypervisor = i.NameHypervisor
	}
	return i.Name + "-" + hypervisor + "-" + operatingSystem + "-cambium"
}
