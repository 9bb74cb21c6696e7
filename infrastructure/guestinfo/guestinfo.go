// Package guestinfo implements the source VsphereGuestInfo: settings that the guest tools read from the hypervisor.
// They are erased there once they are cached.
package guestinfo

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cambium/infrastructure/internal/source"
	"cambium/internal/command"
	"cambium/internal/secret"
)

const (
	key         = "guestinfo.userdata"
	encodingKey = "guestinfo.userdata.encoding"
	// erased replaces user data, whose key cannot be removed. cloud-init uses the same value.
	erased = "---"

	toolTimeout = 10 * time.Second
	toolGrace   = time.Second
	// maxValue leaves room for base64.
	maxValue = source.MaxDocument * 3 / 2
)

// Options holds the paths of the two programs. One of them must be installed.
type Options struct {
	RPCToolPath  string // "vmware-rpctool" if empty
	VMToolsdPath string // "vmtoolsd" if empty
}

// Source reads the settings through the guest tools.
type Source struct{ o Options }

// New returns a VsphereGuestInfo source without starting a program.
func New(o Options) *Source {
	if o.RPCToolPath == "" {
		o.RPCToolPath = "vmware-rpctool"
	}
	if o.VMToolsdPath == "" {
		o.VMToolsdPath = "vmtoolsd"
	}
	return &Source{o: o}
}

// Name returns the type and the key.
func (s *Source) Name() string { return "VsphereGuestInfo " + key }

// Settings reads the value. All errors are final, since the hypervisor sets the value before the machine starts; only
// an invalid document is read again.
func (s *Source) Settings(ctx context.Context) (source.Answer, error) {
	value, err := s.rpc(ctx, "info-get "+key)
	if err != nil {
		return source.Answer{}, err
	}
	text := strings.TrimSpace(string(value))
	switch text {
	case "":
		return source.Answer{}, source.Final(fmt.Errorf("%s: %w", key, source.ErrEmpty))
	case erased:
		return source.Answer{}, source.Spent(fmt.Errorf("%s: erased after an earlier start", key))
	}
	body := []byte(text)
	if text[0] != '{' {
		if body, err = source.DecodeBase64(text); err != nil {
			return source.Answer{}, source.Final(fmt.Errorf("%s: %w", key, err))
		}
	}
	if body, err = inflate(body); err != nil {
		return source.Answer{}, source.Final(fmt.Errorf("%s: %w", key, err))
	}
	document, err := source.Decode(body)
	if err != nil {
		return source.Answer{}, source.NotYet(fmt.Errorf("%s: %w", key, err))
	}
	return source.Answer{Raw: secret.NewJSON(document), From: s.Name(), Clear: s.erase}, nil
}

// PublicKey returns "": guestinfo contains settings only.
func (s *Source) PublicKey(context.Context) (string, error) { return "", nil }

// erase overwrites the value, since any process on the machine could read it.
func (s *Source) erase(ctx context.Context) error {
	_, err := s.rpc(ctx, "info-set "+key+" "+erased)
	if err != nil {
		err = fmt.Errorf("erase: %w", err)
	}
	if _, encoding := s.rpc(ctx, "info-set "+encodingKey+" "); encoding != nil {
		err = errors.Join(err, fmt.Errorf("erase the encoding: %w", encoding))
	}
	return err
}

// inflate decompresses body if it is in gzip format, and enforces the size limit.
func inflate(body []byte) ([]byte, error) {
	if !bytes.HasPrefix(body, []byte{0x1f, 0x8b}) {
		if len(body) > source.MaxDocument {
			return nil, fmt.Errorf("%w: more than %d KiB", source.ErrTooLarge, source.MaxDocument>>10)
		}
		return body, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("not gzip")
	}
	defer func() { _ = r.Close() }() // reads from memory
	unpacked, err := source.ReadAll(r, source.MaxDocument)
	if err != nil && !errors.Is(err, source.ErrTooLarge) {
		return nil, errors.New("damaged gzip")
	}
	return unpacked, err
}

// rpc sends a request to the hypervisor through the first tool that succeeds.
func (s *Source) rpc(ctx context.Context, request string) ([]byte, error) {
	var failures []error
	for _, tool := range []command.Cmd{
		{Name: s.o.RPCToolPath, Args: []string{request}},
		{Name: s.o.VMToolsdPath, Args: []string{"--cmd", request}},
	} {
		if command.Find(tool.Name) == "" {
			failures = append(failures, fmt.Errorf("%s: not installed", tool.Name))
			continue
		}
		value, err := run(ctx, tool)
		if err == nil {
			return value, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		failures = append(failures, err)
	}
	return nil, source.Final(fmt.Errorf("%w; %w", failures[0], failures[1]))
}

func run(ctx context.Context, tool command.Cmd) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	out := &capped{}
	tool.Stdout, tool.Grace = out, toolGrace
	if _, err := command.Run(ctx, tool); err != nil {
		return nil, err
	}
	if out.over {
		return nil, fmt.Errorf("%s: %w: more than %d KiB", tool.Name, source.ErrTooLarge, maxValue>>10)
	}
	return out.kept.Bytes(), nil
}

// capped keeps the first maxValue bytes and discards the rest, so that the tool can finish.
type capped struct {
	kept bytes.Buffer
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	if room := maxValue - c.kept.Len(); len(p) > room {
		c.kept.Write(p[:room])
		c.over = true
	} else {
		c.kept.Write(p)
	}
	return len(p), nil
}
