#!/usr/bin/env bash
# packaging/release.sh: what it refuses, what the directory of a release holds, and that a clone in another place makes the same
# bytes of the same programs. Nothing is compiled: the programs are those that were built for the tests.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
built=${CARGO_TARGET_DIR:-$top/target}/debug

skip() {
    echo "SKIPPED: release suite: $*"
    [ -z "${CI:-}" ] || { echo "in CI this is a failure" >&2; exit 1; }
    exit 0
}
for tool in git dpkg-deb objdump; do command -v $tool >/dev/null || skip "$tool is missing"; done
if ! command -v rpmbuild >/dev/null; then
    { [ "$(id -u)" = 0 ] && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends rpm; } >/dev/null ||
        skip "rpmbuild is missing and cannot be installed"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ok() { echo "test $1 ... ok"; }
fail() { echo "test $1 ... FAILED: ${*:2}" >&2 && exit 1; }
refused() { # NAME PATTERN ARGUMENT...: release.sh fails with that, and makes nothing
    local name=$1 pattern=$2
    shift 2
    if "$work/tree/packaging/release.sh" "$@" >"$work/said" 2>&1; then fail "$name" "it did not refuse"; fi
    grep -q -- "$pattern" "$work/said" || fail "$name" "it said: $(cat "$work/said")"
    ok "$name"
}
commit() { git -C "$work/tree" add -A && git -C "$work/tree" -c user.name=test -c user.email=test@example.org commit -qm "$1"; }

# What is here, committed or not, as a commit.
mkdir "$work/tree"
tar -C "$top" --exclude=./target --exclude=./.git -cf - . | tar -C "$work/tree" -xf -
git -C "$work/tree" init -q
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$top/Cargo.toml" | head -n 1)
# The tests of a release's own commit have the section.
sed -i "s/^## \[$version\] - .*/## [Earlier]/" "$work/tree/CHANGELOG.md"
refused "no commit" "no git repository with a commit" "$version"
commit "all of it"
refused "no section in the changelog" "no section $version; rename Unreleased to" "$version"
refused "another version" "Cargo.toml says $version and not 99.0.0" 99.0.0
sed -i "s/^## \[Unreleased\]$/&\n\n## [$version] - 2026-01-02\n\n- What is new.\n\n## [0.0.1] - 2026-01-01\n/" "$work/tree/CHANGELOG.md"
refused "not all is committed" "not all is committed.*" "$version"
commit "release: $version"
of_day() { sed -i "1s/as of [0-9-]*/as of $1/" "$work/tree/advisories.txt"; }
of_day "$(date -d '-61 days' +%F)"
commit "advisories of long ago"
refused "advisories that are older than 60 days" "61 days old, and 60 are believed; renew it" "$version"
of_day "$(date +%F)"
commit "advisories of today"
git -C "$work/tree" tag "v$version" HEAD~1
refused "the tag of another commit" "v$version is the tag of another commit" "$version"
git -C "$work/tree" tag -f "v$version" >/dev/null
refused "a directory with other things" "holds something else" "$version" --out "$work/tree"
[ -z "$(git -C "$work/tree" status --porcelain)" ] || fail "what refuses changes nothing"

# An image wants a static program, whatever it does.
echo 'fn main() {}' >"$work/nothing.rs"
rustc -C target-feature=+crt-static -o "$work/static" "$work/nothing.rs"
programs=(--fast --binary "$built/kubelet-supervisor" --plugin "$built/kubectl-kubelet_config" --static-plugin "$work/static" --examples "$built/examples")
options=(--url https://example.org/v1 --name example.org/controller "${programs[@]}")
release=$work/release
"$work/tree/packaging/release.sh" "$version" --out "$release" "${options[@]}" 2>/dev/null
case $(uname -m) in aarch64) arch=arm64 ;; *) arch=amd64 ;; esac
expected="RELEASE_NOTES.md
SHA256SUMS
kubectl-kubelet_config-$version-linux-$arch.tar.gz
kubectl-kubelet_config-$version-linux-$arch.tar.gz.sha256
kubectl-kubelet_config-$version.oci.tar
kubelet-config.yaml
kubelet-supervisor-$version-1.$(uname -m).rpm
kubelet-supervisor-$version-linux-$arch.cdx.json
kubelet-supervisor_$version-1_$arch.deb"
diff <(LC_ALL=C ls "$release") <(echo "$expected") || fail "what it holds"
ok "what it holds"
(cd "$release" && sha256sum --check --quiet SHA256SUMS && [ "$(wc -l <SHA256SUMS)" = $(($(wc -l <<<"$expected") - 1)) ]) || fail "the sums"
ok "the sums"
diff <(head -n 3 "$release/RELEASE_NOTES.md") <(printf '# kubelet-supervisor %s\n\n- What is new.\n' "$version") || fail "the notes"
grep -q "^Made by .* from commit $(git -C "$work/tree" rev-parse HEAD) with rustc" "$release/RELEASE_NOTES.md" || fail "the notes" "no commit"
ok "the notes"
[ "$(dpkg-deb --field "$release/kubelet-supervisor_$version-1_$arch.deb" Version)" = "$version-1" ] || fail "the package's version"
grep -q '"bomFormat": "CycloneDX"' "$release/kubelet-supervisor-$version-linux-$arch.cdx.json" || fail "the bill of materials"
ok "the package's version and bill of materials"
"$work/tree/packaging/release.sh" --verify "$release" "${options[@]}" >"$work/said" 2>&1 && grep -q "^The same bytes" "$work/said" || fail "made again elsewhere" "$(cat "$work/said")"
ok "made again elsewhere: the same bytes"

printf x >>"$release/kubelet-config.yaml"
refused "a file that was changed" "does not hold what its SHA256SUMS says" --verify "$release" "${options[@]}"
(cd "$release" && sha256sum kubelet-config.yaml >changed && sed -i -e '/ kubelet-config.yaml$/d' -e '$rchanged' SHA256SUMS && rm changed)
refused "other bytes with their own sum" "^kubelet-config.yaml$" --verify "$release" "${options[@]}"
