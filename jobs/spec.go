// Package jobs reads the apply spec, and prepares, applies, starts and stops the jobs and packages of an instance. It
// does not depend on the bus, a blobstore or settings: archives come through blob.Opener, and processes are controlled
// through Supervisor.
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

// Spec is an apply spec, as in prepare, apply, spec.json and get_state. The order of the fields is that of the JSON.
type Spec struct {
	Properties        Properties         `json:"properties"`
	Job               Job                `json:"job"`
	Packages          map[string]Package `json:"packages"`
	ConfigurationHash string             `json:"configuration_hash"`
	// Networks are returned exactly as they were applied, with unknown keys, so their members are not decoded.
	Networks     map[string]map[string]json.RawMessage `json:"networks"`
	ResourcePool json.RawMessage                       `json:"resource_pool"`
	Deployment   string                                `json:"deployment"`
	Name         string                                `json:"name"`
	Index        *int                                  `json:"index"`
	ID           string                                `json:"id"`
	AZ           string                                `json:"az"`
	// PersistentDisk is in MiB.
	PersistentDisk int      `json:"persistent_disk"`
	Archive        *Archive `json:"rendered_templates_archive"`
}

// Properties has the properties of the instance that the agent uses.
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

// Template is a job of the instance.
type Template struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Package is a package of the instance.
type Package struct {
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Digest      string            `json:"sha1"`
	BlobstoreID string            `json:"blobstore_id"`
	SignedURL   string            `json:"signed_url"`
	Headers     map[string]string `json:"blobstore_headers"`
}

// Archive identifies the blob with the rendered templates of all jobs.
type Archive struct {
	// Digest is nil if null was applied, because get_state must then return null.
	Digest      *string `json:"sha1"`
	BlobstoreID string  `json:"blobstore_id"`
}

// digest returns the digest, or "".
func (a Archive) digest() string {
	if a.Digest == nil {
		return ""
	}
	return *a.Digest
}

// UnmarshalJSON decodes a spec of any caller: null or an empty object for the job, null for maps. It replaces null with
// empty values where a reply must not have null.
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

// SetNetwork sets the address of a network that uses DHCP.
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

// NetworkString returns the text of a network's key, or "".
func (s Spec) NetworkString(name, key string) string {
	var text string
	if json.Unmarshal(s.Networks[name][key], &text) != nil {
		return ""
	}
	return text
}

// InstanceName returns the instance group's name for the field "job" of heartbeats, or nil.
func (s Spec) InstanceName() *string { return s.Job.Name }

// JobNames returns the jobs of the instance in the order of the spec. If there is no rendered archive, it returns none.
func (s Spec) JobNames() (names []string) {
	if s.Archive == nil {
		return nil
	}
	for _, t := range s.Job.Templates {
		names = append(names, t.Name)
	}
	return names
}

// ErrandName returns the job that an errand without a name runs.
func (s Spec) ErrandName() string { return s.Job.Template }

// PackageNames returns the sorted keys of Packages.
func (s Spec) PackageNames() []string {
	names := make([]string, 0, len(s.Packages))
	for name := range s.Packages {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ref returns the reference of the package's archive.
func (p Package) ref() (blob.Ref, error) {
	digest, err := blob.ParseDigest(p.Digest)
	if err != nil {
		return blob.Ref{}, err
	}
	return blob.Ref{
		ID:        p.BlobstoreID,
		SignedURL: secret.NewURL(p.SignedURL),
		Headers:   secrets(p.Headers),
		Digest:    digest,
	}, nil
}

// secrets wraps the values of headers, which may be encryption keys.
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

// ref returns the reference of the archive with rendered templates.
func (a Archive) ref() (blob.Ref, error) {
	digest, err := blob.ParseDigest(a.digest())
	if err != nil {
		return blob.Ref{}, err
	}
	return blob.Ref{ID: a.BlobstoreID, Digest: digest}, nil
}

// bundleHash returns the directory name of a bundle. cloudfoundry/bosh-agent uses the same name, so that nothing is
// downloaded again after that agent was replaced.
func bundleHash(version, digest string) string {
	sum := sha1.Sum([]byte(version + "-" + digest))
	return hex.EncodeToString(sum[:])
}

// reserved lists the directories below data that no job may use.
var reserved = []string{
	"blobs", "compile", "dynamic_disks", "jobs", "lost+found", "packages", "root_log", "root_opt", "root_tmp",
	"root_var_opt", "sensitive_blobs", "sys", "tmp",
}

// Validate returns an error for a spec that cannot be installed: names that are not file names or are reserved, missing
// versions, missing or invalid digests.
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

// checkName fails unless name is a single path component and not hidden.
func checkName(kind, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a %s has no name", kind)
	case len(name) > 200,
		strings.HasPrefix(name, "."),
		strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r < ' ' || r == 0x7f }):
		return fmt.Errorf("%s %q: not a valid name", kind, name)
	}
	return nil
}
