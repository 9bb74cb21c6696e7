package lab

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"

	"cambium/lab/machine"

	"golang.org/x/crypto/ssh"
)

// sshd are the files that make a machine accept SSH connections, with a host key of its own; the tree has keys that all
// machines share. It is an RSA key, which is the one that agents report to `bosh ssh`, and it is made here: an
// emulated machine would need many seconds for it.
func sshd() ([]machine.File, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	private, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, err
	}
	public, err := ssh.NewPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	return []machine.File{
		{Path: "/etc/ssh/ssh_host_rsa_key", Data: pem.EncodeToMemory(private), Mode: 0o600},
		{Path: "/etc/ssh/ssh_host_rsa_key.pub", Data: ssh.MarshalAuthorizedKey(public), Mode: 0o644},
		{Path: "/etc/ssh/sshd_config.d/lab.conf", Data: []byte("HostKey /etc/ssh/ssh_host_rsa_key\n"), Mode: 0o644},
		// systemd listens, and starts sshd with the first connection: it does not take part in the boot.
		{Path: "/etc/systemd/system/sockets.target.d/ssh.conf", Data: []byte("[Unit]\nWants=ssh.socket\n"), Mode: 0o644},
	}, nil
}
