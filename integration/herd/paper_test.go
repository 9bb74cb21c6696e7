//go:build soak

package herd

// paper explains the figures and extends them to more agents than were measured.
const paper = `## What this means

For the agent: memory does not depend on their number, and jitter bounds connects as long as servers keep up. From the file
to the first answer "at most 2 s" holds up to 3,000 agents with names in the SAN, and up to 1,000 (median) without. An
agent whose log-in was too slow pauses, for up to a minute; without that a cold start of 3,000 with nats-sync's names had
not ended after four minutes on two processors.

For the servers: with ` + "`verify_and_map`" + ` nats-server looks for the DNS names of a certificate in a map. If there are none, it
parses the subject of every user in its file, one by one and under its lock, until it finds that of the certificate; of
an unknown agent it reads all, twice. A reload does that for every connected agent. Hence a log-in costs time in
proportion to the users, and a cold start, or a reload, to the users times the agents. A log-in that takes longer than
two seconds fails: the server's first PING overtakes its answer, and nats.go takes that for an error.

A Director's certificates have no DNS names. With one in each, and users of that name, one machine with two processors
carries 10,000 agents and their servers: Director and nats-sync would have to change, agent and nats-server need not.

100,000 agents: nats-sync's file of users does not carry that, with any number of servers: each log-in would take a
tenth of a second of a lock, and each reload an hour. With DNS names a reload takes half a minute; or leaf nodes, one for
some thousand agents, have the users of their own agents alone. Then connects are the next limit: 100,000 agents that
lose their servers make 50,000 attempts in the first second, which is 50 processors' worth of TLS handshakes; pauses of
up to five seconds spread what is left, some 20,000 a second. Heartbeats are 3,300 messages a second, which one server
carries.
`
