# A power-off in the middle of a trial, with the kubelet's surroundings going first. What goes on in these seconds is
# nobody's fault; what comes up again is what went down. Sourced, once in each boot.
# shellcheck disable=SC2034,SC2154 # what the topics share is named here and there
topic=shutdown
store=/var/lib/kubelet/dynamic-config/supervisor

answers() { # PATH PATTERN: the API server says that
    local said
    exec 3<>/dev/tcp/127.0.0.1/6443 || return 1
    printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&3
    said=$(cat <&3)
    exec 3>&-
    [[ $said = *$2* ]]
}
lease() { answers /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1 renewTime 2>/dev/null; }
# What is on record of the version on trial, but the tries, the breaks of its health, the trial's clock, which stands still while judgement is suspended, and
# what was seen of one kubelet alone.
evidence() {
    sed -n '/^  "phase": {/,/^  }/p' | sed '/"progress": {/,/^ \{6\}},\{0,1\}$/d' | grep -vE '"(tries|breaks|suspended|secs|nanos)":'
}
tries() { sed -n 's/.*"tries": *\([0-9]*\).*/\1/p'; }

before_shutdown() {
    bare kubeadm
    topic=shutdown
    echo STAND_IN_REPORTS=1 >/usr/bin/kubelet.env
    # Started after the kubelet, so stopped before it: first the API server, then the kubelet itself, by a kill.
    cat >/etc/systemd/system/surroundings.service <<UNIT
[Unit]
After=kubelet.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=/bin/bash /suite/surroundings.sh
UNIT
    systemctl daemon-reload
    ok "enable" kubelet-supervisor enable -- --isolation-timeout 2s
    api_server surroundings.service
    systemctl start kubelet surroundings
    ok "the node reports" until_true 60 lease
    assign "maxPods: 50"
    ok "a configuration is on trial" until_true 60 on_trial
    ok "judged by its contact to the API server" until_true 60 shows "Judged by:.*lease good"
    cp $store/state.json /suite/state.before
}

after_shutdown() {
    ok "the surroundings did go while the supervisor was there" eval 'cat /suite/surroundings.out && says "^system: stopping" /suite/surroundings.out'
    ok "judgement was suspended for it" says "judgement is suspended: the system is shutting down" /suite/surroundings.out
    ok "there was never more than one kubelet" says "^kubelets: [01]$" /suite/surroundings.out
    ok "the history has no blame" no_blame
    ok "the attempt is as it was" diff <(evidence <$store/state.json) <(evidence </suite/state.before)
    ok "and no try is spent" eval 'is "$(tries <$store/state.json)" 0'
    systemctl start api-server && systemctl start kubelet
    ok "what went down comes up: on trial" until_true 60 on_trial
    ok "and it is that configuration" eval 'shows "^Assigned: *kube-system/pool" && shows "^Active: *as assigned"'
    ok "still no blame" no_blame
    systemctl stop kubelet
}

if [ ! -e /suite/second-boot ]; then
    before_shutdown
else
    after_shutdown
fi
