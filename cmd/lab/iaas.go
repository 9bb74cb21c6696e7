//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"cambium/lab/cpi"
	"cambium/lab/iaas"
	"cambium/lab/iaas/fabric"
	"cambium/lab/release"
)

// iaasFlag adds the flag for the IaaS of the CPI.
func (c *call) iaasFlag(name *string) {
	c.flags.StringVar(name, "iaas", iaas.DefaultName, "the `name` of the CPI's IaaS, if there are several")
}

// enter runs a command in the network of the CPI's IaaS.
func enter(ctx context.Context, c *call) error {
	name := ""
	c.iaasFlag(&name)
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if len(c.extra) == 0 {
		return usagef("missing command after --")
	}
	if err := iaas.ValidName(name); err != nil {
		return usageError{err}
	}
	namespace, release, err := cpi.NewClient(c.dir, name).Enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + namespace, "--"}, c.extra...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.stdout, c.stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// holdIaaS runs the process that holds the CPI's IaaS.
func holdIaaS(ctx context.Context, c *call) error {
	if err := c.parse(2, 2); err != nil {
		return err
	}
	if status := cpi.HoldMain(ctx, c.args[0], c.args[1]); status != 0 {
		return exitStatus(status)
	}
	return nil
}

// cpiRelease packs the CPI's release and the demo's release.
func cpiRelease(_ context.Context, c *call) error {
	program, output := "", ""
	c.flags.StringVar(&program, "program", "", "the CPI's `binary` (default the one beside lab)")
	c.flags.StringVar(&output, "output", ".", "the `directory` to write to")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if program == "" {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		program = filepath.Join(filepath.Dir(own), "cpi")
	}
	number := releaseVersion(version)
	files := map[string]string{"cpi": filepath.Join(output, "cambium-cpi.tgz"), "web": filepath.Join(output, "web.tgz")}
	if err := cpi.WriteRelease(files["cpi"], program, number); err != nil {
		return err
	}
	if err := release.WebSource(number).Write(files["web"]); err != nil {
		return err
	}
	return c.result(files, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s\n%s\n", files["cpi"], files["web"]) })
}

// agentRelease packs the release in a directory that scripts/agent-release has prepared.
func agentRelease(_ context.Context, c *call) error {
	output, number := "", ""
	c.flags.StringVar(&output, "output", "cambium-agent.tgz", "the `file` to write")
	c.flags.StringVar(&number, "version", releaseVersion(version), "the release's `version`")
	if err := c.parse(1, 1); err != nil {
		return err
	}
	s, err := release.ReadSource(c.args[0], number)
	if err != nil {
		return err
	}
	if err := s.Write(output); err != nil {
		return err
	}
	return c.result(map[string]string{"release": output, "version": number},
		func(w io.Writer) { _, _ = fmt.Fprintln(w, output) })
}

// releaseVersion converts the program's version to that of a release.
func releaseVersion(version string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '.'
		case r == '[' || r == ']':
			return -1
		}
		return r
	}, version), ".")
}

// iaasListing describes one IaaS in the output of `ls`.
type iaasListing struct {
	iaas.Listing
	Held bool `json:"held"`
}

// listIaaS returns the IaaSes below the lab's directory.
func listIaaS(ctx context.Context, dir string) ([]iaasListing, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.iaas"))
	if err != nil {
		return nil, err
	}
	sort.Strings(paths)
	all := []iaasListing{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".iaas")
		l, held, err := cpi.Client{Dir: dir, Name: name}.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("IaaS %s: %w", name, err)
		}
		l.Name = name
		all = append(all, iaasListing{l, held})
	}
	return all, nil
}

func writeIaaS(w io.Writer, l iaasListing) {
	if !l.Held {
		_, _ = fmt.Fprintf(w, "IaaS %s of the CPI, not held by a process; the next CPI call, or lab enter, starts its VMs\n",
			l.Name)
		return
	}
	_, _ = fmt.Fprintf(w, "IaaS %s of the CPI, network namespace %s\n", l.Name, l.Namespace)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, s := range l.Stemcells {
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", s.CID, owner(s.Common))
	}
	for _, vm := range l.VMs {
		running := "off"
		if vm.Running {
			running = "up"
		}
		_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", vm.CID, running, vm.Engine, strings.Join(vm.IPs, " "),
			owner(vm.Common))
	}
	for _, d := range l.Disks {
		where := "detached"
		if d.VM != "" {
			where = "on " + d.VM
		}
		_, _ = fmt.Fprintf(table, "  %s\t%d MiB\t%s\t\t%s\n", d.CID, d.Size, where, owner(d.Common))
	}
	for _, s := range l.Snapshots {
		_, _ = fmt.Fprintf(table, "  %s\t%d MiB\tof %s\t\t%s\n", s.CID, s.Size, s.Disk, owner(s.Common))
	}
	for _, n := range l.Networks {
		_, _ = fmt.Fprintf(table, "  %s\t%s\tgateway %s\t\t%s\n", n.CID, n.Range, n.Gateway, owner(n.Common))
	}
	_ = table.Flush()
}

// listDeleted shows the VMs that the CPI has deleted, the latest first.
func listDeleted(c *call) error {
	names, err := iaas.WithDeleted(c.dir)
	if err != nil {
		return err
	}
	type deletedVM struct {
		IaaS string `json:"iaas"`
		iaas.DeletedVM
	}
	all := []deletedVM{}
	for _, name := range names {
		vms, err := iaas.Deleted(c.dir, name)
		if err != nil {
			return err
		}
		for _, vm := range vms {
			all = append(all, deletedVM{name, vm})
		}
	}
	slices.SortStableFunc(all, func(a, b deletedVM) int { return b.Deleted.Compare(a.Deleted) })
	return c.result(map[string]any{"deleted": all}, func(w io.Writer) {
		for _, vm := range all {
			_, _ = fmt.Fprintf(w, "%s\n", strings.TrimSpace(fmt.Sprintf("%s  deleted %s  agent %s  %s", vm.CID,
				vm.Deleted.Local().Format(time.DateTime), vm.AgentID, owner(vm.Common))))
			_, _ = fmt.Fprintf(w, "  %s\n", cmp.Or(vm.Verdict, "no verdict"))
		}
		if len(all) == 0 {
			_, _ = fmt.Fprintln(w, "no VM was deleted")
		}
	})
}

// owner describes the owner of an object as far as it is known.
func owner(c iaas.Common) string {
	text := ""
	for _, key := range []string{"deployment", "name"} {
		if value := c.Metadata[key]; value != "" {
			text += value + " "
		}
	}
	if c.Director != "" {
		text += "director " + c.Director
	}
	return strings.TrimSpace(text)
}

// hostRoute adds or removes a link from this host to the VMs.
func hostRoute(ctx context.Context, c *call) error {
	name, outside := "", false
	c.iaasFlag(&name)
	c.flags.BoolVar(&outside, "outside", false, "also let the VMs reach what this host reaches, under its address")
	if err := c.parse(1, 1); err != nil {
		return err
	}
	access := fabric.NoAccess
	switch {
	case c.args[0] == "on" && outside:
		access = fabric.ToOutside
	case c.args[0] == "on":
		access = fabric.HostOnly
	case c.args[0] != "off" || outside:
		return usagef("want on, on --outside or off")
	}
	if err := iaas.ValidName(name); err != nil {
		return usageError{err}
	}
	if err := iaas.RequestHostAccess(c.dir, name, access); err != nil {
		return err
	}
	if err := (cpi.Client{Dir: c.dir, Name: name}).ConnectHost(ctx); err != nil {
		return err
	}
	return c.result(map[string]string{"host_route": c.args[0]}, func(io.Writer) {})
}

// cpiTLS prints the certificates for a CPI that runs inside a VM.
func cpiTLS(ctx context.Context, c *call) error {
	name, containers := "", false
	c.iaasFlag(&name)
	c.flags.BoolVar(&containers, "containers", false, "let it create containers, which do not confine root")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if err := iaas.ValidName(name); err != nil {
		return usageError{err}
	}
	id, err := cpi.EnsureIdentity(c.dir, name, containers)
	if err != nil {
		return err
	}
	if err := (cpi.Client{Dir: c.dir, Name: name}).ListenTLS(ctx); err != nil {
		return err
	}
	c.json = true // it is for a file
	return c.result(id, nil)
}

// cpiClean lists the objects of the CPI, or removes those that are named.
func cpiClean(ctx context.Context, c *call) error {
	name, director := "", ""
	disks, stemcells := false, false
	c.iaasFlag(&name)
	c.flags.StringVar(&director, "director", "", "remove VMs and networks of the Director or state file `uuid`")
	c.flags.BoolVar(&stemcells, "stemcells", false, "with --director remove stemcells, too: a state file may name them")
	c.flags.BoolVar(&disks, "disks", false, "remove persistent disks and snapshots, too: their data is lost")
	if err := c.parse(0, -1); err != nil {
		return err
	}
	client := cpi.NewClient(c.dir, name)
	if !client.Exists() {
		return fmt.Errorf("there is no IaaS %s in %s", name, c.dir)
	}
	_, release, err := client.Enter(ctx) // starts a holder if there is none
	if err != nil {
		return err
	}
	defer release()
	l, _, err := client.List(ctx)
	if err != nil {
		return err
	}
	if len(c.args) == 0 && director == "" {
		return c.result(l, func(w io.Writer) { writeIaaS(w, iaasListing{l, true}) })
	}
	chosen, err := choose(l, c.args, director, disks, stemcells)
	if err != nil {
		return err
	}
	removed := []string{}
	for _, o := range chosen {
		argument, err := json.Marshal(o.cid)
		if err != nil {
			return err
		}
		reply := client.Do(ctx, cpi.Envelope{Request: cpi.Request{Method: o.method, Arguments: []json.RawMessage{argument},
			APIVersion: cpi.Version}})
		if reply.Error != nil {
			return fmt.Errorf("%s %s: %s", o.method, o.cid, reply.Error.Message)
		}
		removed = append(removed, o.cid)
	}
	return c.result(map[string][]string{"removed": removed}, func(w io.Writer) {
		for _, cid := range removed {
			_, _ = fmt.Fprintf(w, "removed %s\n", cid)
		}
	})
}

// removal is an object and the method that removes it.
type removal struct{ method, cid string }

// choose returns the selected objects in the order in which they can be removed. It fails if a disk or snapshot is
// named and disks is false. The stemcells of a Director are included only if stemcells is set, because create-env
// assumes that the stemcell in its state file is still uploaded.
func choose(l iaas.Listing, cids []string, director string, disks, stemcells bool) ([]removal, error) {
	wanted := map[string]bool{}
	for _, cid := range cids {
		wanted[cid] = true
	}
	var chosen []removal
	add := func(method string, c iaas.Common, data bool) error {
		named := wanted[c.CID]
		delete(wanted, c.CID)
		if !named && (director == "" || c.Director != director || method == "delete_stemcell" && !stemcells) {
			return nil
		}
		if data && !disks {
			if named {
				return fmt.Errorf("%s holds data; add --disks to remove it", c.CID)
			}
			return nil
		}
		chosen = append(chosen, removal{method, c.CID})
		return nil
	}
	var failed error
	for _, vm := range l.VMs {
		failed = errors.Join(failed, add("delete_vm", vm.Common, false))
	}
	for _, s := range l.Snapshots {
		failed = errors.Join(failed, add("delete_snapshot", s.Common, true))
	}
	for _, d := range l.Disks {
		failed = errors.Join(failed, add("delete_disk", d.Common, true))
	}
	for _, s := range l.Stemcells {
		failed = errors.Join(failed, add("delete_stemcell", s.Common, false))
	}
	for _, n := range l.Networks {
		failed = errors.Join(failed, add("delete_network", n.Common, false))
	}
	for cid := range wanted {
		failed = errors.Join(failed, fmt.Errorf("there is no %s", cid))
	}
	return chosen, failed
}
