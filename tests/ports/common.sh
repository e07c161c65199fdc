# Shared by the scripts in this folder, which read it after `root` and `name` are set.
# A case is a name and commands; a failed one shows its output. What cannot run is skipped with a reason, and counted.
# shellcheck shell=sh
# shellcheck disable=SC2154,SC2034 # root, name; WARN, HEADERS
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0 began=$(date +%s)
WARN='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror'
HEADERS="devstream.h devstream_alloc.h devstream_comm.h devstream_rng.h devstream_kernel.h devstream_check.h devstream_trace.h
    devstream_ranks.h"
ports=$root/build/ports
mkdir -p "$ports"

have() { command -v "$1" >/dev/null 2>&1; }
skip() { skipped=$((skipped + 1)); echo "skip  $1"; }
t() { # t NAME COMMAND...
    title=$1
    shift
    if (cd "$dir" && "$@") >"$dir/output" 2>&1; then
        passed=$((passed + 1)); echo "ok    $title"
    else
        failed=$((failed + 1)); echo "FAIL  $title"; head -n 20 "$dir/output" | sed 's/^/      /'
    fi
}

# Names a version of zig's compiler: installs it from PyPI under build/ and writes the wrappers zigcc-VERSION and zigc++-VERSION
# there. Returns 1 where that is not possible.
zig() { # zig VERSION
    at=$ports/zig-$1
    if [ ! -x "$at/ziglang/zig" ]; then
        [ -z "${NO_INSTALL_DEPS:-}" ] || return 1
        python3 -m pip install -q --target "$at" "ziglang==$1" >"$dir/pip" 2>&1 || { rm -rf "$at"; return 1; }
    fi
    for tool in cc c++; do
        printf '#!/bin/sh\nZIG_GLOBAL_CACHE_DIR=%s exec %s %s "$@"\n' "'$ports/zig-cache'" "'$at/ziglang/zig'" $tool >"$ports/zig$tool-$1"
        chmod +x "$ports/zig$tool-$1"
    done
}

finish() {
    echo "$name: $passed passed, $failed failed${skipped:+, $skipped skipped} in $(($(date +%s) - began)) s"
    [ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
}
