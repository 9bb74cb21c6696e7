package layout

import "testing"

func TestPartitionNames(t *testing.T) {
	for _, c := range []struct{ disk, part string }{
		{"/dev/sda", "/dev/sda1"}, {"/dev/sdaa", "/dev/sdaa1"}, {"/dev/vdb", "/dev/vdb1"}, {"/dev/xvdc", "/dev/xvdc1"},
		{"/dev/nvme0n1", "/dev/nvme0n1p1"}, {"/dev/loop7", "/dev/loop7p1"}, {"/dev/mmcblk0", "/dev/mmcblk0p1"},
		{"/dev/md0", "/dev/md0p1"}, {"/dev/nbd3", "/dev/nbd3p1"},
		{"/dev/mapper/mpatha", "/dev/mapper/mpatha-part1"}, {"/dev/mapper/3600a09", "/dev/mapper/3600a09-part1"},
		{"/dev/disk/by-id/virtio-abc", "/dev/disk/by-id/virtio-abc-part1"}, {"/dev/disk/by-id/nvme-x_1",
			"/dev/disk/by-id/nvme-x_1-part1"},
	} {
		if got := PartitionPath(c.disk, 1); got != c.part {
			t.Errorf("PartitionPath(%s, 1) = %s, want %s", c.disk, got, c.part)
		}
		if disk, n, ok := SplitPath(c.part); disk != c.disk || n != 1 || !ok {
			t.Errorf("SplitPath(%s) = %s, %d, %v; want %s, 1", c.part, disk, n, ok, c.disk)
		}
	}
	for path, want := range map[string]string{"/dev/sda10": "/dev/sda", "/dev/nvme1n2p15": "/dev/nvme1n2"} {
		if disk, n, ok := SplitPath(path); disk != want || n < 10 || !ok {
			t.Errorf("SplitPath(%s) = %s, %d, %v", path, disk, n, ok)
		}
	}
	for _, path := range []string{"/dev/sda", "/dev/loop7", "/dev/nvme0n1", "/dev/mmcblk0", "/dev/md0", "/dev/dm-3",
		"/dev/mapper/mpath1", "/dev/disk/by-id/x1", "", "/dev/sr0"} {
		if disk, n, ok := SplitPath(path); ok {
			t.Errorf("SplitPath(%s) = %s, %d; want none", path, disk, n)
		}
	}
}
