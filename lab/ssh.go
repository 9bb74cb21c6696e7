package lab

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"

	"cambium/lab/machine"

	"golang.org/x/crypto/ssh"
)

// sshd returns the files with which a machine accepts SSH connections. They include an RSA host key of its own, the
// kind that agents report to `bosh ssh`, because the keys in the tree are shared by all machines. The key is generated
// here, since an emulated machine would need many seconds.
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
