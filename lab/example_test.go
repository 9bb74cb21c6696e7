package lab_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"cambium/lab"
	"cambium/lab/director"
)

// A machine is made, booted and driven as a Director does it. This needs root, systemd-nspawn and the agent's binary, so
// that only the machine tier runs it (TestMachineExample).
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	l, err := lab.New(ctx, lab.Options{Name: fmt.Sprintf("example%d", os.Getpid()), Dir: os.TempDir(),
		Agent: os.Getenv("CAMBIUM_AGENT")})
	check(err)
	defer func() { check(l.Close(ctx)) }()
	i, err := l.Create(ctx, lab.VM{Ephemeral: 2 * lab.GiB, Edit: func(d lab.Document) { d.Set("env.bosh.swap_size", 0) }})
	check(err)
	check(i.Start(ctx))
	check(i.Ready(ctx)) // the agent has answered ping

	check(i.NewDisk("disk-1", lab.GiB))
	hint, err := i.AttachDisk(ctx, "disk-1")
	check(err)
	for _, call := range [][]any{{"add_persistent_disk", "disk-1", hint}, {"mount_disk", "disk-1"}} {
		_, err := i.Agent.Do(ctx, call[0].(string), call[1:]...)
		check(err)
	}
	disks, err := i.Agent.Do(ctx, "list_disk")
	check(err)
	fmt.Printf("%s\n", disks)

	begin := time.Now()
	check(i.Kill(ctx)) // a power cut
	check(i.Start(ctx))
	_, err = l.Monitor.Wait(ctx, begin, func(e director.Event) bool { return e.Kind == "heartbeat" })
	check(err)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
