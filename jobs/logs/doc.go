// Package logs packs the logs of a machine into one archive while reading them, and configures
// their rotation. It reads directories that jobs can write to, as root, and trusts nothing it
// finds there.
package logs
