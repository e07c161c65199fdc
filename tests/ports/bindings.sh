#!/bin/sh
# Uses the shared library from other languages: each runs a stream, an event, an allocation and a collective. Parts: declarations, python
# (cffi), rust (bindgen), zig (translate-c); `bindings.sh rust`: only that. A part whose generator cannot be installed is skipped and counted.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=bindings
. "$root/tests/ports/support.sh"
declarations=$root/bindings/devstream.cdef.h
make -s -C "$root" MAKEFLAGS= CFLAGS=-O0 B=build/ports/make CUDA_HOME= library >"$dir/said" 2>&1 || { cat "$dir/said"; echo "$name: 0 passed, 1 failed"; exit 1; }
library=$dir/libdevstream.so
cp "$root/build/ports/make/library/libdevstream.so.$version" "$dir/libdevstream.so.$series" && ln -s "libdevstream.so.$series" "$library"
export LD_LIBRARY_PATH="$dir"

if part declarations; then
    t "every function of the library is in devstream.cdef.h, and every one there is in the library" "
        nm -D --defined-only $library | awk '{ print \$NF }' | sort >shown
        sed -n 's/^[a-z][^(]*[ *]\(ds_[a-z0-9_]*\)(.*);\$/\1/p' $declarations | grep -v '^typedef' | sort >listed
        [ \$(wc -l <listed) -gt 300 ]
        diff shown listed
        grep -x ds_cpu listed
        grep -x ds_tensor_of listed
        grep -x ds_bfloat16 listed"
    t "devstream.cdef.h has no macros, attributes, bodies and private names" "
        if grep -nw '_[_A-Za-z].*\|[a-z]*__[a-z]*\|inline\|static\|extern\|dsk_.*' $declarations; then exit 1; fi
        if grep '^#' $declarations | grep -v '^#define [A-Z_0-9]* [0-9a-fx]*\$'; then exit 1; fi"
    t "sizes and offsets of all structs in devstream.cdef.h are those of the headers" "
        printf '#include %s\n' '<stddef.h>' '<stdint.h>' '\"$declarations\"' '\"abi.h\"' >abi.c
        [ \$(grep -c '^AT(' $root/tests/unit/abi.h) -gt 300 ]
        $CC -std=c11 -Wall -Wextra -Werror -I$root/tests/unit -fsyntax-only abi.c"
    t "the functions and enumerations of devstream.cdef.h are those of the headers" "
        { for header in alloc comm rng check trace ranks kernel; do echo \"#include \\\"devstream_\$header.h\\\"\"; done
          sed -n '/^[a-z][^(]*[ *]ds_[a-z0-9_]*(.*);\$/p' $declarations | grep -v '^typedef'
          sed -n 's/^#define \(D[A-Z0-9_]*\) \(.*\)/_Static_assert(\1 == \2, \"\1\");/p' $declarations
        } >same.c
        sed -n 's/^    \(DS_[A-Z0-9_]*\) = \(.*[^,]\),*\$/_Static_assert((\1) == (\2), \"\1\");/p' $declarations >>same.c
        [ \$(grep -c _Static_assert same.c) -gt 150 ]
        $CC -std=c11 -DDEVSTREAM_NO_SITES -I$root -fsyntax-only same.c"
    over
fi

if part python; then
    if python cffi 'cffi>=1.15'; then
        t "Python, cffi: runs" "
            $python $root/tests/ports/bindings.py $library $declarations >out || { cat out; exit 1; }
            cat out && grep -x 'python: host function called' out && grep -x 'python: 42' out"
    else
        skip "Python: $why"
    fi
    over
fi

if part rust; then
    have bindgen && have rustc || "$root/tools/install-deps.sh" bindings >"$dir/deps" 2>&1 || true
    # bindgen of Debian 12 does not understand the names that newer libraries of clang give to enumerations without one.
    [ ! -e /usr/lib/llvm-14/lib/libclang.so.1 ] || export LIBCLANG_PATH=/usr/lib/llvm-14/lib
    if have bindgen && have rustc; then
        t "Rust, bindgen from devstream.cdef.h: its layout tests pass, and it runs" "
            bindgen $declarations -- -include stddef.h -include stdint.h >devstream.rs
            cp $root/tests/ports/bindings.rs .
            rustc --edition 2021 --test -A warnings bindings.rs -o layout -L $dir -l devstream
            ./layout | grep 'test result: ok. [1-9][0-9]'
            rustc --edition 2021 -A warnings bindings.rs -o program -L $dir -l devstream
            ./program | grep -x 'rust: 42'"
        t "Rust, bindgen from the headers: runs" "
            for header in alloc comm rng check trace ranks; do echo \"#include <devstream_\$header.h>\"; done >all.h
            bindgen all.h --generate-inline-functions --allowlist-function 'ds_.*' --allowlist-type 'ds_.*' --allowlist-var 'DS_.*' -- -I$root -DDEVSTREAM_NO_SITES >devstream.rs
            cp $root/tests/ports/bindings.rs .
            rustc --edition 2021 -A warnings bindings.rs -o program -L $dir -l devstream
            ./program | grep -x 'rust: 42'"
    else
        skip "Rust: there is no bindgen or no rustc: $(tail -n 1 "$dir/deps")"
    fi
    over
fi

if part zig; then
    if { [ -z "${NO_INSTALL_DEPS:-}" ] || [ -x "$ports/zig-0.14.1/ziglang/zig" ]; } && zig 0.14.1; then
        t "Zig, translate-c from the headers: runs" "
            export ZIG_GLOBAL_CACHE_DIR=$ports/zig-cache
            for header in alloc comm rng check trace ranks; do echo \"#include <devstream_\$header.h>\"; done >all.h
            $ports/zig-0.14.1/ziglang/zig translate-c -lc -DDEVSTREAM_NO_SITES -I$root all.h >devstream.zig
            cp $root/tests/ports/zig/main.zig .
            $ports/zig-0.14.1/ziglang/zig build-exe --dep devstream -Mroot=main.zig -Mdevstream=devstream.zig -lc -L$dir -ldevstream -femit-bin=program
            needs program | grep devstream
            ./program 2>&1 | grep -x 'zig: 42'"
    else
        skip "Zig: pip installs no ziglang 0.14.1, or NO_INSTALL_DEPS is set"
    fi
    over
fi
over_all
