#!/bin/sh
# Runs the scripts of this folder, musl, aarch64 and the readers of the fuzzer by turns: with SHARE=N an N-th of the lines below
# (tests/turn.sh), otherwise all. The last line counts the cases of all scripts.
set -u
cd "$(dirname "$0")/../.." || exit 1
list='windows.sh library dll cl
windows.sh conformance
windows.sh conformance-clang
windows.sh ipc examples
compilers.sh refused clang
compilers.sh gcc
compilers.sh zig
compilers.sh vectors
compilers.sh conformance
macos.sh library
macos.sh projects
macos.sh examples
macos.sh suite
macos.sh pages
cmake.sh subdirectory fetch
cmake.sh install cuda windows
meson.sh
packages.sh vcpkg wrapdb zig
packages.sh conan nix
packages.sh debian
bindings.sh
dist.sh
musl and aarch64
readers'
failed=0
turns=$(echo "$list" | tr '\n' '\0' | xargs -0 tests/turn.sh)
export SHARE="${SHARE:+8}" FUZZ_SECONDS="${FUZZ_SECONDS:-3}" # of the groups of a suite
while read -r script parts; do
    echo "== $script $parts"
    # shellcheck disable=SC2086
    case $script in
    musl) SHARE=${SHARE:+25} make -j"$(nproc)" --output-sync=target check-musl check-aarch64 ;;
    readers) make fuzz-readers ;;
    *) "tests/ports/$script" $parts ;;
    esac </dev/null || failed=1
done <<END
$turns
END
exit $failed
