#!/usr/bin/env bash
# All tests, from fast to real. As root on Debian 12 it installs what it needs; elsewhere, suites
# whose prerequisites are missing are skipped, and say so. With CI set, a missing prerequisite is a
# failure.
#
#   tests/run.sh          everything
#   tests/run.sh fast     without the real kubelet and without systemd
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${KUBELET_SUPERVISOR_CACHE:-/var/cache/kubelet-supervisor}
[ -w "$(dirname "$cache")" ] || [ -w "$cache" ] || cache=$HOME/.cache/kubelet-supervisor
export KUBELET_SUPERVISOR_CACHE=$cache

# A suite that fails does not hide what the next ones say.
failed=()
step() {
    local begun=$SECONDS result=done
    printf '\n=== %s\n' "$*"
    # In a shell of its own, so that `set -e` holds in functions, which a condition would switch off.
    set +e
    (set -e; "$@")
    [ $? = 0 ] || { result=FAILED; failed+=("$*"); }
    set -e
    printf '=== %s in %s s: %s\n' "$result" $((SECONDS - begun)) "$*"
}
finish() {
    [ ${#failed[@]} = 0 ] && exit 0
    printf '\nFAILED: %s\n' "${failed[@]}" >&2
    exit 1
}

missing() {
    echo "SKIPPED: $*"
    [ -z "${CI:-}" ] || { echo "in CI this is a failure" >&2; exit 1; }
}

# A linker is all the build needs beyond the Rust toolchain.
if ! command -v cc >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y gcc libc6-dev
fi

deny() {
    local tool=$cache/tools/bin/cargo-deny
    command -v cargo-deny >/dev/null && tool=cargo-deny
    if [ "$tool" != cargo-deny ] && [ ! -x "$tool" ]; then
        cargo install --quiet --locked --root "$cache/tools" cargo-deny || { missing "cargo-deny cannot be installed"; return 0; }
    fi
    "$tool" --log-level error check bans licenses sources
}

step cargo fmt --check
step cargo clippy --locked --quiet --workspace --all-targets --test real -- -D warnings
step cargo build --locked --quiet --workspace --all-targets
[ ${#failed[@]} = 0 ] || finish
# The README's first look tells by its exit code whether all went as it says.
step cargo run --locked --quiet --example demo
# Unit, property, architecture and system tests, each file with its summary.
fast=(architecture behaviour cluster credentials docs failopen machine_props on_disk plugin reloaded restarted selftest trial turns)
step cargo test --locked --workspace --no-fail-fast --lib "${fast[@]/#/--test=}"
# Ten million steps and the mutants; hours of two hundred supervisors: built optimized.
step cargo test --locked --workspace --no-fail-fast --profile sim --test crash --test rollout --test simulation
# These mostly wait for processes: more of them at once than there are cores.
step cargo test --locked --test system -- --test-threads=6
step tests/prometheus/run.sh
step deny
[ "${1:-all}" != fast ] || finish
step cargo test --locked --test real
# Names are compared with kubectl's; where there is none, the real suite has built one by now.
if [ -n "${CI:-}" ] && ! command -v kubectl >/dev/null; then
    binaries=$(tests/real/prepare.sh)
    KUBECTL=$binaries/kubectl step cargo test --locked -p kubectl-plugin --test plugin a_hundred_names
fi
step tests/systemd/run.sh
finish
