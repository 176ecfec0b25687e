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

step_log=$(mktemp /tmp/vm-XXXXXX.log)
install_packages qemu-system-x86 mmdebstrap e2fsprogs
binaries=$("$here/prepare.sh")
cache=$(dirname "$binaries")
base=$cache/vm/base.ext4
work=$(mktemp -d "$cache/.vm.XXXXXX")
trap 'rm -rf "$work"' EXIT

# What runs in there: the command, and then nothing.
service='[Unit]
Description=The command that this machine is for
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c "mount /dev/vdb /mnt && exec /mnt/run"
ExecStopPost=systemctl poweroff --no-block
StandardOutput=file:/dev/ttyS0
StandardError=inherit
[Install]
WantedBy=default.target'

make_base() { # once: minutes
    local root=$work/root packages
    packages=$(sed -n '/^run_packages=(/,/)/p' "$here/prepare.sh" | tr -d '()\n' | sed 's/^run_packages=//; s/  */,/g')
    mmdebstrap --variant=minbase --include="$packages,linux-image-cloud-amd64,initramfs-tools,systemd-sysv,dbus,kmod,procps,udev,ca-certificates" bookworm "$root"
    echo "$service" >"$root/etc/systemd/system/vm.service"
    ln -s ../vm.service "$root/etc/systemd/system/multi-user.target.wants/vm.service"
    mkdir -p "$cache/vm"
    cp "$root"/boot/vmlinuz-* "$cache/vm/vmlinuz"
    cp "$root"/boot/initrd.img-* "$cache/vm/initrd"
    mkfs.ext4 -q -d "$root" "$base.new" 8G
    mv "$base.new" "$base"
    rm -rf "$root"
}
[ -e "$base" ] || step "making the machine's disk: once, some minutes" make_base

make_payload() { # COMMAND...
    local disk=$work/disk target=${CARGO_TARGET_DIR:-$top/target} file
    mkdir -p "$disk/top" "$disk/target" "$disk/cache"
    git -C "$top" ls-files -z --cached --others --exclude-standard | tar -C "$top" --null -T - -c | tar -x -C "$disk/top"
    for file in "$target"/debug/{kubelet-supervisor,kubectl-kubelet_config,stand-in-*} "$@"; do
        file=$(realpath -q "$file") || continue
        [[ -f $file && -x $file && $file = "$target"/* ]] || continue
        mkdir -p "$disk/target/$(dirname "${file#"$target"/}")"
        strip -o "$disk/target/${file#"$target"/}" "$file"
    done
    [ ! -e "$target/packages" ] || cp -r "$target/packages" "$disk/target/"
    cp -r "$binaries" "$disk/cache/"
    [ -e "$binaries/kubectl" ] || cp -L "$(command -v kubectl)" "$disk/cache/${binaries##*/}/"
    {
        printf '#!/bin/bash\nmkdir -p %q %q %q\n' "$top" "$target" "$cache"
        printf 'mount --bind /mnt/top %q && mkdir -p %q && mount --bind /mnt/target %q && mount --bind /mnt/cache %q\n' "$top" "$target" "$target" "$cache"
        printf 'cd %q && export HOME=/root CARGO_TARGET_DIR=%q KUBELET_SUPERVISOR_CACHE=%q SUPERVISOR_BINARY=%q\n' "$top" "$target" "$cache" "$target/debug/kubelet-supervisor"
        printf '%q ' "$@"
        printf '\necho $? >/mnt/status\nsync\n'
    } >"$disk/run"
    chmod +x "$disk/run"
    mkfs.ext4 -q -d "$disk" "$work/payload" 4G
    rm -r "$disk"
}
step "copying what was built" make_payload "$@"

# The serial line is all that is said.
timeout "${VM_SECONDS:-7200}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 6144 \
    -nodefaults -no-reboot -display none -serial stdio -nic none -device virtio-rng-pci \
    -kernel "$cache/vm/vmlinuz" -initrd "$cache/vm/initrd" -append "console=ttyS0 root=/dev/vda rw quiet panic=1 systemd.show_status=false systemd.mask=serial-getty@ttyS0.service" \
    -drive "file=$base,if=virtio,format=raw,snapshot=on" -drive "file=$work/payload,if=virtio,format=raw" </dev/null
status=$(debugfs -R "cat /status" "$work/payload" 2>/dev/null)
[ -n "$status" ] || { echo "vm.sh: the command did not come to its end" >&2; exit 1; }
rm -f "$step_log"
exit "$status"
