// Package stemcell tests the tarballs that `lab stemcell` makes with the tools that people use on them.
package stemcell
