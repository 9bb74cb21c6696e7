//go:build soak

package herd

// paper is what the figures mean for more agents than were measured.
const paper = `## What this means

For the agent: memory does not depend on their number, and jitter bounds connects as long as servers keep up. From the file
to the first answer "at most 2 s" is missed where a reload takes longer than a second. An agent whose log-in was too slow
pauses, for up to a minute; without that a cold start of 3,000 had not ended after four minutes on two processors.

For the servers: with ` + "`verify_and_map`" + ` nats-server parses the subject of every user in its file, one by one and under its
lock, until it finds that of the certificate; of an unknown agent it reads all, twice. A reload does that for every
connected agent. Hence a log-in costs time in proportion to the users, and a cold start, or a reload, to the users times
the agents. A log-in that takes longer than two seconds fails: the server's first PING overtakes its answer, and nats.go
takes that for an error.

10,000 agents: 10 ms for a log-in, times 10,000, are 100 s of processor time for a cold start, and a third of that on each
server for a reload. While agents join, reloads every 10 s keep a processor of each server busy.

100,000 agents: one file of users does not carry that, with any number of servers: each log-in would take a tenth of a second
of a lock, and each reload an hour. What does is either a user's name in the certificate's SAN, which nats-server looks up
in a map (a change of Director and nats-sync; the agent needs none), or leaf nodes, one for some thousand agents, each
with the users of its own agents alone. Then connects are the next limit: 100,000 agents that lose their servers make
50,000 attempts in the first second, which is 50 processors' worth of TLS handshakes; pauses of up to five seconds
spread what is left, some 20,000 a second. Heartbeats are 3,300 messages a second, which one server carries.
`
