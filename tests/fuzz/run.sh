#!/usr/bin/env bash
# Randomized: each target of tests/fuzz for a while under libFuzzer, two at a time, from its corpus on; a line for each.
#
#   tests/fuzz/run.sh                          all targets, a minute each
#   FUZZ_SECONDS=3600 tests/fuzz/run.sh unit   this one, for an hour
#   tests/fuzz/run.sh unit records             these two
#   tests/fuzz/run.sh unit FILE                this one with this input alone: what an input that was found does
#
# The exit code is 3 if an input was found that shows something.
# FUZZ_WORK (default target/fuzz/work) keeps, by target, the log, inputs that found something (crash-…, oom-…, timeout-…)
# and, in new/, all inputs that reached what the corpus does not.
set -euo pipefail
cd "$(dirname "$0")/../.."

# libFuzzer comes as C++ source with its crate.
if ! command -v c++ >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y g++
    else
        echo "SKIPPED: there is no C++ compiler (apt-get install g++)"
        [ -z "${CI:-}" ] || { echo "in CI this is a failure" >&2; exit 1; }
        exit 0
    fi
fi

# The counters are LLVM's, which the stable toolchain can be told to insert. With --target they are for the code alone,
# and neither for build scripts nor for macros, which libFuzzer is not linked to.
host=$(rustc -vV | sed -n 's/^host: //p')
coverage='-Cpasses=sancov-module'
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage+=" -Cllvm-args=-sanitizer-coverage-$option"
done
RUSTFLAGS="$coverage --cfg fuzzing -Cdebug-assertions -Coverflow-checks" CARGO_INCREMENTAL=0 \
    cargo build --locked --quiet --package fuzz --bin fuzz --features engine --target "$host" --target-dir target/fuzz
fuzz=$PWD/target/fuzz/$host/debug/fuzz
work=${FUZZ_WORK:-target/fuzz/work}
mkdir -p "$work"
work=$(realpath "$work")
# What targets write, in memory: a disk that is busy is no finding.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A thousand times what a node's own files take; the 30 s are the clock's, on a machine that has other work. Without the
# address sanitizer, which safe code does not need, libFuzzer sees what the process has, not each allocation.
limits=(-timeout=30 -rss_limit_mb=1024 -max_len=16384)

run() { # TARGET: a line, and more if it found something
    local target=$1 dir=$work/$1 status=0 crash
    rm -rf "$dir"
    mkdir -p "$dir/new" "$scratch/$target"
    FUZZ_TARGET=$target TMPDIR=$scratch/$target "$fuzz" "${limits[@]}" -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 \
        -artifact_prefix="$dir/" "$dir/new" "tests/fuzz/corpus/$target" >"$dir/log" 2>&1 || status=$?
    rm -rf "${scratch:?}/$target"
    awk -v target="$target" -v status="$status" '
        / cov: [0-9]+/ { for (i = 1; i < NF; i++) if ($i == "cov:") coverage = $(i + 1) }
        /^stat::number_of_executed_units/ { executions = $2 }
        /^#[0-9]+/ { last = substr($1, 2) }
        /^stat::peak_rss_mb/ { memory = $2 }
        END { printf "%-10s %9d executions, %6d points reached, %4d MiB: %s\n", target, executions ? executions : last,
              coverage, memory, status == 0 ? "ok" : "FOUND" }' "$dir/log"
    [ "$status" != 0 ] || return 0
    grep -m 3 -A 3 -E '^thread .* panicked|^==[0-9]+== ?(ERROR|libFuzzer)' "$dir/log" | cut -c 1-600 || tail -n 5 "$dir/log"
    crash=$(find "$dir" -maxdepth 1 -type f ! -name log | head -n 1)
    if [ -n "$crash" ]; then
        echo "  input (base64, the first 3,000 bytes): $(head -c 3000 "$crash" | base64 -w 0)"
        echo "  again: tests/fuzz/run.sh $target $crash"
    else
        echo "  no input was written: the process was killed, or its stack ran out; the log is $dir/log"
    fi
    return 1
}

if [ $# = 2 ] && [ ! -d "tests/fuzz/corpus/$2" ]; then
    FUZZ_TARGET=$1 TMPDIR=$scratch "$fuzz" "${limits[@]}" "$2"
    exit
fi
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
failed=0
export -f run
export fuzz work scratch FUZZ_SECONDS
printf '%s\n' "${targets[@]}" | xargs -n 1 -P 2 bash -c "set -euo pipefail; limits=(${limits[*]}); run \"\$0\"" || failed=3
exit "$failed"
