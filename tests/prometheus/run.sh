#!/usr/bin/env bash
# Rules, metrics and board against Debian's own Prometheus: promtool checks and tests the rules, then a Prometheus scrapes real
# supervisors and answers each query of the board, and promtool checks what they show. The package is unpacked and not installed: no service of this machine
# is touched.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)

skip() {
    echo "SKIPPED: prometheus suite: $*"
    [ -z "${CI:-}" ] || { echo "in CI this is a failure" >&2; exit 1; }
    exit 0
}
cache=${KUBELET_SUPERVISOR_CACHE:-$HOME/.cache/kubelet-supervisor}
unpacked=$cache/tools/prometheus
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
    tools=$(dirname "$(command -v promtool)")
else
    tools=$unpacked/usr/bin
    if [ ! -x "$tools/promtool" ]; then
        command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no prometheus, and no apt-get to get it with"
        # Only root can bring the lists up to date; others take what is there.
        [ "$(id -u)" != 0 ] || apt-get -qq update || true
        (cd "$work" && apt-get -qq download prometheus >/dev/null 2>&1) || skip "apt-get download prometheus does not work"
        dpkg-deb -x "$work"/prometheus_*.deb "$work/prometheus"
        mkdir -p "$(dirname "$unpacked")"
        mv -T "$work/prometheus" "$unpacked"
    fi
fi
"$tools/promtool" --version 2>&1 | head -n 1
"$tools/promtool" check rules "$top/packaging/prometheus/rules.yaml"
"$tools/promtool" test rules "$here/rules.test.yaml"
# Debian's build knows no Kubernetes; the rest of the scrape configuration can be checked.
sed '/^  kubernetes_sd_configs:/,/^  relabel_configs:/{/^  relabel_configs:/!d}' "$top/packaging/prometheus/scrape.yaml" >"$work/scrape.yaml"
"$tools/promtool" check config --syntax-only "$work/scrape.yaml"
cd "$top"
PROMETHEUS=$tools/prometheus PROMTOOL=$tools/promtool cargo test --locked --test board
