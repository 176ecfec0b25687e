#!/usr/bin/env bash
# All tests, from fast to real; last a table of the steps with their times. As root on Debian 12 it installs
# what it needs; elsewhere, suites whose prerequisites are missing are skipped, and say so. With CI set, a
# missing prerequisite is a failure.
#
#   tests/run.sh              everything
#   tests/run.sh fast         without the slow suites (real kubelet, oracle, tours, systemd, image, power) and without the next
#   tests/run.sh randomized   long simulations and fuzzing, which need only the processor: everything has them in the background
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${KUBELET_SUPERVISOR_CACHE:-/var/cache/kubelet-supervisor}
[ -w "$(dirname "$cache")" ] || [ -w "$cache" ] || cache=$HOME/.cache/kubelet-supervisor
export KUBELET_SUPERVISOR_CACHE=$cache
# In CI all is built once, and nothing twice. A panic names its line without line tables, and forty test binaries link sooner.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
# New inputs are found by long runs by hand; here it is seen that nothing is found at once.
export FUZZ_SECONDS=${FUZZ_SECONDS:-10}

mode=${1:-everything}
case $mode in everything | fast | randomized) ;; *) sed -n '6,8s/^# *//p' tests/run.sh >&2 && exit 64 ;; esac

# A suite that fails does not hide what the next ones say.
failed=()
table='' randomized_pid=''
step() {
    local begun=$SECONDS result=ok
    printf '\n=== %s\n' "$*"
    # In a shell of its own, so that `set -e` holds in functions, which a condition would switch off.
    set +e
    (set -e; "$@")
    [ $? = 0 ] || { result=FAILED; failed+=("$*"); }
    set -e
    table+=$(printf '%6d s  %-6s  %s' $((SECONDS - begun)) "$result" "$*")$'\n'
    printf '=== %s in %s s: %s\n' "$result" $((SECONDS - begun)) "$*"
}
finish() {
    join_randomized
    printf '\n%s%6d s  in all\n' "$table" "$SECONDS"
    [ ${#failed[@]} = 0 ] && exit 0
    printf 'FAILED: %s\n' "${failed[@]}" >&2
    exit 1
}

missing() {
    echo "SKIPPED: $*"
    [ -z "${CI:-}" ] || { echo "in CI this is a failure" >&2; exit 1; }
}

provide() { # COMMAND PACKAGE...: as root on Debian; elsewhere whoever needs it says that it is missing
    if ! command -v "$1" >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${@:2}"; } || echo "cannot be installed: ${*:2}"
    fi
}
# A linker is all the build needs beyond the Rust toolchain. libFuzzer is C++; tests/fuzz/run.sh would install g++ itself, but
# in the background it would meet another apt-get.
provide cc gcc libc6-dev
[ "$mode" = fast ] || provide c++ g++
# The tests of signatures sign with the real tool, those of pools run the health script of Argo CD.
for tool in minisign lua5.1 shellcheck; do provide $tool $tool; done
# Programs of Go that end as kubelets do.
provide go golang-go

deny() {
    local tool=$cache/tools/bin/cargo-deny
    command -v cargo-deny >/dev/null && tool=cargo-deny
    if [ "$tool" != cargo-deny ] && [ ! -x "$tool" ]; then
        cargo install --quiet --locked --debug --root "$cache/tools" cargo-deny || { missing "cargo-deny cannot be installed"; return 0; }
    fi
    "$tool" --log-level error check bans licenses sources
}

# Those of a package's life are in one file with others, and for sh; zsh's own it does not know.
shellcheck_scripts() {
    command -v shellcheck >/dev/null || { missing "shellcheck cannot be installed"; return 0; }
    find .ci/run tests packaging examples -path packaging/scripts -prune -o \( -name '*.sh' -o -path .ci/run \) -print0 |
        xargs -0 shellcheck --severity=warning --external-sources --shell=bash
    shellcheck --severity=warning --shell=sh packaging/scripts/*.sh packaging/plugin/kubectl_complete-kubelet_config
}

# Suites are found, so that a new one cannot be forgotten. One with `test = false` in a Cargo.toml is slow: it runs by its
# name alone. Of a script, a line that begins with "# Slow:" or "# Randomized:" says what it is.
slow=$(cargo metadata --no-deps --locked --format-version 1 | grep -o '{"kind":\["test"\][^{}]*"test":false[^{}]*}' | sed 's/.*"name":"\([^"]*\)".*/\1/' || true)
[ -n "$slow" ] || { echo "cargo metadata names no slow suite: the real one at least must be there" >&2; exit 1; }
scripts() { # Fast|Slow|Randomized
    local script
    for script in tests/*/run.sh; do
        [ "$(grep -m 1 -oE '^# (Slow|Randomized):' "$script" || echo '# Fast:')" != "# $1:" ] || echo "$script"
    done
}

# New worlds with every commit; without git, others. One in some thousand may still break a law (docs/development/testing.md), so
# what is found here is told and fails nothing; it belongs in FAILED_ONCE, with what it shows mended.
simulate_new_worlds() {
    local commit
    commit=$(git rev-parse --verify HEAD 2>/dev/null || date +%s)
    env SIM_SURVEY=300 "SIM_COMMIT=$commit" cargo test --quiet --locked --test simulation || echo "A new world breaks a law: see above."
}
# As with new worlds: an input that chance found is told.
fuzz() { # SCRIPT
    local status=0
    "$1" || status=$?
    [ $status != 3 ] || { echo "A new input shows something: see above."; status=0; }
    return $status
}
# Beside the slow suites, which mostly wait, at nice 19. With autogroups (sched(7)) that counts within a session alone, so it
# gets a session of its own, with the same niceness.
start_randomized() {
    randomized_log=$(mktemp)
    setsid sh -c '(echo 19 >/proc/self/autogroup) 2>/dev/null; exec nice -n 19 tests/run.sh randomized' >"$randomized_log" 2>&1 </dev/null &
    randomized_pid=$!
    trap leave_randomized EXIT
}
leave_randomized() {
    local group
    for group in $(jobs -pr); do # what still runs: another number may be somebody else's by now
        kill -- "-$group" || true
        tail -n 20 "$randomized_log"
    done
    rm -f "$randomized_log"
}
join_randomized() {
    [ -n "$randomized_pid" ] || return 0
    local begun=$SECONDS result=ok
    printf '\n=== beside the others: tests/run.sh randomized\n'
    wait "$randomized_pid" || { result=FAILED; failed+=("tests/run.sh randomized"); }
    cat "$randomized_log"
    table+=$(printf '%6d s  %-6s  waiting for tests/run.sh randomized' $((SECONDS - begun)) "$result")$'\n'
}

if [ "$mode" = randomized ]; then
    step env SIM_TARGET=4000000 cargo test --locked --test simulation
    # Each fault of the core is caught by its law. It builds, which others would wait for: by now the real suite runs, for long.
    step env SIM_MUTANTS=1 cargo test --locked --test simulation
    step simulate_new_worlds
    for script in $(scripts Randomized); do
        step fuzz "$script"
    done
    finish
fi

step cargo fmt --check
step shellcheck_scripts
step cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
# shellcheck disable=SC2046,SC2086 # names without spaces; --all-targets leaves out what has `test = false`
step cargo clippy --locked --quiet --workspace $(printf -- '--test %s ' $slow) -- -D warnings
step cargo build --locked --quiet --workspace --all-targets
[ ${#failed[@]} = 0 ] || finish
# The README's first look tells by its exit code whether all went as it says.
step cargo run --locked --quiet --example demo
# What `cargo test --workspace` runs, each suite with its summary.
step cargo test --locked --workspace --no-fail-fast
for script in $(scripts Fast); do
    step "$script"
done
step deny
[ "$mode" = everything ] || finish
start_randomized
for suite in $slow; do
    step cargo test --locked --workspace --test "$suite"
done
# Names are compared with kubectl's; where there is none, the real suite has built one by now.
if [ -n "${CI:-}" ] && ! command -v kubectl >/dev/null; then
    binaries=$(tests/real/prepare.sh)
    KUBECTL=$binaries/kubectl step cargo test --locked -p kubectl-plugin --test plugin a_hundred_names
fi
# The README's tour tells by its exit code, too, and leaves nothing running; it takes the supervisor that was built for the tests.
cluster_processes() {
    local name
    for name in etcd containerd containerd-shim kube-apiserver kubelet kubelet-supervi; do pgrep -x $name || [ $? = 1 ]; done | sort
}
tour() { # STATUS SUPERVISOR [--modern]
    local status=0 before
    before=$(cluster_processes)
    SUPERVISOR_BINARY=$2 examples/tour.sh "${@:3}" || status=$?
    [ "$status" != 77 ] || { missing "the tour"; return 0; }
    [ "$status" = "$1" ] || return 1
    local left i
    for ((i = 0; i < 50; i++)); do # what was killed takes a moment
        left=$(comm -13 <(echo "$before") <(cluster_processes))
        [ -n "$left" ] || return 0
        sleep 0.2
    done
    echo "the tour left these running: $left"
    return 1
}
step tour 0 "${CARGO_TARGET_DIR:-target}/debug/kubelet-supervisor"
step tour 0 "${CARGO_TARGET_DIR:-target}/debug/kubelet-supervisor" --modern
# What is not as it says must end it: here a supervisor that ends at once.
step tour 1 /bin/false --modern
for script in $(scripts Slow); do
    step "$script"
done
finish
