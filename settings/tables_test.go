package settings_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"cambium/internal/testdoc"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/configuration.md")

// node is a part of a schema.
type node struct {
	Ref         string `json:"$ref"`
	Title       string
	Description string
	Type        any // a name or a list of names
	Enum        []any
	AnyOf       []node
	Items       *node
	Properties  map[string]node
	Additional  *node           `json:"additionalProperties"`
	Defs        map[string]node `json:"$defs"`
}

// TestTablesOfThePage generates the tables of options from the schemas. An object with a title has a separate table.
func TestTablesOfThePage(t *testing.T) {
	for _, kind := range []string{"agent.json", "settings", "update-settings"} {
		data, err := os.ReadFile(schemas + kinds[kind].schema)
		if err != nil {
			t.Fatal(err)
		}
		var root node
		if err := json.Unmarshal(data, &root); err != nil {
			t.Fatal(err)
		}
		text := root.table(root.Defs)
		if kind != "update-settings" { // it shares those of the settings
			var titled []node
			for _, n := range root.Defs {
				if n.Title != "" {
					titled = append(titled, n)
				}
			}
			slices.SortFunc(titled, func(a, b node) int { return strings.Compare(a.Title, b.Title) })
			for _, n := range titled {
				text += fmt.Sprintf("\n#### %s\n\n%s", n.Title, n.table(root.Defs))
			}
		}
		if err := testdoc.CheckPart("../docs/configuration.md", kind+" options", text, *update); err != nil {
			t.Error(err)
		}
	}
}

func (n node) table(defs map[string]node) string {
	rows := n.rows("", defs)
	slices.Sort(rows)
	return "| key | type | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
}

// rows returns the rows of all properties, recursively. An object without a description only groups others.
func (n node) rows(prefix string, defs map[string]node) (rows []string) {
	for key, p := range n.Properties {
		if p.Description != "" {
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", prefix+key, p.typeName(defs), p.Description))
		}
		if def := defs[strings.TrimPrefix(p.Ref, "#/$defs/")]; p.Ref != "" && def.Title == "" {
			p = def
		}
		rows = append(rows, p.rows(prefix+key+".", defs)...)
	}
	return rows
}

func (n node) typeName(defs map[string]node) string {
	if n.Ref != "" {
		def := defs[strings.TrimPrefix(n.Ref, "#/$defs/")]
		if def.Title != "" {
			return fmt.Sprintf("[%s](#%s)", strings.ToLower(def.Title),
				strings.ReplaceAll(strings.ToLower(def.Title), " ", "-"))
		}
		return def.typeName(defs)
	}
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, v := range n.Enum {
		if v != nil {
			add(fmt.Sprintf("`%q`", v))
		}
	}
	for _, a := range n.AnyOf {
		if len(a.Enum) == 0 { // else an exception, such as an empty text for a URI
			add(a.typeName(defs))
		}
	}
	types, _ := n.Type.([]any)
	if one, ok := n.Type.(string); ok {
		types = []any{one}
	}
	for _, name := range types {
		switch name {
		case "null":
		case "array":
			add(plural("list of " + n.Items.typeName(defs)))
		case "object":
			if n.Additional != nil {
				add(plural("object of " + n.Additional.typeName(defs)))
				continue
			}
			add("object")
		default:
			add(map[any]string{"boolean": "bool", "integer": "whole number", "number": "number",
				"string": "string"}[name])
		}
	}
	return strings.Join(names, ", ")
}

// plural adds an s, except to a link.
func plural(s string) string {
	if strings.HasSuffix(s, ")") {
		return s
	}
	return s + "s"
}
