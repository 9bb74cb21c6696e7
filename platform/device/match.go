package device

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

// matcher looks for a disk in a snapshot. It returns the matching nodes, and a description of the search for error
// messages.
type matcher func(snapshot) (found []node, evidence string)

// serialLength is the maximum length of a virtio disk's serial number in bytes.
const serialLength = 20

// byID matches the links that udev creates for a disk's serial number, and the serial number itself, of which a virtio
// disk may have only the beginning.
func byID(cid string, pattern *regexp.Regexp, replacement string) matcher {
	var glob string
	switch {
	case pattern != nil:
		glob = pattern.ReplaceAllString(cid, replacement)
	case len(cid) >= serialLength:
		glob = "*" + cid // a shorter one could match the end of any serial number
	}
	short := cid[:min(len(cid), serialLength)]
	return func(s snapshot) (found []node, _ string) {
		for _, link := range linksIn(s, idLinks) {
			if ok, err := path.Match(glob, path.Base(link)); err == nil && ok {
				found = append(found, s.Nodes[link])
			}
		}
		var seen []string
		for _, d := range s.Disks {
			if d.Serial == "" {
				continue
			}
			seen = append(seen, d.Name+"("+d.Serial+")")
			if strings.HasPrefix(d.Name, "vd") && (d.Serial == short || d.Serial == cid) && d.Number != 0 {
				found = append(found, node{Target: d.Path, Number: d.Number, Block: true, Settled: true})
			}
		}
		evidence := fmt.Sprintf("looked for serial %s among %s", short, listing(seen))
		if glob != "" {
			evidence = fmt.Sprintf("looked for /dev/disk/by-id/%s and serial %s among %s", glob, short, listing(seen))
		}
		return found, evidence
	}
}

// mapped translates /dev/sdX to the names that drivers of hypervisors use for that disk.
func mapped(p string) (matcher, []string) {
	candidates := []string{p}
	if letter, ok := strings.CutPrefix(p, "/dev/sd"); ok {
		candidates = []string{"/dev/xvd" + letter, "/dev/vd" + letter, "/dev/sd" + letter}
	}
	return func(s snapshot) ([]node, string) {
		for _, c := range candidates {
			if n, ok := s.Nodes[c]; ok && n.Block {
				return []node{n}, "found " + c
			}
		}
		return nil, strings.Join(candidates, ", ") + ": none of them exists"
	}, candidates
}

// identity matches a path as it is. With bind-mounted disks it may be a directory.
func identity(p string) matcher {
	return func(s snapshot) ([]node, string) {
		if n, ok := s.Nodes[p]; ok {
			return []node{n}, "found " + p
		}
		return nil, p + " does not exist"
	}
}

// scsiID matches links that end with a disk's UUID, without dashes.
func scsiID(id string) matcher {
	glob := "*" + strings.ReplaceAll(id, "-", "")
	return func(s snapshot) (found []node, _ string) {
		links := linksIn(s, idLinks)
		for _, link := range links {
			if ok, err := path.Match(glob, path.Base(link)); err == nil && ok {
				found = append(found, s.Nodes[link])
			}
		}
		return withoutHeld(s, found), fmt.Sprintf("looked for /dev/disk/by-id/%s among %d links", glob, len(links))
	}
}

// scsiVolume matches a target number, with LUN 0, on the controller of the first disk. If two controllers have that
// target, the result is ambiguous.
func scsiVolume(volume string) matcher {
	return func(s snapshot) (found []node, _ string) {
		var hosts, seen []string
		for _, d := range s.Disks {
			if d.SCSI == "" {
				continue
			}
			seen = append(seen, d.Name+"("+d.SCSI+")")
			host, rest, _ := strings.Cut(d.SCSI, ":")
			if rest == "0:0:0" && strings.HasPrefix(d.Name, "sd") {
				hosts = append(hosts, host)
			}
		}
		for _, d := range s.Disks {
			host, rest, _ := strings.Cut(d.SCSI, ":")
			if rest != "0:"+volume+":0" || d.Number == 0 {
				continue
			}
			for _, h := range hosts {
				if h == host {
					found = append(found, node{Target: d.Path, Number: d.Number, Block: true})
				}
			}
		}
		evidence := fmt.Sprintf("looked for SCSI target %s on hosts %s among %s", volume, listing(hosts), listing(seen))
		return found, evidence
	}
}

// scsiLUN matches a LUN on the Hyper-V controller in the hint.
func scsiLUN(lun, hostDevice string) matcher {
	return func(s snapshot) (found []node, _ string) {
		var controllers, seen []string
		for dir, id := range s.VMBus {
			if strings.EqualFold(id, hostDevice) {
				controllers = append(controllers, dir)
			}
		}
		for _, d := range s.Disks {
			if d.SCSI == "" {
				continue
			}
			seen = append(seen, d.Name+"("+d.SCSI+")")
			if !strings.HasSuffix(d.SCSI, ":"+lun) || d.Number == 0 {
				continue
			}
			for _, c := range controllers {
				if strings.HasPrefix(d.Dir, c+"/") {
					found = append(found, node{Target: d.Path, Number: d.Number, Block: true})
				}
			}
		}
		sort.Strings(controllers)
		return found, fmt.Sprintf("looked for LUN %s of vmbus device %s (%s) among %s", lun, hostDevice,
			listing(controllers), listing(seen))
	}
}

// lunLink matches the link that a udev rule created for the LUN.
func lunLink(dir, lun string) matcher {
	link := filepath.Join(dir, lun)
	return func(s snapshot) ([]node, string) {
		if n, ok := s.Nodes[link]; ok && n.Block {
			return []node{n}, "found " + link
		}
		return nil, link + " does not exist"
	}
}

func linksIn(s snapshot, dir string) (links []string) {
	for p, n := range s.Nodes {
		if path.Dir(p) == dir && n.Block {
			links = append(links, p)
		}
	}
	sort.Strings(links)
	return links
}

// withoutHeld removes a disk if a device built on it matches, too: the paths of a multipath volume are not separate
// volumes.
func withoutHeld(s snapshot, found []node) (kept []node) {
	names := map[string]bool{}
	for _, n := range found {
		for _, d := range s.Disks {
			if d.Number == n.Number {
				names[d.Name] = true
			}
		}
	}
next:
	for _, n := range found {
		for _, d := range s.Disks {
			if d.Number != n.Number {
				continue
			}
			for _, h := range d.Holders {
				if names[h] {
					continue next
				}
			}
		}
		kept = append(kept, n)
	}
	return kept
}

func listing(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(items, ", ")
}
