// Package stemcell tests the tarballs that `lab stemcell` builds, with the tools for stemcells.
package stemcell
