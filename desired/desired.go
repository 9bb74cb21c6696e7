// Package desired computes the desired network and name servers from the settings and the observed state. It is pure:
// it reads no files and makes no system calls, so that a plan can be printed before it is applied.
package desired
