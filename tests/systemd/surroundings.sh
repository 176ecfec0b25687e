#!/bin/bash
# The last seconds of a machine as a supervisor sees them: the API server is gone already; longer than the supervisor
# lets a node be cut off at other times, then the kubelet dies.
cd /suite && . ./lib.sh
{
    echo "system: $(systemctl is-system-running)"
    sleep 5 # --isolation-timeout is 2 s
    kubelet-supervisor status
    kill -9 "$(kubelet_pids)"
    sleep 3 # a restart takes a fraction of one
    echo "kubelets: $(kubelets)"
    kubelet-supervisor status
    kubelet-supervisor history
} >/suite/surroundings.out 2>&1
