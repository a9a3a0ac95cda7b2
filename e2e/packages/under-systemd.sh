# What the package does under systemd: see systemd.sh.
set -eu
export DEBIAN_FRONTEND=noninteractive
cd /story
say() { echo "story: $*"; }
userdel evenkeel 2>/dev/null || true

say install
dpkg -i evenkeel_*.deb evenkeel-bin_*.deb
systemctl is-active evenkeel
main() { systemctl show -p MainPID --value evenkeel; }
status() { grep "^$1:" "/proc/$(main)/status" | tr '\t' ' '; }
status Uid | grep " $(id -u evenkeel) "
status CapEff | grep 0000000000000400
status NoNewPrivs | grep 1
status Seccomp | grep 2
curl -s http://127.0.0.1:9900/metrics | grep ^process_open_fds

say reload
cat >> /etc/evenkeel/evenkeel.toml <<'END'
[access_log]
output = "/var/log/evenkeel/access.log"
[rule.web]
listen = "127.0.0.1:80"
protocol = "http"
members = ["127.0.0.1:1"]
END
systemctl reload evenkeel
# Asked until it is logged: a reload puts the log into effect after the rules.
for i in $(seq 300); do
  curl -s -o /dev/null http://127.0.0.1:80/ && grep -q '"rule":"web"' /var/log/evenkeel/access.log && break
  sleep 0.1
done
grep '"rule":"web"' /var/log/evenkeel/access.log

say console
# As it is installed, it cannot be changed by the API, which says so before somebody tries.
curl -s http://127.0.0.1:9900/v1/config | grep '"unwritable":"/etc/evenkeel/evenkeel.toml: Permission denied.*Changes by the console'
# What the manual says under "Changes by the console".
dpkg-deb --fsys-tarfile evenkeel-bin_*.deb | tar -xO --wildcards '*/service.md*' | zcat -f > /tmp/service.md
sed -n '/^### Changes by the console/,/^## /p' /tmp/service.md | sed -n 's/^# //p' > /tmp/steps
[ "$(wc -l < /tmp/steps)" = 5 ]
bash -eux /tmp/steps
curl -s http://127.0.0.1:9900/v1/config | grep -q '"unwritable":null'
evenkeel ctl config set rule.web.max_connections 77
grep "max_connections = 77" /etc/evenkeel/evenkeel.toml
[ "$(stat -c %U:%G:%a /etc/evenkeel/evenkeel.toml)" = evenkeel:evenkeel:640 ]

say rotate
logrotate -f /etc/logrotate.d/evenkeel
[ "$(stat -c %U /var/log/evenkeel/access.log.1)" = evenkeel ]
for i in $(seq 300); do [ -e /var/log/evenkeel/access.log ] && break; sleep 0.1; done
[ "$(stat -c %U /var/log/evenkeel/access.log)" = evenkeel ]

say upgrade
before=$(main)
# Clients come all the time: none may be refused. (The member is not there: an answer says so.)
(while [ ! -e /tmp/enough ]; do curl -s -o /dev/null http://127.0.0.1:80/ || echo "curl: $?" >> /tmp/lost; done) &
dpkg -i new/evenkeel_*.deb new/evenkeel-bin_*.deb > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
touch /tmp/enough
wait $!
cat /tmp/said
if grep "is restarted" /tmp/said; then systemctl status evenkeel; exit 1; fi
if [ -e /tmp/lost ]; then cat /tmp/lost; exit 1; fi
systemctl is-active evenkeel
echo "main process: $before before, $(main) now"
[ "$(main)" != "$before" ]
[ "/proc/$(main)/exe" -ef /usr/bin/evenkeel ]
curl -s -o /dev/null http://127.0.0.1:80/

say agent
dpkg -i new/evenkeel-agent_*.deb
if systemctl is-active evenkeel-agent; then echo "it runs before it is configured"; exit 1; fi
systemctl start evenkeel-agent
systemctl is-active evenkeel-agent
grep Seccomp "/proc/$(systemctl show -p MainPID --value evenkeel-agent)/status" | grep 2
systemctl reload evenkeel-agent
systemctl stop evenkeel-agent
systemctl show -p Result evenkeel-agent | grep success

say restart
systemctl restart evenkeel
systemctl is-active evenkeel
systemctl stop evenkeel
systemctl show -p Result evenkeel | grep success

say purge
dpkg --purge evenkeel evenkeel-agent evenkeel-bin
[ ! -e /etc/evenkeel ] && [ ! -e /var/lib/evenkeel ]
say end
