package monit

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// group is the service group of a deployment's jobs.
const group = "vcap"

// Status is monit's status report.
type Status struct {
	Incarnation int64
	Version     string
	// Services lists the services that were requested, in monit's order.
	Services []Service
}

// Service is a supervised process.
type Service struct {
	Name string
	// State is "running", "starting", "failing" or "unknown" (not monitored).
	State     string
	Monitored bool
	Pending   bool
	// Fault is monit's message about a failed action. Not all versions report it.
	Fault         string
	UptimeSeconds int
	MemoryKB      int
	MemoryPercent float64
	CPUPercent    float64
	PID           int // 0 if it is not running
	// Only the agent's own supervisor reports these: how often it restarted the process, and when and why the process
	// last ended.
	Restarts  *int
	Ended     *time.Time
	EndReason string
}

// States of a service and of the whole job.
const (
	StateRunning  = "running"
	StateStarting = "starting"
	StateFailing  = "failing"
	StateUnknown  = "unknown"
	StateStopped  = "stopped"
)

type statusXML struct {
	XMLName     xml.Name     `xml:"monit"`
	Incarnation int64        `xml:"incarnation,attr"`
	Version     string       `xml:"version,attr"`
	Services    []serviceXML `xml:"services>service"`
	Groups      []struct {
		Name     string   `xml:"name,attr"`
		Services []string `xml:"service"`
	} `xml:"servicegroups>servicegroup"`
}

type serviceXML struct {
	Name    string `xml:"name,attr"`
	Status  uint64 `xml:"status"`
	Message string `xml:"status_message"`
	Monitor int    `xml:"monitor"`
	Pending int    `xml:"pendingaction"`
	Uptime  int    `xml:"uptime"`
	PID     int    `xml:"pid"`
	// These three are not from monit.
	Restarts  *int   `xml:"restarts"`
	Ended     *int64 `xml:"ended"`
	EndReason string `xml:"end_reason"`
	Memory    struct {
		KB      int     `xml:"kilobytetotal"`
		Percent float64 `xml:"percenttotal"`
	} `xml:"memory"`
	CPU struct {
		Percent float64 `xml:"percenttotal"`
	} `xml:"cpu"`
}

func parseStatus(r io.Reader, group string) (Status, error) {
	var doc statusXML
	decoder := xml.NewDecoder(r)
	decoder.CharsetReader = latin1
	if err := decoder.Decode(&doc); err != nil {
		return Status{}, fmt.Errorf("decode: %w", err)
	}
	member := map[string]bool{}
	for _, g := range doc.Groups {
		if g.Name == group {
			for _, name := range g.Services {
				member[name] = true
			}
		}
	}
	status := Status{Incarnation: doc.Incarnation, Version: doc.Version}
	for _, s := range doc.Services {
		if group == "" || member[s.Name] {
			status.Services = append(status.Services, s.service())
		}
	}
	return status, nil
}

func (x serviceXML) service() Service {
	s := Service{
		Name: x.Name, Monitored: x.Monitor != 0, Pending: x.Pending > 0,
		UptimeSeconds: x.Uptime, MemoryKB: x.Memory.KB, MemoryPercent: number(x.Memory.Percent),
		CPUPercent: number(x.CPU.Percent), PID: x.PID, Restarts: x.Restarts, EndReason: x.EndReason,
	}
	if x.Ended != nil {
		ended := time.Unix(*x.Ended, 0)
		s.Ended = &ended
	}
	switch {
	case x.Monitor == 0:
		s.State = StateUnknown
	case x.Monitor == 2:
		s.State = StateStarting
	case x.Status == 0:
		s.State = StateRunning
	default:
		s.State = StateFailing
	}
	if x.Status > 0 {
		s.Fault = strings.TrimSpace(x.Message)
	}
	return s
}

// number replaces values that JSON cannot represent. monit prints "nan" for unknown values.
func number(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

// latin1 decodes the encoding that monit declares.
func latin1(charset string, input io.Reader) (io.Reader, error) {
	switch strings.ToLower(charset) {
	case "iso-8859-1", "latin1", "us-ascii":
	default:
		return nil, errors.New("unexpected character set")
	}
	data, err := io.ReadAll(input) // at most maxStatus
	var text strings.Builder
	for _, b := range data {
		text.WriteRune(rune(b))
	}
	return strings.NewReader(text.String()), err
}
