#!/usr/bin/env bash
# A command as root in a virtual machine of Debian 12, whose kernel has cgroup v2 alone, as every distribution of today:
#
#   tests/real/vm.sh COMMAND [ARGUMENT]...
#
#   tests/real/vm.sh tests/real/kubeadm.sh                     a node as kubeadm sets one up, from install to removal
#   tests/real/vm.sh TESTS 'assign [labels]'                   TESTS: what `cargo test --no-run --test real` says it made
#
# By hand: qemu computes each instruction, some ten times slower. Its disk is thrown away; of this machine it sees a copy
# of what git knows of this tree, of the cache of prepare.sh and of what was built (target/debug and target/packages), all
# under their paths here. It has no network. As root on Debian 12. The exit status is the command's.
#
# VM_SECONDS (7200): the longest it may take.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")
# shellcheck source=tests/real/steps.sh
. "$here/steps.sh"
[ $# -gt 0 ] || { sed -n '2,7s/^# *//p' "$0" >&2; exit 64; }
unavailable() { echo "vm.sh: prerequisite missing: $*" >&2; exit 77; }
[ "$(id -u)" = 0 ] || unavailable "must be root"

binaries=$("$here/prepare.sh")
cache=$(dirname "$binaries")
work=$(mktemp -d "$cache/.vm.XXXXXX")
step_log=$cache/vm.log
: >"$step_log"
qemu=
trap '[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
install_packages qemu-system-x86 mmdebstrap e2fsprogs

# What runs in there: the command, and then nothing.
service='[Unit]
Description=The command that this machine is for
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c "mount /dev/vdb /mnt && exec /mnt/run"
ExecStopPost=systemctl poweroff --no-block
StandardOutput=file:/dev/ttyS0
StandardError=inherit'
packages=$(IFS=, && echo "${run_packages[*]}")
packages+=,linux-image-cloud-amd64,initramfs-tools,systemd-sysv,dbus,kmod,procps,udev,ca-certificates

make_base() { # once: minutes
    local root=$work/root made=$work/base sources=/etc/apt/sources.list.d/debian.sources
    [ -e $sources ] || sources=/etc/apt/sources.list
    mmdebstrap --variant=minbase --include="$packages" bookworm "$root" $sources
    echo "$service" >"$root/etc/systemd/system/vm.service"
    ln -s ../vm.service "$root/etc/systemd/system/multi-user.target.wants/vm.service"
    mkdir "$made"
    cp "$root"/boot/vmlinuz-* "$made/vmlinuz"
    cp "$root"/boot/initrd.img-* "$made/initrd"
    mkfs.ext4 -q -d "$root" "$made/disk" 8G
    rm -rf "$root"
    rm -rf "$cache"/vm-*
    mv -T "$made" "$base"
}
base=$cache/vm-$(echo "$service $packages" | sha256sum | cut -c1-12)
[ -e "$base" ] || step "making the machine's disk: once, some minutes" make_base

make_payload() { # COMMAND...
    local disk=$work/disk file
    mkdir -p "$disk/top" "$disk/target" "$disk/cache"
    git -C "$top" ls-files -z --cached --others --exclude-standard | tar -C "$top" --null -T - -c | tar -x -C "$disk/top"
    for file in "$target"/debug/{kubelet-supervisor,kubectl-kubelet_config,stand-in-*} "$@"; do
        file=$(realpath -sq "$file") || continue
        [[ -f $file && -x $file && $file = "$target"/* ]] || continue
        mkdir -p "$disk/target/$(dirname "${file#"$target"/}")"
        strip -o "$disk/target/${file#"$target"/}" "$file"
    done
    [ ! -e "$top/target/packages" ] || cp -r "$top/target/packages" "$disk/packages"
    cp -r "$binaries" "$disk/cache/"
    [ -e "$binaries/kubectl" ] || cp -L "$(command -v kubectl)" "$disk/cache/${binaries##*/}/"
    {
        printf '#!/bin/bash\nset -e\n'
        printf 'mkdir -p %q && mount --bind /mnt/%s "$_"\n' "$top" top "$target" target "$cache" cache
        printf '[ ! -e /mnt/packages ] || { mkdir -p %q && mount --bind /mnt/packages "$_"; }\n' "$top/target/packages"
        printf 'cd %q && export HOME=/root CARGO_TARGET_DIR=%q KUBELET_SUPERVISOR_CACHE=%q SUPERVISOR_BINARY=%q\n' "$top" "$target" "$cache" "$target/debug/kubelet-supervisor"
        printf 'status=0\n'
        printf '%q ' "$@"
        printf '|| status=$?\necho $status >/mnt/status\nsync\n'
    } >"$disk/run"
    chmod +x "$disk/run"
    mkfs.ext4 -q -d "$disk" "$work/payload" 4G
    rm -r "$disk"
}
target=$(realpath -ms "${CARGO_TARGET_DIR:-$top/target}")
step "copying what was built" make_payload "$@"

# The serial line is all that is said.
seconds=${VM_SECONDS:-7200}
timeout --foreground "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 6144 \
    -nodefaults -no-reboot -display none -serial stdio -nic none -device virtio-rng-pci \
    -kernel "$base/vmlinuz" -initrd "$base/initrd" -append "console=ttyS0 root=/dev/vda rw quiet panic=1 systemd.show_status=false systemd.mask=serial-getty@ttyS0.service kubelet-supervisor.vm" \
    -drive "file=$base/disk,if=virtio,format=raw,snapshot=on" -drive "file=$work/payload,if=virtio,format=raw" </dev/null &
qemu=$!
ended=0
wait $qemu || ended=$?
qemu=
status=$(debugfs -R "cat /status" "$work/payload" 2>/dev/null)
[ -n "$status" ] || { echo "vm.sh: the command did not come to its end within VM_SECONDS=$seconds; qemu ended with $ended" >&2; exit 1; }
exit "$status"
