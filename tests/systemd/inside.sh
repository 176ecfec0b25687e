#!/bin/bash
# Runs inside the container, as a service of its systemd; once in each of its two boots.
set -uo pipefail
cd /suite || exit
# shellcheck source=tests/systemd/lib.sh
. ./lib.sh
topics=$(<topics)
topics=${topics:-units package watchdog shutdown}
if [ -e second-boot ]; then
    topics=shutdown
else
    install -m 755 /suite/kubelet-supervisor /usr/bin/
fi
for name in $topics; do
    # shellcheck source=/dev/null
    . "./$name.sh"
done
# The first boot's counts go along into the second.
echo "$passed $failed" >>counts
if [ ! -e second-boot ] && [[ $topics = *shutdown* ]]; then
    touch again
    exit 0
fi
read -r passed failed < <(awk '{ passed += $1; failed += $2 } END { print passed, failed }' counts)
# Once more, where the end of a long log is all that is seen.
[ ! -e failures ] || cat failures
echo "test result: $([ "$failed" = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed"
[ "$failed" = 0 ] && echo ok >verdict
