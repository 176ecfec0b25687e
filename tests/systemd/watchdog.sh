# WatchdogSec= in the unit: a kubelet that hangs is restarted by systemd, with its supervisor, and runs on what is last
# known good; nothing is held against that. Sourced.
# shellcheck disable=SC2034,SC2154 # what the topics share is named here and there

bare kubeadm
topic=watchdog
# One that pings, as since 1.32.
printf 'STAND_IN_STYLE=1.36\nSTAND_IN_REPORTS=1\n' >/usr/bin/kubelet.env
printf '[Service]\nWatchdogSec=3\n' >/etc/systemd/system/kubelet.service.d/40-watchdog.conf
ok "enable" kubelet-supervisor enable -- --trial-duration 2s
api_server
ok "start" systemctl start kubelet
assign "maxPods: 50"
ok "a configuration is last known good" until_true 60 shows "^Last known good: *as assigned"
pinged() { [ "$(property WatchdogTimestampMonotonic)" -gt "$1" ]; }
pings() { pinged $(($1 + 6000000)); } # longer than WatchdogSec
ok "while it pings" until_true 30 pings "$(property WatchdogTimestampMonotonic)"
ok "nothing is restarted" is "$(property NRestarts)" 0

# The configuration that the kubelet was given, and what the supervisor says of it.
given() { tr '\0' '\n' <"/proc/$(kubelet_pids)/cmdline" | sed -n 's/^--config=//p' | tail -n 1; }
config=$(given) digest=$(sha256sum "$(given)")
ok "it is that configuration" says '"maxPods": *50' "$config"
before=$(kubelet_pids) supervisor=$(property MainPID)
kill -STOP "$before"
ok "it hangs: systemd restarts the unit" until_true 60 eval '[ "$(property NRestarts)" = 1 ]'
ok "it hangs: for the watchdog" eval 'journalctl -u kubelet --no-pager >/tmp/journal; says "Watchdog timeout" /tmp/journal'
ok "it hangs: it is gone, with its supervisor" until_true 30 eval 'gone "$before" && gone "$supervisor"'
ok "another one is ready" until_true 60 eval 'another_kubelet "$before" && ready'
ok "there is one kubelet" one_kubelet
ok "with the same configuration" is "$(sha256sum "$(given)")" "$digest"
ok "which is active" shows "^Active: *as assigned"
ok "and last known good" shows "^Last known good: *as assigned"
ok "nothing is marked bad" eval 'kubelet-supervisor status -o json | tr -d " \n" >/tmp/status; says "\"badVersions\":\[\]" /tmp/status'
ok "the history has no blame" no_blame
ok "it is watched as the one before" until_true 30 pings "$(property WatchdogTimestampMonotonic)"
ok "and not restarted again" is "$(property NRestarts)" 1
systemctl stop kubelet api-server
rm /usr/bin/kubelet.env
