// Package jobs does the Director's work on an instance: it reads the apply spec, and prepares, applies,
// starts and stops the instance's jobs and packages. It knows neither the bus nor a blobstore
// nor settings; archives come through blob.Opener and processes through Supervisor.
package jobs

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"cambium/internal/blob"
	"cambium/internal/secret"
)

// Spec is an apply spec: what prepare and apply receive, what spec.json holds and what
// get_state answers. The order of the members is the order on the wire.
type Spec struct {
	Properties        Properties         `json:"properties"`
	Job               Job                `json:"job"`
	Packages          map[string]Package `json:"packages"`
	ConfigurationHash string             `json:"configuration_hash"`
	// Networks are answered exactly as they were applied, unknown keys included, so their
	// members stay raw.
	Networks     map[string]map[string]json.RawMessage `json:"networks"`
	ResourcePool json.RawMessage                       `json:"resource_pool"`
	Deployment   string                                `json:"deployment"`
	Name         string                                `json:"name"`
	Index        *int                                  `json:"index"`
	ID           string                                `json:"id"`
	AZ           string                                `json:"az"`
	// PersistentDisk is a size in MiB.
	PersistentDisk int      `json:"persistent_disk"`
	Archive        *Archive `json:"rendered_templates_archive"`
}

// Properties is the part of the instance's properties that the agent uses.
type Properties struct {
	Logging struct {
		MaxLogFileSize string `json:"max_log_file_size"`
	} `json:"logging"`
}

// Job is the instance group. Its templates are what BOSH's documentation calls jobs.
type Job struct {
	Name      *string    `json:"name"`
	Release   string     `json:"release"`
	Template  string     `json:"template"`
	Version   string     `json:"version"`
	Templates []Template `json:"templates"`
}

// Template is one job of the instance.
type Template struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Package is one package of the instance.
type Package struct {
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Digest      string            `json:"sha1"`
	BlobstoreID string            `json:"blobstore_id"`
	SignedURL   string            `json:"signed_url"`
	Headers     map[string]string `json:"blobstore_headers"`
}

// Archive refers to the blob with the rendered templates of all jobs.
type Archive struct {
	// Digest is nil where null was applied, and get_state then answers null.
	Digest      *string `json:"sha1"`
	BlobstoreID string  `json:"blobstore_id"`
}

// digest is the digest string, or "".
func (a Archive) digest() string {
	if a.Digest == nil {
		return ""
	}
	return *a.Digest
}

// UnmarshalJSON reads a spec as any caller sends it: null or empty objects for the job, null for
// maps. What must not be null in a reply is made empty here, once.
func (s *Spec) UnmarshalJSON(data []byte) error {
	type wire Spec
	var p wire
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("apply spec: %w", err)
	}
	*s = Spec(p)
	s.fill()
	return nil
}

func (s *Spec) fill() {
	if s.Packages == nil {
		s.Packages = map[string]Package{}
	}
	if s.Networks == nil {
		s.Networks = map[string]map[string]json.RawMessage{}
	}
	for name, network := range s.Networks {
		if network == nil {
			s.Networks[name] = map[string]json.RawMessage{}
		}
	}
	if len(s.ResourcePool) == 0 || bytes.Equal(s.ResourcePool, []byte("null")) {
		s.ResourcePool = json.RawMessage("{}")
	}
}

// SetNetwork overwrites the address of a network that DHCP resolved.
func (s *Spec) SetNetwork(name, ip, netmask, gateway string) {
	network, ok := s.Networks[name]
	if !ok {
		return
	}
	for key, value := range map[string]string{"ip": ip, "netmask": netmask, "gateway": gateway} {
		network[key] = quote(value)
	}
}

func quote(text string) json.RawMessage {
	// A string always encodes.
	raw, _ := json.Marshal(text)
	return raw
}

// NetworkString returns a text member of a network, or "".
func (s Spec) NetworkString(name, key string) string {
	var text string
	if json.Unmarshal(s.Networks[name][key], &text) != nil {
		return ""
	}
	return text
}

// InstanceName is the "job" of heartbeats: the instance group's name, or nil.
func (s Spec) InstanceName() *string { return s.Job.Name }

// JobNames are the jobs of the instance in the order of the spec. Without a rendered archive
// there are none, whatever is listed.
func (s Spec) JobNames() (names []string) {
	if s.Archive == nil {
		return nil
	}
	for _, t := range s.Job.Templates {
		names = append(names, t.Name)
	}
	return names
}

// ErrandName is the job that an errand without a name runs.
func (s Spec) ErrandName() string { return s.Job.Template }

// PackageNames are the keys of Packages, sorted.
func (s Spec) PackageNames() []string {
	names := make([]string, 0, len(s.Packages))
	for name := range s.Packages {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ref returns the reference for fetching the package's archive.
func (p Package) ref() (blob.Ref, error) {
	digest, err := blob.ParseDigest(p.Digest)
	if err != nil {
		return blob.Ref{}, err
	}
	return blob.Ref{ID: p.BlobstoreID, SignedURL: secret.NewURL(p.SignedURL), Headers: secrets(p.Headers), Digest: digest}, nil
}

// secrets wraps header values, which may be encryption keys.
func secrets(headers map[string]string) map[string]secret.String {
	if headers == nil {
		return nil
	}
	wrapped := make(map[string]secret.String, len(headers))
	for k, v := range headers {
		wrapped[k] = secret.New(v)
	}
	return wrapped
}

// ref returns the reference for fetching the archive of rendered templates.
func (a Archive) ref() (blob.Ref, error) {
	digest, err := blob.ParseDigest(a.digest())
	if err != nil {
		return blob.Ref{}, err
	}
	return blob.Ref{ID: a.BlobstoreID, Digest: digest}, nil
}

// bundleHash names the directory of a bundle. cloudfoundry/bosh-agent uses the same name, so that
// replacing it by this agent downloads nothing again.
func bundleHash(version, digest string) string {
	sum := sha1.Sum([]byte(version + "-" + digest))
	return hex.EncodeToString(sum[:])
}

// reserved are the directories below data that are not a job's.
var reserved = []string{
	"blobs", "compile", "dynamic_disks", "jobs", "lost+found", "packages", "root_log", "root_opt", "root_tmp",
	"root_var_opt", "sensitive_blobs", "sys", "tmp",
}

// Validate refuses what cannot be installed: names that are not file names or are ours, missing
// versions, missing or unusable digests.
func (s Spec) Validate() error {
	var faults []error
	seen := map[string]bool{}
	for _, name := range s.JobNames() {
		if err := checkName("job", name); err != nil {
			faults = append(faults, err)
		} else if slices.Contains(reserved, name) {
			faults = append(faults, fmt.Errorf("job %q: the name is reserved for a directory of the agent", name))
		} else if seen[name] {
			faults = append(faults, fmt.Errorf("job %q is listed twice", name))
		}
		seen[name] = true
	}
	if len(s.JobNames()) > 0 {
		if _, err := s.Archive.ref(); err != nil {
			faults = append(faults, fmt.Errorf("rendered templates archive: %w", err))
		}
		for _, t := range s.Job.Templates {
			if t.Version == "" {
				faults = append(faults, fmt.Errorf("job %q has no version", t.Name))
			}
		}
	}
	installed := map[string]bool{}
	for _, key := range s.PackageNames() {
		p := s.Packages[key]
		if err := checkName("package", p.Name); err != nil {
			faults = append(faults, err)
			continue
		}
		if installed[p.Name] {
			faults = append(faults, fmt.Errorf("package %q is listed twice", p.Name))
		}
		installed[p.Name] = true
		if p.Version == "" {
			faults = append(faults, fmt.Errorf("package %q has no version", p.Name))
		}
		if _, err := p.ref(); err != nil {
			faults = append(faults, fmt.Errorf("package %q: %w", p.Name, err))
		}
	}
	return errors.Join(faults...)
}

// checkName accepts what is one component of a path and not hidden.
func checkName(kind, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a %s has no name", kind)
	case len(name) > 200, strings.HasPrefix(name, "."), strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r < ' ' || r == 0x7f }):
		return fmt.Errorf("%s %q: not a valid name", kind, name)
	}
	return nil
}
