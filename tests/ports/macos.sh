#!/bin/sh
# Compiles and links everything for macOS with zig, for x86_64 and arm64. Nothing of it is run: there is no macOS here.
#     macos.sh [PART]...    parts: library, projects, examples, suite, pages; all of them without one
# TARGETS: those of zig, "x86_64-macos aarch64-macos".
# library: every header alone and the implementation, with the project's warnings; the imported symbols
# are looked up in zig's list of macOS's. projects: CMakeLists.txt and meson.build, with their programs.
# examples: all examples. suite: cmocka and the conformance suite; macos/linux.h has what its tests use
# of Linux.
# pages: on Linux, where it is run: groups of the suite with system calls that refuse what is not a multiple of 16 KiB, the page of arm64.
# ZIG_VERSION: from PyPI. A part takes less than a minute on two processors; library 30 s, examples 40 s, suite 50 s, pages 60 s.
# shellcheck disable=SC2086 # WARN is several words
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=macos
. "$root/tests/ports/common.sh"
ZIG_VERSION=${ZIG_VERSION:-0.17.1}
[ $# -gt 0 ] || set -- library projects examples suite pages
cc=$ports/zigcc-$ZIG_VERSION
targets=${TARGETS:-x86_64-macos aarch64-macos}
out=$ports/macos
mkdir -p "$out"

declarations() { # declarations TARGET
    for h in $HEADERS; do
        "$cc" -target "$1" -std=c11 $WARN -Wstrict-prototypes -I"$root" -DHEADER="\"$h\"" -c "$root/tests/compile/decl.c" -o decl.o || return
        "$ports/zigc++-$ZIG_VERSION" -target "$1" -std=c++11 $WARN -I"$root" -DHEADER="\"$h\"" -x c++ -c "$root/tests/compile/decl.c" \
            -o decl.o || return
    done
}
implementation() { # implementation TARGET OPTION...
    target=$1
    shift
    "$cc" -target "$target" -std=c11 $WARN -Wstrict-prototypes -I"$root" "$@" -c "$root/devstream.c" -o "$out/$target.o"
}
needs_object() { # the implementation for a part that runs alone
    [ -e "$out/$1.o" ] && [ "$out/$1.o" -nt "$root/devstream.h" ] || implementation "$1" -O0
}
# The dynamic library has all symbols that it imports from macOS's, or it does not link.
dynamic() { # dynamic TARGET
    "$cc" -target "$1" -dynamiclib "$out/$1.o" -o "$out/$1.dylib" && file "$out/$1.dylib" | grep -q 'Mach-O 64-bit .*dynamically linked'
}
library() {
    for target in $targets; do
        t "$target: every header alone, as C and C++" declarations $target
        t "$target: the implementation, with _POSIX_C_SOURCE" implementation $target -O0 -D_POSIX_C_SOURCE=200809L
        t "$target: the implementation" implementation $target -O0
        t "$target: a dynamic library links" dynamic $target
    done
}

# Writes compilers of one target, whose names CMake and Meson take. Meson asks the compiler for its
# linker and does not know zig's, so the wrapper answers as Apple's.
tools() { # tools TARGET
    printf '#!/bin/sh\ncase " $* " in *" -Wl,--version "* | *" -Wl,-v "*)\n%s\n%s\nesac\nexec %s -target %s "$@"\n' \
        "    echo 'ld: @(#)PROGRAM:ld PROJECT:ld64-609' >&2" "    echo 'ld: unknown option: --version' >&2; exit 1 ;;" "'$cc'" "$1" >cc
    for tool in ar ranlib; do printf '#!/bin/sh\nexec %s %s "$@"\n' "'$ports/zig-$ZIG_VERSION/ziglang/zig'" $tool >$tool; done
    chmod +x cc ar ranlib
}
are_programs() { for program; do file -L "$program" | grep 'Mach-O 64-bit .*executable' || return; done; }
by_cmake() { # by_cmake TARGET
    rm -rf cmake && mkdir cmake && cd cmake && tools "$1" || return
    CFLAGS=-O0 cmake -S "$root" -B out -DCMAKE_SYSTEM_NAME=Darwin -DCMAKE_SYSTEM_PROCESSOR="${1%-macos}" -DCMAKE_C_COMPILER="$PWD/cc" \
        -DCMAKE_AR="$PWD/ar" -DCMAKE_RANLIB="$PWD/ranlib" -DCMAKE_INSTALL_NAME_TOOL=true -DCMAKE_INSTALL_PREFIX="$PWD/usr" &&
        cmake --build out && cmake --install out && ls usr/lib/libdevstream.a usr/lib/libdevstream.dylib || return
    are_programs out/devstream_hello out/devstream_linked_static out/devstream_linked_shared || return
    ! grep -e '-ldl' usr/lib/pkgconfig/devstream.pc
}
by_meson() { # by_meson TARGET LINKAGE
    rm -rf meson && mkdir meson && cd meson && tools "$1" || return
    printf '%s\n' '[binaries]' "c = '$PWD/cc'" "ar = '$PWD/ar'" '[host_machine]' "system = 'darwin'" "cpu_family = '${1%-macos}'" \
        "cpu = '${1%-macos}'" "endian = 'little'" >cross.ini
    meson setup out "$root" --cross-file cross.ini --optimization=0 --prefix="$PWD/usr" --libdir=lib -Ddefault_library="$2" &&
        ninja -C out && meson install -C out && ls usr/lib/libdevstream."$([ "$2" = static ] && echo a || echo dylib)" || return
    are_programs out/hello out/linked
}
projects() {
    have cmake && have meson || "$root/tools/install-deps.sh" matrix meson >"$dir/deps" 2>&1
    for target in $targets; do
        if have cmake; then t "$target: CMake builds and installs both libraries, and links its programs" by_cmake $target
        else skip "$target: there is no CMake"; fi
        for linkage in shared static; do
            if have meson; then t "$target: Meson builds and installs, $linkage, and links its programs" by_meson $target $linkage
            else skip "$target: there is no Meson"; fi
        done
    done
}

example() { # example NAME TARGET
    sed '/define DEVSTREAM_IMPLEMENTATION/d' "$root/examples/$1.c" >"$1.c"
    "$cc" -target "$2" -std=c11 $WARN -O0 -I"$root" -I"$root/examples" "$1.c" "$out/$2.o" -o "$out/$1-$2" || return
    file "$out/$1-$2" | grep 'Mach-O 64-bit .*executable'
}
examples() {
    for target in $targets; do
        t "$target: the implementation for the examples" needs_object $target
        for file in "$root"/examples/*.c; do
            t "$target: $(basename "$file" .c) compiles and links" example "$(basename "$file" .c)" $target
        done
    done
}

build_suite() { # build_suite TARGET
    mkdir -p bin # an archive of such objects needs zig's ar
    printf '#!/bin/sh\nexec %s ar "$@"\n' "'$ports/zig-$ZIG_VERSION/ziglang/zig'" >bin/ar
    chmod +x bin/ar
    [ -e "$out/cmocka-$1/lib/libcmocka.a" ] || (PATH=$PWD/bin:$PATH && cd "$root" &&
        CC="$cc -target $1 -isystem $root/tests/ports/macos" tools/cmocka.sh "$out/cmocka-$1") || return
    mkdir -p "$out/suite-$1"
    for file in "$root"/tests/conformance/*.c "$root/tests/support/harness.c"; do
        printf '%s\n' "$file"
    done >files
    for level in 0 3; do # without PTX of their own, two tests use the committed one
        mkdir -p "$out/ptx/o$level"
        : >"$out/ptx/o$level/once.ptx.h"
    done
    xargs -P "$(nproc)" -n 1 sh -c '"$1" -target "$2" -std=gnu11 -O0 -w -I"$3/src" -I"$3/tests/support" -I"$4/cmocka-$2/include" \
        -I"$4" -isystem "$3/tests/ports/macos" -include "$3/tests/ports/macos/linux.h" -c "$5" -o "$4/suite-$2/$(basename "$5" .c).o"' - "$cc" "$1" "$root" "$out" <files || return
    # The suite refers weakly to counters of test builds and of the stand-in for cudart; nothing else may be missing.
    set -- "$1" "$out/suite-$1"/*.o "$out/$1.o" "$out/cmocka-$1/lib/libcmocka.a" -o "$out/conformance-$1"
    target=$1
    shift
    "$cc" -target "$target" "$@" >link 2>&1 || true
    if grep -v '_ds__locks_held$\|_standin_[a-z_]*$' link | grep 'error:'; then return 1; fi
    "$cc" -target "$target" -Wl,-undefined,dynamic_lookup "$@" || return
    file "$out/conformance-$target" | grep 'Mach-O 64-bit .*executable'
}
suite() {
    for target in $targets; do
        t "$target: the implementation for the suite" needs_object $target
        t "$target: the conformance suite compiles and links" build_suite $target
    done
}

# The suite of the system's compiler, on Linux.
group() { # group NAME
    cd "$root" && LD_PRELOAD=$out/large_pages.so DS_TEST_DRIVER=cpu DEVSTREAM_CPU_DEVICES=2 DS_TEST_PLUGIN=$root/build/clang/plugin.so \
        DS_TEST_GROUP=$1 build/clang/conformance
}
# A page of 4096 bytes must be noticed, or the groups prove nothing.
notices() {
    printf '%s\n' '#include <sys/mman.h>' 'int main(void) {' \
        'void *p = mmap(0, 16384, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);' 'return munmap((char *)p + 4096, 4096); }' >small.c
    clang small.c -o small && ! LD_PRELOAD=$out/large_pages.so ./small && LD_PRELOAD=$out/large_pages.so ./small 2>&1 | grep 'munmap'
}
pages() {
    [ "$(uname -s)" = Linux ] && have clang || { skip "pages: Linux and clang are needed"; return; }
    t "the library of large pages" clang $WARN -shared -fPIC "$root/tests/ports/large_pages.c" -o "$out/large_pages.so" -ldl
    t "the library of large pages notices a small page" notices
    t "the conformance suite" env -u SHARE make -C "$root" --no-print-directory -s -j"$(nproc)" CUDA_HOME= UNIT_CC= CC=clang CFLAGS=-O0 \
        build/clang/conformance build/clang/plugin.so
    for group in devices cpu_options sharing kernels pinned pools resources alloc_backends; do
        t "pages of 16 KiB: $group" group $group
    done
}

case " $* " in " pages ") pages; finish; exit ;; esac
zig "$ZIG_VERSION" || { skip "zig $ZIG_VERSION: $(tail -n 1 "$dir/pip")"; finish; exit; }
mkdir -p "$out"
for part; do
    case $part in
    library) library ;;
    projects) projects ;;
    examples) examples ;;
    suite) suite ;;
    pages) pages ;;
    *) echo "macos: unknown part '$part'" >&2; exit 1 ;;
    esac
done
finish
