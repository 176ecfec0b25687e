#!/usr/bin/env bash
# Makes a release of the commit that is checked out, in one directory: packages, the archive for krew, the image, the bill of
# materials, notes and sums. What it does not do: sign, tag, publish (docs/development/releasing.md).
#
#   packaging/release.sh VERSION [--out DIR] [--url URL] [--name NAME]
#   packaging/release.sh --verify DIR [--url URL] [--name NAME]
#
#   --out DIR       where it goes (default: target/releases/VERSION): empty, or with what another machine made of the same commit
#   --verify DIR    makes what lies there again, from a clone in another place, and compares; with the options it was made with
#   --url URL       where the archives will lie, for the manifest for krew
#   --name NAME     the image's repository, as image.sh has it
#
# Tests give what is compiled already: --binary FILE --plugin FILE --static-plugin FILE --examples DIR --fast.
set -euo pipefail
umask 022
top=$(cd "$(dirname "$0")/.." && pwd)
die() { echo "release.sh: $*" >&2; exit 1; }
usage() { sed -n '5,11s/^#  *//p' "$0" >&2; exit 64; }

version='' out='' made='' programs=() static=() url=() name=() again=()
[[ ${1:--} == -* ]] || { version=$1 && shift; }
while [ $# -gt 0 ]; do
    [ "$1" != --fast ] || { programs+=(--fast) again+=(--fast) && shift && continue; }
    [ $# -ge 2 ] || usage
    case $1 in
    --out) out=$(realpath -m "$2") ;;
    --verify) made=$(realpath "$2") ;;
    --url) url=(--url "$2") ;;
    --name) name=(--name "$2") ;;
    --static-plugin) static=(--binary "$(realpath "$2")") again+=("$1" "$(realpath "$2")") ;;
    --binary | --plugin | --examples) programs+=("$1" "$(realpath "$2")") again+=("$1" "$(realpath "$2")") ;;
    *) usage ;;
    esac
    shift 2
done
[ -n "$version$made" ] || usage
cd "$top"
[ -n "$out" ] || out=${CARGO_TARGET_DIR:-$top/target}/releases/$version

# What is released is a commit, of a version that the sources and the changelog know.
check() {
    local dirty cargo tagged
    git rev-parse --verify --quiet HEAD >/dev/null || die "this is no git repository with a commit: a release is made of one"
    dirty=$(git status --porcelain)
    [ -z "$dirty" ] || die "not all is committed; commit it, or take it away, and call this again:"$'\n'"$dirty"
    cargo=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
    [ "$version" = "$cargo" ] || die "Cargo.toml says $cargo and not $version; change its version, cargo update --workspace, commit both; or call this with $cargo"
    [ -n "$(section)" ] || die "CHANGELOG.md has no section $version; rename Unreleased to: ## [$version] - $(date +%F), put an empty Unreleased above it, commit"
    tagged=$(git rev-parse --verify --quiet "refs/tags/v$version^{commit}" || true)
    [ -z "$tagged" ] || [ "$tagged" = "$(git rev-parse HEAD)" ] || die "v$version is the tag of another commit, $tagged; check that one out, or take the next version"
    [ -n "$tagged" ] || believed # what is tagged was released: it is made again as it was
}
believed() { # A list of advisories for 60 days: what was found since, nobody looked for.
    local dated age
    dated=$(sed -n 's/^# Advisories .*, as of \([0-9-]*\) .*/\1/p' advisories.txt)
    [ -n "$dated" ] || die "advisories.txt has no date"
    age=$((($(date +%s) - $(date -d "$dated" +%s)) / 86400))
    [ "$age" -ge -1 ] || die "advisories.txt is of $dated, which is still to come"
    [ "$age" -le 60 ] || die "advisories.txt is of $dated, $age days old, and 60 are believed; renew it, and commit it:
  git clone --depth 1 https://github.com/rustsec/advisory-db /tmp/advisory-db
  ADVISORY_DB=/tmp/advisory-db cargo test --test docs advisories_are_renewed"
}
section() { # of the changelog: what stands below "## [VERSION] - DATE"
    awk -v head="## [$version] - " '/^## / { on = index($0, head) == 1; next } on' CHANGELOG.md | sed -e '/./,$!d'
}
notes() {
    printf '# kubelet-supervisor %s\n\n%s\n\n' "$version" "$(section)"
    printf 'Made by packaging/release.sh from commit %s with %s.\n' "$(git rev-parse HEAD)" "$(rustc -V)"
}

# The names of all that is published but the sums themselves.
published() { (cd "$1" && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%f\n' | LC_ALL=C sort); }

make_release() {
    local image=$out/kubectl-kubelet_config-$version.oci.tar deb machine
    mkdir -p "$out"
    if [ -n "$(ls -A "$out")" ]; then
        diff -q <(notes) "$out/RELEASE_NOTES.md" >/dev/null 2>&1 || die "$out holds something else than a release of this commit with this toolchain; name another directory, or empty it"
    fi
    notes >"$out/RELEASE_NOTES.md"
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    echo "Packages: a release build takes some minutes." >&2
    packaging/build.sh all --out "$out" "${programs[@]}" >/dev/null
    packaging/build.sh krew --out "$out" "${programs[@]}" "${url[@]}" >/dev/null
    echo "The image: another build of the plugin, static." >&2
    # It may hold the other architecture as well: the first machine's stays.
    [ -e "$image" ] || packaging/image.sh --out "$image" "${static[@]}" "${name[@]}" >/dev/null
    machine=$(dpkg --print-architecture)
    deb=$(echo "$out/kubelet-supervisor_"*"_$machine.deb")
    dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/share/doc/kubelet-supervisor/sbom.cdx.json >"$out/kubelet-supervisor-$version-linux-$machine.cdx.json"
    (cd "$out" && published . | xargs -d '\n' sha256sum >SHA256SUMS)
    echo "$out:"
    (cd "$out" && { published . && echo SHA256SUMS; } | xargs -d '\n' stat -c '%s %n') | awk '{ printf "%9.1f KiB  %s\n", $1 / 1024, $2 }'
}

verify() {
    local commit different work
    for different in SHA256SUMS RELEASE_NOTES.md; do [ -f "$made/$different" ] || die "$made holds no release: there is no $different"; done
    version=$(sed -n '1s/^# kubelet-supervisor //p' "$made/RELEASE_NOTES.md")
    (cd "$made" && sha256sum --check --quiet SHA256SUMS) || die "$made does not hold what its SHA256SUMS says"
    commit=$(sed -n 's/^Made by .* from commit \([0-9a-f]*\) with .*/\1/p' "$made/RELEASE_NOTES.md")
    git cat-file -e "$commit^{commit}" 2>/dev/null || die "$made was made from commit ${commit:-unknown}, which is not here: git fetch"
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # now: the name is local
    trap "rm -rf '$work'" EXIT
    git clone --quiet --no-checkout "$top" "$work/clone"
    git -C "$work/clone" checkout --quiet --detach "$commit"
    env -u CARGO_TARGET_DIR "$work/clone/packaging/release.sh" "$version" --out "$work/release" "${url[@]}" "${name[@]}" "${again[@]}" >/dev/null
    # Other machines may have made more.
    different=$(grep -vxFf "$made/SHA256SUMS" "$work/release/SHA256SUMS" | cut -d' ' -f3- || true)
    [ -z "$different" ] || die "made again, these are other bytes (the toolchain is in the notes; were the options the same?):"$'\n'"$different"
    echo "The same bytes, made from commit $commit in $work/clone:"
    sed 's/^/  /' "$work/release/SHA256SUMS"
}

if [ -n "$made" ]; then
    verify
else
    check
    make_release
fi
