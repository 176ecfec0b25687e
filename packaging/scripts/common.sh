# What the packages' scripts share. It goes in front of each of them; POSIX sh.
#
# Nothing here starts, stops or restarts a unit: a package that is unpacked on ten thousand nodes at night must not
# restart ten thousand kubelets. The new version takes over beside a kubelet that goes on.
program=/usr/bin/kubelet-supervisor
store=/var/lib/kubelet/dynamic-config

say() { echo "kubelet-supervisor: $*"; }

# True if an ExecStart of the file has this package's program: behind launchers, in a shell's quotes, or by a link. Another binary, such as one
# in /opt, is not this package's.
names_program() { # FILE
    grep -qs kubelet-supervisor "$1" || return 1
    # Lines that go on are one; quotes, and what else can stand before or behind a path, are blanks.
    words=$(sed -e ':a' -e '/\\$/{N;s/\\\n/ /;ta' -e '}' "$1" |
        sed -n "s/^[[:space:]]*ExecStart[[:space:]]*=[-@:+!]*//;T;s/[\"'\`=<>,;&|(){}\\\\]/ /g;p")
    set -f # words, not patterns
    for word in $words; do
        case $word in
        /*kubelet-supervisor*) if [ "$(readlink -f "$word")" = "$(readlink -f "$program")" ]; then set +f && return 0; fi ;;
        esac
    done
    set +f
    return 1
}

# Units that `kubelet-supervisor enable` was called for.
enabled_units() {
    for file in /etc/systemd/system/*.service.d/zz-kubelet-supervisor.conf; do
        if names_program "$file"; then basename "$(dirname "$file")" .d; fi
    done
}

installed() {
    say "not in use yet: kubelet-supervisor enable, then systemctl restart kubelet"
}

upgraded() {
    for unit in $(enabled_units); do
        # Such as a store that others can change.
        if [ -d /run/systemd/system ] && ! why=$("$program" enable --dry-run --unit "$unit" 2>&1 >/dev/null); then
            say "nothing was restarted; before the new version runs this is to be mended: $why"
            continue
        fi
        if [ ! -d /run/systemd/system ] || ! systemctl is-active -q "$unit"; then continue; fi
        if [ "$(systemctl show -p CanReload --value "$unit")" = yes ] && systemctl reload "$unit"; then
            say "the new version takes over (systemctl reload ${unit%.service}); the kubelet was not restarted"
        else
            say "nothing was restarted: the old supervisor runs on until systemctl restart ${unit%.service} (pods keep running)"
        fi
    done
}

# Before the binary goes: a unit that names it would have no kubelet after the next boot.
give_back() {
    ours=zz-kubelet-supervisor.conf
    left=
    for dir in /etc/systemd/system /etc/systemd/system.control /run/systemd/system /usr/local/lib/systemd/system /usr/lib/systemd/system; do
        for file in "$dir"/*.service "$dir"/*.service.d/*.conf; do
            case $file in "/etc/systemd/system/"*"/$ours") continue ;; esac
            if names_program "$file"; then left="$left $file"; fi
        done
    done
    if [ -n "$left" ]; then
        say "not removed: these still name it, and the kubelet would not start any more; change them first:$left" >&2
        exit 1
    fi
    for unit in $(enabled_units); do
        if ! "$program" disable --unit "$unit"; then
            # As in an image that is not booted. Whatever fails here ends the removal: the unit names the program.
            rm -f "/etc/systemd/system/$unit.d/$ours"
            rmdir "/etc/systemd/system/$unit.d" 2>/dev/null || true
            [ ! -d /run/systemd/system ] || systemctl daemon-reload
            say "removed the drop-in of $unit"
        fi
    done
    # Also what an earlier removal left: systemd knows a unit as it read it last.
    if [ -d /run/systemd/system ] && systemctl show -p ExecStart '*.service' 2>/dev/null | grep -q "path=$program "; then
        systemctl daemon-reload
    fi
}

# What only a supervisor reads goes. store/ stays where it holds anything: it has the layout of native
# dynamic configuration and may be a kubelet's own.
purge_store() {
    [ -d "$store/supervisor" ] || return 0
    if in_use; then
        say "$store is kept: the kubelet runs with files in there until it is restarted (systemctl restart kubelet)"
        say "afterwards: rm -r $store/supervisor"
        return 0
    fi
    rm -rf "$store/supervisor"
    if [ -z "$(find "$store/store" -type f -size +0 2>/dev/null)" ]; then
        rm -rf "$store/store"
    fi
    if [ -e "$store/store" ]; then
        say "$store/store is kept: it holds configurations in native's layout (rm -r $store, if no kubelet is to have them)"
    fi
    rmdir "$store" 2>/dev/null || true
}

# A supervisor holds the lock, or a kubelet has a file in there as its --config.
in_use() {
    if [ -e "$store/supervisor/lock" ] && ! flock -n "$store/supervisor/lock" true; then
        return 0
    fi
    # The brackets, so that it does not find itself.
    grep -qs -- "$store/supervisor/[c]onfigs/" /proc/[0-9]*/cmdline
}
