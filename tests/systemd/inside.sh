#!/bin/bash
# Runs inside the container, as a service of its systemd; once a boot.
set -uo pipefail
cd /suite
# shellcheck source=tests/systemd/lib.sh
. ./lib.sh
if [ ! -e /suite/second-boot ]; then
    install -m 755 /suite/kubelet-supervisor /usr/bin/
    for name in ${SUITE_TOPICS:-units}; do
        # shellcheck source=/dev/null
        . "./$name.sh"
    done
fi
summary
