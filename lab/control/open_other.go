//go:build !linux

package control

import "errors"

// Open fails, because labs need Linux. Agents outside of labs can be called from any system.
func Open(string, string) (*Client, error) {
	return nil, errors.New("labs need Linux: name an agent outside of labs with --url or --settings")
}
