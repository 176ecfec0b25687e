# How the programs of packages and images are compiled. Sourced, with $top and $target set.

# A release build that holds no path of this machine: where the sources, cargo's registry, the toolchain and the build lie
# changes no byte of it.
compile() { # [FLAG-OF-RUSTC...] -- ARGUMENT-OF-CARGO...
    local flags dir auditable='' commit
    read -ra flags <<<"${RUSTFLAGS:-}"
    while [ "$1" != -- ]; do flags+=("$1") && shift; done
    shift
    cargo fetch --locked --quiet
    commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
    # Of several that fit, rustc takes the last one.
    flags+=("--remap-path-prefix=$top=/kubelet-supervisor" "--remap-path-prefix=$target=/kubelet-supervisor/target")
    flags+=("--remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$commit")
    # A mirror's directory has another name than the registry's own.
    for dir in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do flags+=("--remap-path-prefix=${dir%/}=/registry"); done
    # Where it is installed, the programs carry the list of what is in them too.
    [ ! -x "$(command -v cargo-auditable)" ] || auditable=auditable
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}") cargo $auditable build --locked --quiet --release "$@"
}

# That none is in there all the same.
without_paths() { # PROGRAM
    local path
    for path in "$top" "$target" "${CARGO_HOME:-$HOME/.cargo}" "$(rustc --print sysroot)"; do
        ! grep -qaF "$path/" "$1" || die "$1 has a path of this machine in it: $(strings "$1" | grep -F "$path/" | head -n 1)"
    done
}
