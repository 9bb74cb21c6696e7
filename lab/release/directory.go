package release

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// ReadSource reads the directory of a release as `bosh create-release` does: config/final.yml, jobs, packages and their
// files in src.
func ReadSource(dir, version string) (s Source, err error) {
	var config struct {
		Name string `yaml:"name"`
	}
	if err := readYAML(filepath.Join(dir, "config/final.yml"), &config); err != nil {
		return s, err
	}
	s.Name, s.Version = config.Name, version
	jobs, err1 := filepath.Glob(filepath.Join(dir, "jobs/*/spec"))
	packages, err2 := filepath.Glob(filepath.Join(dir, "packages/*/spec"))
	if err := errors.Join(err1, err2); err != nil {
		return s, err
	}
	if s.Name == "" || len(jobs) == 0 {
		return s, fmt.Errorf("%s has no name in config/final.yml, or no jobs", dir)
	}
	for _, spec := range jobs {
		j, err := readJob(spec)
		if err != nil {
			return s, err
		}
		s.Jobs = append(s.Jobs, j)
	}
	for _, spec := range packages {
		p, err := readPackage(dir, spec)
		if err != nil {
			return s, err
		}
		s.Packages = append(s.Packages, p)
	}
	return s, nil
}

func readYAML(path string, into any) error {
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func readJob(spec string) (j SourceJob, err error) {
	var s struct {
		Name       string
		Templates  map[string]string
		Packages   []string
		Properties map[string]Property
	}
	if err := readYAML(spec, &s); err != nil {
		return j, err
	}
	dir := filepath.Dir(spec)
	j = SourceJob{Job: Job{Name: s.Name, Files: Files{}}, Packages: s.Packages, Properties: s.Properties}
	s.Templates["../monit"] = "monit"
	for template, target := range s.Templates {
		data, err := os.ReadFile(filepath.Join(dir, "templates", template))
		if err != nil {
			return j, err
		}
		j.Files[target] = string(data)
	}
	return j, nil
}

func readPackage(dir, spec string) (p Package, err error) {
	var s struct {
		Name  string
		Files []string
	}
	if err := readYAML(spec, &s); err != nil {
		return p, err
	}
	p = Package{Name: s.Name}
	packaging, err := os.ReadFile(filepath.Join(filepath.Dir(spec), "packaging"))
	if err != nil {
		return p, err
	}
	p.Files = Files{"packaging": string(packaging)}
	for _, pattern := range s.Files {
		found, err := filepath.Glob(filepath.Join(dir, "src", pattern))
		if err == nil && len(found) == 0 {
			err = errors.New("no such file")
		}
		if err != nil {
			return p, fmt.Errorf("%s: %s: %w", spec, pattern, err)
		}
		for _, file := range found {
			data, err := os.ReadFile(file)
			if err != nil {
				return p, err
			}
			p.Files[path.Join(path.Dir(pattern), filepath.Base(file))] = string(data)
		}
	}
	return p, nil
}
