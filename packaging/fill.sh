#!/bin/sh
# Fills the recipes of this folder in for a published archive: fill.sh URL ARCHIVE FOLDER
# URL is the folder from which the archive is downloaded, ARCHIVE the local file of `make dist`. FOLDER gets copies of the recipes, with
# URL and checksums in place of @URL@, @SHA256@ and @SHA512@.
set -eu
[ $# -eq 3 ] && [ -f "$2" ] || { sed -n '2,4s/^# *//p' "$0"; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
sha256=$(sha256sum "$2" | cut -d' ' -f1)
sha512=$(sha512sum "$2" | cut -d' ' -f1)
mkdir -p "$3"
cp -R "$here"/conan "$here"/debian "$here"/nix "$here"/vcpkg "$here"/wrapdb "$3"
url=$(printf '%s' "$1" | sed 's/[&|\\]/\\&/g')
find "$3" -type f -exec sed -i "s|@URL@|$url|g; s|@SHA256@|$sha256|g; s|@SHA512@|$sha512|g" {} +
