package release

// web returns the demo's release, a small web server. It uses Debian's perl, so that nothing has to be compiled or
// downloaded.
func web() ([]Job, []Package) {
	job := Job{Name: "web", Files: Files{
		"monit": `check process web
  with pidfile /var/vcap/sys/run/web/web.pid
  start program "/var/vcap/jobs/web/bin/ctl start"
  stop program "/var/vcap/jobs/web/bin/ctl stop"
  group vcap
`,
		"bin/ctl": `#!/bin/bash
set -eu
run=/var/vcap/sys/run/web log=/var/vcap/sys/log/web pid=/var/vcap/sys/run/web/web.pid
case $1 in
start)
  mkdir -p $run $log
  chown vcap:vcap $run $log
  setpriv --reuid vcap --regid vcap --init-groups \
    perl /var/vcap/packages/web/bin/web 8080 </dev/null >>$log/web.stdout.log 2>>$log/web.stderr.log &
  echo $! >$pid
  ;;
stop)
  [ ! -e $pid ] || kill "$(cat $pid)" || true
  rm -f $pid
  ;;
esac
`,
		"bin/pre-start": `#!/bin/bash
set -eu
mkdir -p /var/vcap/store/web
chown vcap:vcap /var/vcap/store/web
date -u +%FT%TZ >>/var/vcap/store/web/started
echo pre-start done
`,
		"bin/post-start": `#!/bin/bash
echo post-start done
`,
		"bin/drain": `#!/bin/bash
echo 0
`,
	}}
	server := Package{Name: "web", Files: Files{"bin/web": `#!/usr/bin/perl
use strict;
use warnings;
use IO::Socket::INET;
$| = 1;
my $port = shift;
my $server = IO::Socket::INET->new(LocalPort => $port, Listen => 16, ReuseAddr => 1) or die "port $port: $!\n";
print "listening on $port\n";
while (my $client = $server->accept) {
    my $request = <$client>;
    my $body = "hello from the lab\n";
    print $client "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
    close $client;
    print "served\n";
}
`}}
	return []Job{job}, []Package{server}
}
