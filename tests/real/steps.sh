# How a script says what it is at, on standard error. Sourced by scripts with `set -euo pipefail`.
#
#   step WHAT COMMAND...   runs it; WHAT is said as it begins, and how long it took when it ends
#
# What the command says goes to the file $step_log, which is named, and whose end is shown if the command fails; the last line
# then says what failed. On a terminal the seconds are counted while it runs; elsewhere each step has two lines.
step_log=/dev/null named_log=/dev/null

microseconds() { echo "${EPOCHREALTIME//[!0-9]/}"; } # the locale chooses what stands between
since() { # MICROSECONDS: the time that has passed
    local tenths=$((($(microseconds) - $1) / 100000))
    if [ $tenths -lt 600 ]; then echo "$((tenths / 10)).$((tenths % 10)) s"; else echo "$((tenths / 600)) min $((tenths / 10 % 60)) s"; fi
}
# One line can be written over and over, without an escape sequence: it only grows, and does not reach the right margin.
counts() { # WHAT
    local columns
    [ -t 2 ] && [ "${TERM:-dumb}" != dumb ] || return 1
    columns=$(stty size <&2 2>/dev/null | cut -d' ' -f2)
    [ $((${#1} + 24)) -lt "${columns:-0}" ]
}
count() { # WHAT BEGUN: until it is killed, or has nobody to count for
    while sleep 1 && kill -0 $$ 2>/dev/null; do printf '\r  ... %s (%s)' "$1" "$(since "$2")" >&2; done
}

step() { # WHAT COMMAND...
    local what=$1 begun status counter=
    shift
    [ "$step_log" = "$named_log" ] || { named_log=$step_log && echo "      log: $step_log" >&2; }
    begun=$(microseconds)
    printf '  ... %s' "$what" >&2
    if counts "$what"; then count "$what" "$begun" </dev/null >/dev/null & counter=$!; else echo >&2; fi
    # In a shell of its own, so that `set -e` holds in functions, which a condition would switch off.
    set +e
    (set -e && "$@") </dev/null >>"$step_log" 2>&1
    status=$?
    set -e
    if [ -n "$counter" ]; then
        kill "$counter" 2>/dev/null || true
        wait "$counter" 2>/dev/null || true
        printf '\r' >&2
    fi
    if [ $status = 0 ]; then
        printf '  ok  %s (%s)\n' "$what" "$(since "$begun")" >&2
        return 0
    fi
    printf '  FAILED: %s (%s); %s ends:\n' "$what" "$(since "$begun")" "$step_log" >&2
    tail -n 40 "$step_log" | sed 's/^/      /' >&2
    echo "  FAILED: $what, status $status; all that was said: $step_log" >&2
    return $status
}

# What a real node and its API server need.
# shellcheck disable=SC2034 # by those who source this
run_packages=(etcd-server containerd runc iptables conntrack ethtool socat containernetworking-plugins busybox-static
    openssl jq curl iproute2 systemd-container)

# Lists which of the packages are not installed.
missing() {
    local p
    for p; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
}

updated=
apt_update() {
    [ -z "$updated" ] || return 0
    step "reading Debian's lists of packages" apt-get -q update
    updated=yes
}

install_packages() { # PACKAGE...: those that are missing
    local want
    mapfile -t want < <(missing "$@")
    [ ${#want[@]} -gt 0 ] || return 0
    apt_update
    echo "      Debian packages: ${want[*]}" >&2
    DEBIAN_FRONTEND=noninteractive step "installing ${#want[@]} Debian packages" apt-get -q install -y --no-install-recommends "${want[@]}"
}
