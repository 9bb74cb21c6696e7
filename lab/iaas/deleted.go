package iaas

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cambium/internal/atomicfile"
	"cambium/lab/machine"
)

// DeletedVM records the last verdict of a deleted VM.
type DeletedVM struct {
	Common
	AgentID string    `json:"agent_id"`
	Deleted time.Time `json:"deleted"`
	Verdict string    `json:"verdict"` // the last one of its agent; "" if there was none
}

// maxDeleted bounds the number of deleted VMs that are remembered.
const maxDeleted = 100

// deletedSuffix is the suffix of the file with the deleted VMs. It is beside the directory of an IaaS, and is kept when
// that is removed.
const deletedSuffix = "-deleted.json"

// Deleted returns the deleted VMs of an IaaS, the latest last.
func Deleted(dir, name string) ([]DeletedVM, error) {
	return readDeleted(Directory(dir, name) + deletedSuffix)
}

// WithDeleted returns the names of the IaaS below dir that have deleted VMs.
func WithDeleted(dir string) (names []string, err error) {
	paths, err := filepath.Glob(Directory(dir, "*") + deletedSuffix)
	for _, path := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(path), filepath.Base(Directory("", ""))+deletedSuffix))
	}
	return names, err
}

func readDeleted(path string) ([]DeletedVM, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var all []DeletedVM
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("deleted VMs: %s: %w; remove the file", path, err)
	}
	return all, nil
}

// keepDeleted records a VM that is about to be deleted, with its last verdict.
func (i *IaaS) keepDeleted(vm VM) error {
	verdict, err := machine.LastVerdict(i.store.path(vm.CID, machineDir))
	if err != nil {
		return err
	}
	defer i.locks.lock(deletedSuffix)()
	all, err := readDeleted(i.store.dir + deletedSuffix)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(d DeletedVM) bool { return d.CID == vm.CID.String() }) // an attempt that failed
	all = append(all, DeletedVM{vm.common(), vm.AgentID.String(), time.Now(), verdict})
	data, err := json.MarshalIndent(all[max(0, len(all)-maxDeleted):], "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(i.store.dir+deletedSuffix, append(data, '\n'), 0o600)
}

// LastVerdict returns the last verdict of a deleted VM, or "".
func (i *IaaS) LastVerdict(cid CID) string {
	all, err := readDeleted(i.store.dir + deletedSuffix)
	if err != nil {
		i.log.WithError(err).Warn("cannot read the deleted VMs")
	}
	for _, d := range all {
		if d.CID == cid.String() {
			return d.Verdict
		}
	}
	return ""
}
