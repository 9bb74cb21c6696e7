# Looks at a booted stemcell, as root, and prints a line "name: value" for each thing that releases or auditors rely on.
# KEY is the path of a private key whose owner bosh_look may log in.
say() { printf '%s: %s\n' "$1" "$(echo $2)"; }
until_true() {
  for _ in $(seq 200); do
    ! "$@" || return 0
    sleep 0.3
  done
  return 1
}
quietly() { "$@" >/dev/null 2>&1; }
yes_no() { if quietly "$@"; then echo yes; else echo no; fi; }

# What releases need.
say syslog-groups "$(id -nG syslog | tr ' ' '\n' | sort)"
say vcap-sudo "$(yes_no sh -c 'id -nG vcap | grep -qw sudo')"
say programs "$(cd /var/vcap/bosh/bin && for p in bosh-agent-rc sync-time restart_networking; do [ -x $p ] && echo $p; done; command -v nc | sed 's|.*/||')"
say lock "$(stat -L -c '%a %U:%G' /var/lock)"
say ipc "$(busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC)"
say path-of-root "$(env -i HOME=/root PATH=/bin bash -ic 'echo $PATH' 2>/dev/null)"
say path-of-vcap "$(env -i HOME=/home/vcap PATH=/bin setpriv --reuid=vcap --regid=vcap --clear-groups bash -ic 'echo $PATH' 2>/dev/null)"
say open-files "$(ulimit -Hn)"

# Logs: rsyslog gives up root, a release forwards to a server (nc) by the rule that syslog-release would write, and does not get
# the agent's lines. Its modules are there.
until_true systemctl is-active --quiet rsyslog
say rsyslog-user "$(ps -o user= -C rsyslogd)"
for module in omrelp lmnsd_gtls; do say "$module" "$(yes_no test -e /usr/lib/x86_64-linux-gnu/rsyslog/$module.so)"; done
nc -lk 127.0.0.1 5140 >received &
server=$!
until_true sh -c 'ss -Hltn sport = :5140 | grep -q .'
# As syslog-release has it: a queue in a directory of syslog's, a UDP port for what programs write to files, the server.
queue=/var/vcap/data/look/buffered
mkdir -p $queue && chown -R syslog:adm $queue
cat >/etc/rsyslog.d/20-look.conf <<END
\$MaxMessageSize 8k
\$WorkDirectory $queue
\$ActionQueueType LinkedList
\$ActionQueueFileName look
\$ActionQueueSaveOnShutdown on
\$ModLoad imudp
\$UDPServerAddress localhost
\$UDPServerRun 514
END
echo '*.* @@127.0.0.1:5140' >/etc/rsyslog.d/35-look.conf
say rsyslog-syntax "$(yes_no rsyslogd -N1)"
service rsyslog restart
echo first-line-$$ | systemd-cat -t bosh-agent
logger --udp --server 127.0.0.1 --port 514 -t look of-a-file-$$
until_true grep -q of-a-file-$$ received
logger -t look second-line-$$
until_true grep -q second-line-$$ received
say forwarded "$(grep -o -e of-a-file -e second-line received | sort -u)"
say forwarded-of-agent "$(grep -c -e bosh-agent -e first-line received)"
until_true grep -q first-line-$$ /var/log/bosh-agent.log
say agent-log "$(grep -o first-line-$$ /var/log/bosh-agent.log | sed 's/-[0-9]*$//')"
until_true grep -q second-line-$$ /var/log/syslog
say time-stamp "$(grep -E -o '^[0-9-]{10}T[0-9:]{8}\.[0-9]{6}\+00:00 [^ ]+ look: second-line' /var/log/syslog | sed 's/.* look/look/')"
say log-files "$(stat -c '%a %U:%G' /var/log/syslog /var/log/bosh-agent.log | sort -u)"
say logs-closed-to-vcap "$(yes_no setpriv --reuid=vcap --regid=vcap --init-groups sh -c '! cat /var/log/syslog')"
kill $server
rm /etc/rsyslog.d/*-look.conf
service rsyslog restart
head -c 6M /dev/zero | tr '\0' x >>/var/log/syslog
say logrotate "$(logrotate /etc/logrotate.conf 2>&1)"
# A line goes to the old file as long as rsyslog has not reopened it.
logged() { logger -t look third-line-$$; grep -q third-line-$$ /var/log/syslog; }
until_true logged
say rotated "$(stat -c '%a %U:%G' /var/log/syslog.1) $(grep -m1 -o third-line /var/log/syslog)"

# What auditors look at.
say set-id "$(find / -xdev -type f -perm /6000 | sort)"
say shadow "$(stat -c '%a %U:%G' /etc/shadow /etc/gshadow | sort -u)"
say sshd "$(sshd -T | grep -E '^(banner|ciphers|macs|permitrootlogin|passwordauthentication) ' | sort)"
say core "$(runuser -u vcap -- sh -c 'ulimit -Hc')"
useradd --groups sudo look
useradd stranger
say min-days "$(chage -l look | sed -n 's/^Minimum.*: //p') $(chage -l vcap | sed -n 's/^Minimum.*: //p')"
echo 'look:Looking-around-1' | chpasswd
say hash "$(getent shadow look | cut -d: -f2 | cut -d'$' -f2)"
become() { # become USER TARGET PASSWORD
  echo "$3" | quietly timeout 60 runuser -u "$1" -- su "$2" -c true
}
say su-of-root "$(yes_no su look -c true)"
say su-of-sudo "$(yes_no become vcap look Looking-around-1)"
say su-of-others "$(yes_no become stranger look Looking-around-1)"
passwd --quiet --delete stranger
say su-without-password "$(yes_no become vcap stranger '')"
for _ in 1 2 3 4 5; do become vcap look wrong; done
say su-when-locked "$(yes_no become vcap look Looking-around-1)"
faillock --user look --reset
say su-when-unlocked "$(yes_no become vcap look Looking-around-1)"
until_true test -e /etc/ssh/ssh_host_ed25519_key.pub
until_true systemctl is-active --quiet ssh
ssh -i "$KEY" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes bosh_look@127.0.0.1 \
  'sudo -n id -u; sudo -n su -c "id -u"; sudo -n su - vcap -c "id -un"' >ssh.out 2>ssh.err </dev/null || true
say ssh "$(cat ssh.out)"
say banner "$(grep -o 'Authorized users only' ssh.err)"
say ssh-errors "$(journalctl -b -q -p err -t sshd -o cat | sort -u)"
say guess "$(grep -c 'password' /etc/pam.d/common-password) $(grep -o pam_pwquality.so /etc/pam.d/common-password) $(yes_no test -e /usr/lib/x86_64-linux-gnu/security/pam_pwquality.so)"

# What only a machine with a kernel of its own has.
say modules "$(for m in usb-storage bluetooth tipc sctp dccp rds cramfs freevxfs jffs2 hfs hfsplus squashfs udf; do quietly modprobe $m && echo $m; done)"
say module-that-may "$(yes_no modprobe isofs)"
say sysctls "$(sysctl -n net.ipv4.conf.default.log_martians net.ipv4.icmp_echo_ignore_broadcasts net.ipv4.icmp_ignore_bogus_error_responses kernel.keys.root_maxkeys)"
say boot "$(grep -o audit=1 /proc/cmdline) $(auditctl -s | grep -o '^enabled .') $(pgrep -x kauditd >/dev/null && echo kauditd)"
say audit-drift "$(agent plan | grep /audit)"
say clock "$(systemctl is-active chrony) $(ps -o user= -C chronyd | sort -u) $(yes_no /var/vcap/bosh/bin/sync-time)"
say secure-boot "$(od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/SecureBoot-* 2>/dev/null)"
