# The packages: install, upgrade, remove and purge restart nothing, and never leave a node without a kubelet. Sourced.
# shellcheck disable=SC2034,SC2154 # what the topics share is named here and there
store=/var/lib/kubelet/dynamic-config
shared=/usr/share

installed_files() {
    local file
    for file in man/man1/kubelet-supervisor{,-run,-enable}.1.gz bash-completion/completions/kubelet-supervisor \
        fish/vendor_completions.d/kubelet-supervisor.fish doc/kubelet-supervisor/{README.md,LICENSE,docs/usage/install.md}; do
        is "$(stat -c '%a %U' "$shared/$file")" "644 root" || { echo "$file" && return 1; }
    done
    for file in kubelet-supervisor kubectl-kubelet_config kubectl_complete-kubelet_config; do
        is "$(stat -c '%a %U' "/usr/bin/$file")" "755 root" || { echo "$file" && return 1; }
    done
    grep -q '"bomFormat": "CycloneDX"' $shared/doc/kubelet-supervisor/sbom.cdx.json || return 1
    kubectl-kubelet_config --version >/dev/null && gzip -dc $shared/man/man1/kubectl-kubelet_config-doctor.1.gz | grep -q 'what is missing'
    diff $shared/doc/kubelet-supervisor/systemd/zz-kubelet-supervisor.conf /suite/zz-kubelet-supervisor.conf
}
# FIRST and SECOND install a version, REMOVE takes it away.
life() { # FIRST SECOND REMOVE TOPIC
    local first=$1 second=$2 remove=$3 before
    bare kubeadm
    topic=$4
    rm -f /usr/bin/kubelet-supervisor
    systemctl start kubelet && until_true 30 one_kubelet
    before=$(both)
    ok "install" eval "$first >/tmp/installed 2>&1"
    ok "install: says how to go on" says "kubelet-supervisor enable" /tmp/installed
    ok "install: nothing is restarted or enabled" eval 'is "$(both)" "$before" && [ ! -e $dropin ]'
    ok "install: all files are there" installed_files
    ok "install: completions are sound" bash -n $shared/bash-completion/completions/kubelet-supervisor
    ok "install: the plugin's are" bash -n $shared/bash-completion/completions/kubectl-kubelet_config
    ok "install: kubectl is answered" grep -q "^doctor" <(kubectl_complete-kubelet_config d)
    ok "enable and restart" eval 'kubelet-supervisor enable && systemctl restart kubelet && until_true 30 ready && main_is_supervisor'
    before=$(both)
    ok "upgrade" eval "$second >/tmp/upgraded 2>&1"
    ok "upgrade: nothing is restarted" is "$(both)" "$before"
    ok "upgrade: the unit is still ours" test -e $dropin
    ok "upgrade: says what happens" says "the new version takes over" /tmp/upgraded
    ok "upgrade: it does" until_true 30 eval 'is "$(readlink "/proc/$(worker)/exe")" /usr/bin/kubelet-supervisor'
    ok "upgrade: the kubelet's owner is the old one" grep -q deleted <(readlink "/proc/$(property MainPID)/exe")
    ok "upgrade: still nothing is restarted" is "$(both)" "$before"
    ok "restart: all of it is the new one" eval 'systemctl restart kubelet && until_true 30 ready && is "$(readlink "/proc/$(property MainPID)/exe")" /usr/bin/kubelet-supervisor'
    before=$(both)
    ok "remove" eval "$remove >/tmp/removed 2>&1"
    ok "remove: the program is gone" test ! -e /usr/bin/kubelet-supervisor
    ok "remove: the unit has the plain kubelet" grep -q "path=/usr/bin/kubelet ;" <(property ExecStart)
    ok "remove: nothing is restarted" is "$(both)" "$before"
    before=$(kubelet_pids)
    kill -9 "$before"
    ok "remove: the supervisor that still runs minds the kubelet" until_true 30 another_kubelet "$before"
}

# The same in the middle of a trial, which goes on.
trial() {
    local before
    bare kubeadm
    topic=trial
    echo STAND_IN_REPORTS=1 >/usr/bin/kubelet.env
    ok "the earlier version" eval 'dpkg -i $first_deb && kubelet-supervisor enable -- --trial-duration 40s'
    api_server
    systemctl start kubelet
    ok "ready" until_true 60 ready
    assign "maxPods: 51"
    ok "a configuration is on trial" until_true 60 on_trial
    ok "and healthy" until_true 60 eval '[[ $(trial_since) = *:\"* ]]'
    before=$(both)
    ok "upgrade" dpkg -i /suite/packages/kubelet-supervisor_99*.deb
    ok "the new one takes over" until_true 30 eval 'is "$(readlink "/proc/$(worker)/exe")" /usr/bin/kubelet-supervisor'
    ok "it is still on trial" until_true 30 on_trial
    ok "last known good in the end" until_true 120 shows "^Last known good: *as assigned"
    ok "the same kubelet all the time" is "$(both)" "$before"
    ok "and no blame" no_blame
    systemctl stop kubelet api-server
    rm /usr/bin/kubelet.env
    dpkg -P kubelet-supervisor >/dev/null 2>&1
}
trial_since() { kubelet-supervisor status -o json | tr -d ' \n' | grep -o '"trial":.*' | grep -o '"since":[^,}]*' | head -n 1; }

purges() {
    topic=deb
    ok "purge while a supervisor runs keeps its files" eval 'dpkg -P kubelet-supervisor >/tmp/purged 2>&1 && says "is kept" /tmp/purged && test -e $store/supervisor/lock'
    ok "then: a restart, and the plain kubelet" eval 'systemctl restart kubelet && until_true 30 one_kubelet && is "$(supervisors)" 0'
    dpkg -i $first_deb >/dev/null 2>&1
    ok "purge: nothing of ours is left" eval 'dpkg -P kubelet-supervisor && [ ! -e $store ] && [ ! -e $shared/doc/kubelet-supervisor ]'
    dpkg -i $first_deb >/dev/null 2>&1
    mkdir -p $store/{supervisor,store/checkpoints/u/1} && echo kind: >$store/store/checkpoints/u/1/kubelet
    ok "purge: configurations in native's layout stay" eval 'dpkg -P kubelet-supervisor >/tmp/purged 2>&1 && says "is kept" /tmp/purged && [ ! -e $store/supervisor ] && [ -e $store/store/checkpoints/u/1/kubelet ]'
    dpkg -i $first_deb >/dev/null 2>&1
    printf '[Service]\nExecStart=\nExecStart=/usr/bin/kubelet-supervisor run -- /usr/bin/kubelet\n' >/etc/systemd/system/kubelet.service.d/30-own.conf
    ok "remove: refused while another file names the program" fails "not removed: these still name it" dpkg -r kubelet-supervisor
    ok "remove: and the program is still there" test -x /usr/bin/kubelet-supervisor
    rm /etc/systemd/system/kubelet.service.d/30-own.conf
    ok "remove: without it, done" dpkg -P kubelet-supervisor
}

# An earlier version took a store below a directory that others can change; this one would not.
unguarded() {
    topic=deb
    dpkg -i $first_deb >/dev/null 2>&1
    kubelet-supervisor enable >/dev/null
    chmod g+w /var/lib/kubelet
    ok "a store that others can change: upgrade says so" eval 'dpkg -i /suite/packages/kubelet-supervisor_99*.deb >/tmp/upgraded 2>&1 && says "to be mended: .*chmod go-w /var/lib/kubelet" /tmp/upgraded'
    ok "a store that others can change: and not to restart" not grep "takes over" /tmp/upgraded
    chmod g-w /var/lib/kubelet
    dpkg -P kubelet-supervisor >/dev/null 2>&1
}

# As in an image that is built and not booted: no systemd to talk to.
offline() {
    topic=deb
    dpkg -i $first_deb >/dev/null 2>&1
    kubelet-supervisor enable >/dev/null
    mkdir -p /tmp/empty && mount --bind /tmp/empty /run/systemd
    ok "not booted: remove takes the drop-in away" eval 'dpkg -P kubelet-supervisor && [ ! -e $dropin ]'
    umount /run/systemd
    systemctl daemon-reload
}

# A file tree as RHEL 9 has it, until `debian_again`: no dpkg, /etc/sysconfig in the place of /etc/default,
# kubeadm's drop-in as its rpm brings it, and what rpm's database there knows of all that our package asks for.
rhel() {
    local version
    settings=/etc/sysconfig/kubelet
    mkdir -p /tmp/none /etc/sysconfig
    mount --bind /tmp/none /etc/default
    mount --bind /dev/null /usr/bin/dpkg
    sed 's,/etc/default/,/etc/sysconfig/,' /suite/forms/10-kubeadm.conf >/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
    {
        printf '%s\n' "Name: rhel" "Version: 9" "Release: 1" "Summary: Stands for glibc and libgcc" "License: none"
        printf 'Provides: %s\n' /bin/sh 'rtld(GNU_HASH)' {libc.so.6,libm.so.6,libgcc_s.so.1,ld-linux-x86-64.so.2}'()(64bit)'
        for version in 2.2.5 2.3 2.3.{2..4} 2.{4..34}; do
            printf 'Provides: %s\n' {libc.so.6,libm.so.6,ld-linux-x86-64.so.2}"(GLIBC_$version)(64bit)"
        done
        printf 'Provides: libgcc_s.so.1(GCC_%s)(64bit)\n' 3.0 3.3 3.3.1 3.4 3.4.{2,4} 4.{0,2,3}.0
        printf '%%description\n%%files\n'
    } >/tmp/rhel.spec
    rpmbuild -bb --quiet --define "_topdir /tmp/rpmbuild" /tmp/rhel.spec && rpm -i /tmp/rpmbuild/RPMS/*/rhel-9-1.*.rpm
}
debian_again() {
    rpm -e rhel
    umount /etc/default /usr/bin/dpkg
    settings=/etc/default/kubelet
    cp /suite/forms/10-kubeadm.conf /usr/lib/systemd/system/kubelet.service.d/
    rm -rf /etc/sysconfig
}

first_deb=$(echo /suite/packages/kubelet-supervisor_0*.deb)
life "dpkg -i $first_deb" "dpkg -i /suite/packages/kubelet-supervisor_99*.deb" "dpkg -r kubelet-supervisor" deb
purges
trial
unguarded
offline
if command -v rpm >/dev/null; then
    systemctl stop kubelet
    topic=rhel
    ok "a file tree as RHEL 9 has it" rhel
    # Its own dependencies, nothing waived.
    life "rpm -i /suite/packages/kubelet-supervisor-0*.rpm" "rpm -U /suite/packages/kubelet-supervisor-99*.rpm" "rpm -e kubelet-supervisor" rhel
    ok "its own settings are the kubelet's" grep -q -- --max-pods=42 <(kubelet_args)
    ok "the store stays" test -e $store/supervisor
    systemctl stop kubelet
    debian_again
else
    left_out "there is no rpm here"
fi
install -m 755 /suite/kubelet-supervisor /usr/bin/
bare kubeadm
