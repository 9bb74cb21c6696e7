package monitfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Resolve combines the checks of all files, which are given by name. It rejects a file if one of its checks has a name
// that was already used, depends on a check that no accepted file has, or is part of a dependency cycle. It returns the
// checks of the accepted files in monit's order, in which the last file comes first.
func Resolve(files map[string][]Check) (checks []Check, rejected map[string]error) {
	r := resolution{files: files, services: map[string]service{}, rejected: map[string]error{}}
	r.order = slices.Sorted(maps.Keys(files))
	slices.Reverse(r.order)
	r.rejectDuplicates()
	// A service of a rejected file may be one that another file depends on.
	for before := -1; before != len(r.rejected); {
		before = len(r.rejected)
		r.rejectMissing()
		if before == len(r.rejected) {
			r.rejectLoops()
		}
	}
	for _, file := range r.order {
		if r.rejected[file] == nil {
			checks = append(checks, files[file]...)
		}
	}
	return checks, r.rejected
}

type resolution struct {
	files    map[string][]Check
	order    []string           // names in reading order
	services map[string]service // by name
	rejected map[string]error
}

// service is a check and its file.
type service struct {
	*Check
	file string
}

func (r *resolution) reject(s service, format string, args ...any) {
	if r.rejected[s.file] == nil {
		message := fmt.Sprintf("service %q: %s", s.Name, fmt.Sprintf(format, args...))
		r.rejected[s.file] = &Error{Source: s.Source, Line: s.Line, Message: message}
	}
}

func (r *resolution) rejectDuplicates() {
	for _, file := range r.order {
		own := map[string]service{}
		for i := range r.files[file] {
			s := service{&r.files[file][i], file}
			other, used := r.services[s.Name]
			if !used {
				other, used = own[s.Name]
			}
			if used {
				r.reject(s, "the name is already used in line %d of %s", other.Line, other.Source)
			}
			own[s.Name] = s
		}
		if r.rejected[file] == nil {
			maps.Copy(r.services, own)
		}
	}
}

func (r *resolution) rejectMissing() {
	for _, file := range r.order {
		for i := range r.files[file] {
			s := service{&r.files[file][i], file}
			for _, name := range s.DependsOn {
				if other, found := r.services[name]; !found || r.rejected[other.file] != nil {
					r.reject(s, "depends on %q, which no valid file defines", name)
				}
			}
		}
	}
}

// rejectLoops rejects files whose checks depend on themselves.
func (r *resolution) rejectLoops() {
	var path []string
	onPath, done := map[string]int{}, map[string]bool{} // the former has places in path
	var visit func(name string)
	visit = func(name string) {
		if s := r.services[name]; !done[name] && r.rejected[s.file] == nil {
			onPath[name] = len(path)
			path = append(path, name)
			for _, next := range s.DependsOn {
				if start, isLoop := onPath[next]; !isLoop {
					visit(next)
				} else if r.rejected[s.file] == nil {
					r.rejectLoop(path[start:])
				}
			}
			path = path[:len(path)-1]
			delete(onPath, name)
			done[name] = true
		}
	}
	for _, file := range r.order {
		for _, c := range r.files[file] {
			if r.rejected[file] == nil {
				visit(c.Name)
			}
		}
	}
}

func (r *resolution) rejectLoop(names []string) {
	const most = 10
	shown := slices.Clone(names[:min(most, len(names))])
	if len(names) > most {
		shown = append(shown, "…")
	}
	loop := strings.Join(append(shown, names[0]), " → ")
	for _, name := range names {
		r.reject(r.services[name], "depends on itself: %s", loop)
	}
}
