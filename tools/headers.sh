#!/bin/sh
# Writes what sh and awk make of src/: the call-site macros and the pages of the memory report and
# of traces in src/, the picture of its folders in docs/, then the headers, devstream.hpp and devstream.c in the top
# folder, the single file, and the declarations for bindings. Only what differs is written.
#     headers.sh            writes; does nothing outside of a git checkout, as in a release archive
#     headers.sh --check    writes nothing, and fails when something differs
set -eu
cd "$(dirname "$0")/.."
entries="devstream devstream_alloc devstream_comm devstream_rng devstream_kernel devstream_check devstream_trace devstream_ranks"
check=; [ "${1:-}" != --check ] || check=1
if [ ! -e .git ] && [ -z "$check" ]; then
    echo "headers: this is no git checkout; the headers are taken as they are"
    exit 0
fi
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
status=0

take() { # take FILE PLACE: the new file becomes the one at that place
    if cmp -s "$1" "$2"; then return; fi
    if [ -n "$check" ]; then
        echo "headers: $2 is not what src/ gives: run make headers"
        diff "$2" "$1" 2>/dev/null | head -n 10 || true
        status=1
        return
    fi
    mkdir -p "$(dirname "$2")"
    cat "$1" >"$2"
    echo "headers: $2 written"
}

for entry in $entries; do
    awk -f tools/sites.awk src=src "$entry" >"$new/sites"
    take "$new/sites" "src/api/${entry}_sites.gen.h"
done
for page in alloc/snapshot_page=ds__page trace/page=ds__trace_page; do
    awk -f tools/page.awk path="src/${page%=*}.html" name="${page#*=}" >"$new/page"
    take "$new/page" "src/${page%=*}.gen.h"
done

for template in src/*/*.tmpl; do
    awk -f tools/expand.awk path="$template" >"$new/expanded"
    take "$new/expanded" "${template%.tmpl}.gen.h"
done
awk -f tools/tree.awk src/*/*.h >"$new/tree.svg"
take "$new/tree.svg" docs/tree.svg

mkdir "$new/single"
# shellcheck disable=SC2086
awk -f tools/amalgamate.awk src=src out="$new" $entries
for entry in $entries; do take "$new/$entry.h" "$entry.h"; done
take "$new/single/devstream.h" single/devstream.h
take src/devstream.c devstream.c

# For generators of bindings without a preprocessor. The compilers agree about the result: it is written token by token.
if command -v "${CC:-cc}" >/dev/null; then
    sed '/^#include </d; /^#error /d' "$new/single/devstream.h" >"$new/single/declarations.h"
    "${CC:-cc}" -E -P -undef -D__linux__ -D__x86_64__ -D__GNUC__=4 -D__LP64__ -DDEVSTREAM_NO_SITES '-D__attribute__(list)=' -x c "$new/single/declarations.h" >"$new/declarations"
    awk -f tools/cdef.awk source="$new/single/devstream.h" "$new/declarations" >"$new/cdef"
    take "$new/cdef" bindings/devstream.cdef.h
else
    echo "skip  headers: there is no C compiler (${CC:-cc}) for bindings/devstream.cdef.h"
fi

# The header for C++ is copied; beside the single file there are no other headers.
# shellcheck disable=SC2016 # the back quotes are text
note='/* Generated from src/devstream.hpp by `make headers`. Edit the files in src/, not this one. */'
{ echo "$note"; cat src/devstream.hpp; } >"$new/devstream.hpp"
take "$new/devstream.hpp" devstream.hpp
sed '/^#include "devstream_.*\.h"$/d' "$new/devstream.hpp" >"$new/single/devstream.hpp"
take "$new/single/devstream.hpp" single/devstream.hpp
exit $status
