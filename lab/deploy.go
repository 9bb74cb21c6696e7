package lab

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"cambium/internal/testca"
	"cambium/lab/blobstore"
	"cambium/lab/director"
	"cambium/lab/release"

	"github.com/google/uuid"
)

// deployed is the Director's record of an instance.
type deployed struct {
	id   string // id of the instance, which updates do not change
	disk string // CID of the mounted persistent disk
	size int64
}

// Deploy creates or updates the machines of the manifest, one after the other. It does not touch machines that belong
// to no instance group.
func (l *Lab) Deploy(ctx context.Context, m release.Manifest,
	report func(instance, step string, took time.Duration, err error)) error {
	if l.o.Bare {
		return errBare
	}
	if report == nil {
		report = func(string, string, time.Duration, error) {}
	}
	var all []*Instance
	for _, group := range m.Groups {
		for index := range group.Instances {
			name := fmt.Sprintf("%s-%d", group.Name, index)
			i, err := l.deployInstance(ctx, m, group, index, name,
				func(step string, took time.Duration, err error) { report(name, step, took, err) })
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, i)
		}
	}
	for _, i := range all {
		var p director.Plan
		i.Agent.PostDeploy(&p)
		if err := p.Run(ctx, func(step string, took time.Duration,
			err error) {
			report(i.Short, step, took, err)
		}); err != nil {
			return fmt.Errorf("%s: %w", i.Short, err)
		}
	}
	return nil
}

func (l *Lab) deployInstance(ctx context.Context, m release.Manifest, g release.Group, index int, name string,
	report director.Report) (*Instance, error) {
	i := l.Machines()[name]
	fresh := i == nil
	if fresh {
		var create director.Plan
		create.Add("create_vm", func(ctx context.Context) (err error) {
			i, err = l.Create(ctx, VM{Name: name, Source: Source(g.Source), Ephemeral: g.EphemeralDisk << 20,
				Edit: func(d Document) {
					if env, ok := d["env"].(map[string]any); ok {
						for key, value := range g.Env {
							env[key] = merged(env[key], value)
						}
					}
				}})
			if err == nil {
				err = i.Start(ctx)
			}
			return err
		})
		if err := create.Run(ctx, report); err != nil {
			return nil, err
		}
	}
	spec, templates, err := l.Spec(i, m, g, index)
	if err != nil {
		return nil, err
	}
	d := director.Deployment{Spec: spec, Disk: i.deployed.disk}
	d.Settings = i.updates()
	if fresh {
		if d.Settings, err = i.Permanent(); err != nil {
			return nil, err
		}
	}
	// Another size means another disk, to which the data moves.
	if g.PersistentDisk<<20 != i.deployed.size {
		d.Disk = ""
		if g.PersistentDisk > 0 {
			d.Disk = "disk-" + uuid.NewString()
			if err := i.NewDisk(d.Disk, g.PersistentDisk<<20); err != nil {
				return nil, err
			}
		}
	}
	var p director.Plan
	if fresh {
		i.Agent.NewVM(&p, i, d)
		p.Add("upload_blob", templates)
		i.Agent.Start(&p, d)
	} else {
		p.Add("upload_blob", templates)
		i.Agent.Update(&p, i, d, i.deployed.disk)
	}
	err = p.Run(ctx, func(step string, took time.Duration, err error) {
		if step == "update_settings" && err == nil && fresh {
			err = i.ExpelFirstIdentity()
		}
		report(step, took, err)
	})
	if err == nil {
		i.deployed.disk, i.deployed.size = d.Disk, g.PersistentDisk<<20
	}
	return i, err
}

// merged merges two JSON values. Members of over have precedence.
func merged(under, over any) any {
	a, ok1 := under.(map[string]any)
	b, ok2 := over.(map[string]any)
	if !ok1 || !ok2 {
		return over
	}
	result := map[string]any{}
	for key, value := range a {
		result[key] = value
	}
	for key, value := range b {
		result[key] = merged(result[key], value)
	}
	return result
}

// updates returns the settings that update_settings sends at every update.
func (i *Instance) updates() map[string]any {
	return map[string]any{"trusted_certs": "", "disk_associations": []any{}, "blobstores": []any{i.blobstore()}}
}

// Permanent returns the settings that a Director sends to a new machine: those of updates, and the machine's own
// certificate for the bus.
func (i *Instance) Permanent() (map[string]any, error) {
	settings := i.updates()
	if i.vm.HTTPS {
		return settings, nil
	}
	pair, err := i.lab.Bus.Admit(testca.AgentName(i.AgentID))
	if err != nil {
		return nil, err
	}
	settings["mbus"] = map[string]any{"cert": cert(i.lab.CA.PEM, pair)}
	return settings, nil
}

// ExpelFirstIdentity revokes the machine's first certificate, as nats-sync does once the permanent one is in use.
func (i *Instance) ExpelFirstIdentity() error {
	if i.vm.HTTPS {
		return nil
	}
	return i.lab.Bus.Expel(testca.BootstrapName(i.AgentID))
}

// Spec returns the apply spec, with signed URLs of the packages in the blobstore, and a step that sends the rendered
// templates to the agent.
func (l *Lab) Spec(i *Instance, m release.Manifest, g release.Group, index int) (map[string]any,
	func(context.Context) error, error) {
	if i.deployed.id == "" {
		i.deployed.id = uuid.NewString()
	}
	packages := map[string]any{}
	for _, p := range g.Packages {
		data, err := p.Pack(m.Base)
		if err != nil {
			return nil, nil, err
		}
		id, digest, err := l.Blobs.Put(data)
		if err != nil {
			return nil, nil, err
		}
		packages[p.Name] = map[string]any{"name": p.Name, "version": release.Fingerprint(data) + ".1", "sha1": digest,
			"blobstore_id": id,
			"signed_url":   l.Blobs.SignedURL("GET", id)}
	}
	templates, err := release.Templates(m.Base, g.Jobs)
	if err != nil {
		return nil, nil, err
	}
	jobs := []any{}
	hashes := map[string]string{}
	for _, j := range g.Jobs {
		one, err := release.Templates(m.Base, []release.Job{j})
		if err != nil {
			return nil, nil, err
		}
		hashes[j.Name] = release.Fingerprint(one)
		jobs = append(jobs, map[string]any{"name": j.Name, "version": hashes[j.Name]})
	}
	job := map[string]any{"name": g.Name, "templates": jobs}
	if len(g.Jobs) > 0 {
		job["template"], job["version"] = g.Jobs[0].Name, hashes[g.Jobs[0].Name]
	}
	blob, digest := uuid.NewString(), blobstore.Digest(templates)
	spec := map[string]any{
		"deployment": m.Name, "name": g.Name, "index": index, "id": i.deployed.id, "az": "z1", "job": job,
		"packages": packages,
		"networks": i.networks(), "persistent_disk": g.PersistentDisk, "template_hashes": hashes,
		"properties":                 map[string]any{},
		"configuration_hash":         release.Fingerprint(templates),
		"rendered_templates_archive": map[string]any{"blobstore_id": blob, "sha1": digest},
	}
	upload := func(ctx context.Context) error {
		_, err := i.Agent.Do(ctx, "upload_blob",
			map[string]any{"blob_id": blob, "checksum": digest, "payload": mime(templates)})
		var e *director.Exception
		if errors.As(err, &e) && strings.Contains(e.Message, "unknown message ") {
			return fmt.Errorf("the agent does not support upload_blob, and the lab cannot deliver templates: %w", err)
		}
		return err
	}
	return spec, upload, nil
}

// mime encodes base64 with line breaks, as a Director does.
func mime(data []byte) string {
	text := base64.StdEncoding.EncodeToString(data)
	var b strings.Builder
	for len(text) > 60 {
		b.WriteString(text[:60] + "\n")
		text = text[60:]
	}
	b.WriteString(text + "\n")
	return b.String()
}

// networks returns the settings' networks in the form of an apply spec.
func (i *Instance) networks() map[string]any {
	i.mu.Lock()
	defer i.mu.Unlock()
	var d struct {
		Networks map[string]any `json:"networks"`
	}
	if i.document == nil || json.Unmarshal(i.document.JSON(), &d) != nil || d.Networks == nil {
		return map[string]any{}
	}
	return d.Networks
}
