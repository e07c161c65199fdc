#!/bin/sh
# Writes the archive of a release: dist.sh [--without-site] [FOLDER]
# FOLDER (build/dist) gets devstream-VERSION.tar.gz, the files of the git checkout with the generated headers; devstream-VERSION-site.tar.gz,
# the pages that `make docs` has built; and SHA256SUMS. Equal files give equal archives: names are sorted, and all times are the one of the
# last commit, or SOURCE_DATE_EPOCH.
set -eu
here=$PWD
cd "$(dirname "$0")/.."
site=1
[ "${1:-}" != --without-site ] || { site=; shift; }
out=${1:-build/dist}
case ${1:-/} in /*) ;; *) out=$here/$1 ;; esac
[ -e .git ] || { echo "dist: this is no git checkout, but a release archive already" >&2; exit 1; }
version=$(sed -n 's/^#define DEVSTREAM_VERSION_[A-Z]* //p' devstream.h | paste -sd .)
name=devstream-$version
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
tools/headers.sh --check || exit 1
[ -z "$(git status --porcelain)" ] || echo "dist: the files differ from the last commit; a release has those of its tag" >&2
mkdir -p "$out"
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

pack() { # pack FOLDER ARCHIVE: a folder of $new
    find "$new/$1" -type d -exec chmod 755 {} +
    find "$new/$1" -type f -perm -u+x -exec chmod 755 {} +
    find "$new/$1" -type f ! -perm -u+x -exec chmod 644 {} +
    tar -C "$new" --format=ustar --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner -cf - "$1" | gzip -9 -n >"$new/$2"
    mv "$new/$2" "$out/$2"
    (cd "$out" && sha256sum "$2") >>"$new/sums"
}

mkdir "$new/$name"
git ls-files -z | grep -zv '^\.ci/\|^\.git' | tar -cf - --null -T - | tar -xf - -C "$new/$name"
pack "$name" "$name.tar.gz"
if [ -n "$site" ]; then
    [ -e build/docs/html/index.html ] || { echo "dist: build/docs/html is missing: run make docs" >&2; exit 1; }
    cp -R build/docs/html "$new/$name-site"
    pack "$name-site" "$name-site.tar.gz"
fi
mv "$new/sums" "$out/SHA256SUMS"
echo "dist: $(cd "$out" && ls -- *.tar.gz SHA256SUMS | xargs) in $out"
