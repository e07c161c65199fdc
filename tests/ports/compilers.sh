#!/bin/sh
# Compiles devstream with other compilers on Linux, runs programs of each, and looks at what those see that cannot compile it.
#     compilers.sh [PART]...    parts: refused, clang, gcc, zig, vectors, conformance; all of them without one
# clang, gcc: each version that is installed, of those that tools/install-deps.sh compilers installs. zig: ZIG_VERSIONS, from PyPI.
# gcc 10, which Debian 12 lacks, comes from Debian 11 and is unpacked below build/ports. It compiles at
# all levels, since it warns of conversions that newer versions accept. The packages of gcc 13 and 14
# of Debian 13 do not run on Debian 12: they need a newer C library.
# vectors: the unit tests of all forms of the vector code, compiled by the newest clang.
# conformance: the suite built by the first of ZIG_VERSIONS; SHARE=N: every N-th group of it.
# tcc and chibicc must be refused by a sentence. chibicc has no package: CHIBICC names it where it is.
# A part takes less than a minute on two processors, but gcc (120 s) and conformance (100 s, 70 of
# them for compiling; SHARE=4: 80 s).
# shellcheck disable=SC2086 # WARN is several words
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=compilers
. "$root/tests/ports/common.sh"
ZIG_VERSIONS=${ZIG_VERSIONS:-0.17.1 0.13.0}
[ $# -gt 0 ] || set -- refused clang gcc zig vectors conformance
"$root/tools/install-deps.sh" compilers >"$dir/installed" 2>&1 || cat "$dir/installed"

# The first error must be this sentence, for the declarations and for the implementation.
refuses() { # refuses SENTENCE COMPILER...
    sentence=$1
    shift
    for file in declare.c implement.c; do
        if "$@" -I"$root" -c $file -o refused.o >out 2>&1; then echo "$file compiles"; return 1; fi
        grep -m 1 '#error\|error:' out | grep -F "$sentence" || { cat out; return 1; }
    done
}
declarations_only() { # the same of a compiler that may compile the declarations
    sentence=$1
    shift
    "$@" -I"$root" -fsyntax-only declare.c || return 1
    if "$@" -I"$root" -fsyntax-only implement.c >out 2>&1; then echo "it compiles"; return 1; fi
    grep -m 1 '#error\|error:' out | grep -F "$sentence" || { cat out; return 1; }
}
refused() {
    echo '#include "devstream.h"' >"$dir/declare.c"
    { echo '#define DEVSTREAM_IMPLEMENTATION'; cat "$dir/declare.c"; } >"$dir/implement.c"
    if have tcc; then t "tcc is refused" refuses "cannot be compiled by tcc" tcc
    else skip "tcc: not installed"; fi
    chibicc=${CHIBICC:-chibicc}
    if have "$chibicc"; then t "chibicc is refused" refuses "needs the attributes and builtins of gcc or clang" "$chibicc"
    else skip "chibicc: not installed, CHIBICC names none"; fi
    for cc in gcc clang; do
        have $cc || { skip "$cc: not installed"; continue; }
        if [ "$(uname -m)" = x86_64 ]; then
            for m in -m32 -mx32; do t "$cc $m is refused, without headers of 32 bits too" refuses "needs a 64-bit target" $cc $m; done
        fi
        t "$cc -std=c99 is refused as implementation" declarations_only "needs C11 with atomics" $cc -std=c99
    done
    if have clang; then
        for target in i686-linux-gnu armv7-linux-gnueabihf; do
            t "clang --target=$target is refused" refuses "needs a 64-bit target" clang --target=$target
        done
        for target in aarch64_be-linux-gnu powerpc64-linux-gnu s390x-linux-gnu; do
            t "clang --target=$target is refused" refuses "needs a little-endian target" clang --target=$target
        done
        t "clang --target=x86_64-unknown-freebsd is refused" refuses "devstream runs on" clang --target=x86_64-unknown-freebsd
        # without headers of this processor: stddef.h and stdint.h are the compiler's
        t "clang --target=riscv64-unknown-linux-gnu is refused as implementation" declarations_only \
            "implemented for x86-64 and aarch64 only" clang --target=riscv64-unknown-linux-gnu -ffreestanding
        # cl itself runs on Windows only: its macros, without those of clang
        t "cl is refused as implementation" declarations_only "cannot be implemented by cl" \
            clang -U__clang__ -U__GNUC__ -U__GNUC_MINOR__ -D_MSC_VER=1940
    fi
}

# Compiles every header alone, as C and C++, and all of the implementation; links and runs programs. With the warnings of the project.
declarations() { # declarations CC CXX
    for h in $HEADERS; do
        for std in c11 gnu17; do
            "$1" -std=$std $WARN -Wstrict-prototypes -I"$root" -DHEADER="\"$h\"" -c "$root/tests/compile/decl.c" -o decl.o || return
        done
        [ -z "$2" ] || for std in c++11 c++20; do
            "$2" -std=$std $WARN -I"$root" -DHEADER="\"$h\"" -x c++ -c "$root/tests/compile/decl.c" -o decl.o || return
        done
    done
}
implementation() { # implementation CC LEVEL
    "$1" -std=c11 "$2" $WARN -Wstrict-prototypes -I"$root" -c "$root/devstream.c" -o devstream.o
}
programs() { # programs CC LEVEL: at the level of the implementation, since zig links what checks for undefined behaviour at -O0 only
    set -e
    "$1" -std=c11 "$2" $WARN -I"$root" "$root/tests/compile/use.c" devstream.o -o use -pthread -ldl
    ./use
    for example in hello demo; do
        sed '/define DEVSTREAM_IMPLEMENTATION/d' "$root/examples/$example.c" >$example.c
        "$1" -std=c11 "$2" $WARN -I"$root" -I"$root/examples" $example.c devstream.o -o $example -pthread -ldl -lm
    done
    ./hello >out && grep -qx 'hello from the stream, world' out
    (cd "$root" && DEVSTREAM_CPU_DEVICES=2 "$dir/demo" --total 300000) >out && grep -q "^checksum" out
}
compiler() { # compiler CC LEVEL
    cxx=$(echo "$1" | sed 's/zigcc/zigc++/; t; s/clang/clang++/; t; s/gcc/g++/')
    have "$cxx" || { skip "$(basename "$cxx"): not installed"; cxx=; }
    t "$(basename "$1"): every header alone${cxx:+, also as C++}" declarations "$1" "$cxx"
    t "$(basename "$1") $2: the implementation" implementation "$1" "$2"
    t "$(basename "$1"): hello, demo and a program that uses everything run" programs "$1" "$2"
}
versions() { # versions LEVEL COMPILER...
    level=$1
    shift
    for cc; do if have "$cc"; then compiler "$cc" "$level"; else skip "$cc: not installed"; fi; done
}

# Puts gcc 10 on PATH if it is not installed; if that fails, sets `why` and returns 1. The system is
# not changed: apt has lists and sources of its own here, and trusts the keys of Debian only.
gcc_10() {
    if have gcc-10; then return 0; fi
    at=$ports/gcc-10 keys=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ ! -e "$at/complete" ]; then
        why="NO_INSTALL_DEPS is set"
        [ -z "${NO_INSTALL_DEPS:-}" ] || return 1
        why="its packages of Debian 11 need apt-get, dpkg and Debian's keys"
        have apt-get && have dpkg && [ -e $keys ] || return 1
        why="apt has no archive of Debian"
        archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep -m 1 '/debian/*$') || return 1
        rm -rf "$at" && mkdir -p "$at/apt/lists/partial" "$at/apt/cache/archives/partial" || return 1
        echo "deb [signed-by=$keys] $archive bullseye main" >"$at/apt/sources.list"
        old() {
            timeout 300 apt-get -o Dir::Etc::SourceList="$at/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
                -o Dir::State::Lists="$at/apt/lists" -o Dir::Cache="$at/apt/cache" -o APT::Sandbox::User=root "$@" >"$dir/apt" 2>&1
        }
        if ! { old update -q --error-on=any && (cd "$at/apt" && old download gcc-10 cpp-10 libgcc-10-dev g++-10 libstdc++-10-dev); }; then
            why="apt-get has no packages of Debian 11: $(grep -m 1 '^E:' "$dir/apt")"
            rm -rf "$at"
            return 1
        fi
        for package in "$at"/apt/*.deb; do dpkg -x "$package" "$at" || { why="dpkg cannot unpack $package"; return 1; }; done
        rm -rf "$at/apt"
        : >"$at/complete"
    fi
    PATH=$PATH:$at/usr/bin
    why="it does not run: $(gcc-10 --version 2>&1 | head -n 1)"
    echo 'int main(void) { return 0; }' | gcc-10 -x c - -o "$dir/none" 2>/dev/null
}
gcc_versions() {
    if gcc_10; then
        compiler gcc-10 -O1
        for level in -O0 -O2 -O3; do t "gcc-10 $level: the implementation" implementation gcc-10 $level; done
        t "gcc-10 -O3: hello, demo and a program that uses everything run" programs gcc-10 -O3
    else
        skip "gcc-10: $why"
    fi
    versions -O1 gcc-11 gcc-12 gcc-13 gcc-14
}

vectors() {
    newest=
    for cc in clang-14 clang-15 clang-16 clang-19 clang-22; do if have $cc; then newest=$cc; fi; done
    [ -n "$newest" ] || { skip "vector code: no clang is installed"; return; }
    for test in test_comm_kernels test_rng_kernels test_kernel_math; do
        t "$newest: $test compiles" make -C "$root" --no-print-directory -s CUDA_HOME= UNIT_CC= CC=$newest "build/$newest/unit/$test"
        t "$newest: $test runs" "$root/build/$newest/unit/$test"
    done
}

conformance() {
    version=${ZIG_VERSIONS%% *}
    zig "$version" || { skip "conformance by zig $version: $(tail -n 1 "$dir/pip")"; return; }
    t "conformance suite compiled by zig cc $version" env -u SHARE make -C "$root" --no-print-directory -s -j"$(nproc)" CUDA_HOME= \
        UNIT_CC= CFLAGS=-O0 CC="$ports/zigcc-$version" "build/zigcc-$version/conformance" "build/zigcc-$version/plugin.so"
    # shellcheck disable=SC2016
    t "conformance suite of zig cc $version${SHARE:+, a part of it} runs" sh -c 'cd "$1" && DEVSTREAM_CPU_DEVICES=2 \
        DS_TEST_PLUGIN=$1/build/zigcc-$2/plugin.so DS_TEST_DRIVER=cpu tests/groups.sh build/zigcc-$2/conformance' - "$root" "$version"
    grep '^conformance:' "$dir/output"
}

for part; do
    case $part in
    refused) refused ;;
    clang) versions -O0 clang-13 clang-14 clang-15 clang-16 clang-19 clang-22 ;;
    gcc) gcc_versions ;;
    zig) for version in $ZIG_VERSIONS; do
             if zig "$version"; then compiler "$ports/zigcc-$version" -O0; else skip "zig $version: $(tail -n 1 "$dir/pip")"; fi
         done ;;
    vectors) vectors ;;
    conformance) conformance ;;
    *) echo "compilers: unknown part '$part'" >&2; exit 1 ;;
    esac
done
finish
