// Package registry fetches settings from the registry of CPI API v1, to which the user data contains a pointer. A
// pointer is followed whatever agent.json configures, unless its document contains settings.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"cambium/infrastructure/internal/fetch"
	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

// Pointer is a reference to a registry in user data.
type Pointer struct {
	Endpoint secret.URL
	// User and Password have keys of their own. Those in the endpoint take precedence.
	User        string
	Password    secret.String
	ServerName  string
	NameServers []string
	// Networks is the network to bring up before a request to the registry, in the format of the settings.
	Networks json.RawMessage
}

// ParsePointer returns the pointer in a document, or nil if there is none or the document has an agent_id.
func ParsePointer(document []byte) (*Pointer, error) {
	var wire struct {
		AgentID  json.RawMessage `json:"agent_id"`
		Registry json.RawMessage `json:"registry"`
		Server   json.RawMessage `json:"server"`
		DNS      json.RawMessage `json:"dns"`
		Networks json.RawMessage `json:"networks"`
	}
	if err := json.Unmarshal(document, &wire); err != nil {
		return nil, errors.New("not a JSON object")
	}
	// An agent_id of another type is reported by the validation of the settings.
	var id any
	if len(wire.AgentID) > 0 && json.Unmarshal(wire.AgentID, &id) == nil && id != nil && id != "" {
		return nil, nil
	}
	var registry struct {
		Endpoint secret.URL    `json:"endpoint"`
		User     secret.String `json:"user"`
		Password secret.String `json:"password"`
	}
	if len(wire.Registry) > 0 && json.Unmarshal(wire.Registry, &registry) != nil {
		return nil, errors.New("registry: expected an object of strings")
	}
	if registry.Endpoint.Empty() {
		return nil, nil
	}
	var server struct {
		Name string `json:"name"`
	}
	if len(wire.Server) > 0 && json.Unmarshal(wire.Server, &server) != nil {
		return nil, errors.New("server.name: expected a string")
	}
	var dns struct {
		NameServers []string `json:"nameserver"`
	}
	if len(wire.DNS) > 0 && json.Unmarshal(wire.DNS, &dns) != nil {
		return nil, errors.New("dns.nameserver: expected a list of strings")
	}
	var networks map[string]json.RawMessage
	if len(wire.Networks) > 0 && json.Unmarshal(wire.Networks, &networks) != nil {
		return nil, errors.New("networks: expected an object")
	}
	if len(networks) == 0 { // null and {} name no network
		wire.Networks = nil
	}
	return &Pointer{
		Endpoint:    registry.Endpoint,
		User:        registry.User.Reveal(),
		Password:    registry.Password,
		ServerName:  server.Name,
		NameServers: dns.NameServers,
		Networks:    wire.Networks,
	}, nil
}

// Client fetches the settings to which pointers refer.
type Client struct {
	// UseServerName makes the name in the user data the machine's key in the registry, instead of the instance id.
	UseServerName bool
	// NetworkUp reports whether a usable network is up. If it is nil, there always is one.
	NetworkUp func(context.Context) bool
	// Connecting, if not nil, is called before each connection to a registry.
	Connecting func(ctx context.Context, server netip.AddrPort)
}

// Settings fetches the document to which the pointer refers, and returns it with its origin. instanceID may be nil, or
// return "" if the source has no instance id.
func (c Client) Settings(ctx context.Context, p Pointer,
	instanceID func(context.Context) (string, error)) ([]byte, string, error) {
	endpoint := p.Endpoint.Reveal()
	if !strings.HasPrefix(endpoint, "http") {
		return file(strings.TrimPrefix(endpoint, "file://"))
	}
	if fetch.NeedsNetwork(endpoint) && c.NetworkUp != nil && !c.NetworkUp(ctx) {
		return nil, "", &source.NeedNetwork{Networks: p.Networks}
	}
	key, err := c.key(ctx, p, instanceID)
	if err != nil {
		return nil, "", fmt.Errorf("key of this machine in the registry: %w", err)
	}
	address, err := address(endpoint, key)
	if err != nil {
		return nil, "", source.NotYet(err)
	}
	from := "registry " + secret.RedactURL(address)
	client := fetch.Client{Connecting: c.Connecting}
	if len(p.NameServers) > 0 {
		client.Lookup = resolver{servers: p.NameServers}.lookup
	}
	response, err := client.Do(ctx,
		fetch.Request{URL: address, Limit: source.MaxDocument, User: p.User, Password: p.Password})
	if err != nil {
		if source.KindOf(err) == source.Definite { // a bad endpoint; the CPI may correct it
			err = source.NotYet(err)
		}
		return nil, "", fmt.Errorf("registry %w", err)
	}
	if err := response.Err(); err != nil {
		return nil, "", fmt.Errorf("%s: %w", from, err)
	}
	document, err := envelope(response.Body)
	if err != nil {
		return nil, "", source.NotYet(fmt.Errorf("%s: %w", from, err))
	}
	return document, from, nil
}

func file(path string) ([]byte, string, error) {
	body, err := source.ReadFile(path)
	if err != nil {
		// Unlike the file of a File source, this one is named by the user data and must exist.
		return nil, "", source.NotYet(fmt.Errorf("registry file %w", err))
	}
	document, err := source.Decode(body)
	if err != nil {
		return nil, "", source.NotYet(fmt.Errorf("registry file %s: %w", path, err))
	}
	return document, "registry file " + path, nil
}

// key returns the machine's key in the registry. If the source has no instance id, it is the server name, even without
// UseServerName.
func (c Client) key(ctx context.Context, p Pointer, instanceID func(context.Context) (string, error)) (string, error) {
	if c.UseServerName {
		if p.ServerName == "" {
			return "", source.NotYet(errors.New("server.name is missing in the user data"))
		}
		return p.ServerName, nil
	}
	if instanceID != nil {
		if id, err := instanceID(ctx); err != nil || id != "" {
			return id, err
		}
	}
	if p.ServerName == "" {
		return "", source.NotYet(
			errors.New("the source has no instance id, and server.name is missing in the user data"))
	}
	return p.ServerName, nil
}

func address(endpoint, key string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("registry endpoint %s: not a valid URL", secret.RedactURL(endpoint))
	}
	if key == "." || key == ".." {
		return "", errors.New("registry: the key of this machine is not a valid name")
	}
	u.RawQuery, u.Fragment = "", ""
	return strings.TrimSuffix(u.String(), "/") + "/instances/" + url.PathEscape(key) + "/settings", nil
}

// envelope extracts the settings, a JSON string, from a registry's response. It ignores the member status, since the
// HTTP status tells the same.
func envelope(body []byte) ([]byte, error) {
	outer, err := source.Decode(body)
	if err != nil {
		return nil, fmt.Errorf("envelope: %w", err)
	}
	var wire struct {
		Settings json.RawMessage `json:"settings"`
	}
	if err := json.Unmarshal(outer, &wire); err != nil {
		return nil, errors.New("envelope: not a JSON object")
	}
	if len(wire.Settings) == 0 || string(wire.Settings) == "null" {
		return nil, errors.New("envelope: no settings in it")
	}
	document, err := source.Decode(wire.Settings)
	if err != nil {
		return nil, fmt.Errorf("settings in the envelope: %w", err)
	}
	return document, nil
}
