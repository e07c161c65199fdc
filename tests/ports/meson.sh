#!/bin/sh
# Takes devstream into projects of Meson, as their authors would: a subproject by a wrap file, with a static and a shared library, and an
# installed package. The programs are built in empty folders and run. Parts: subproject, install, cuda, windows:
# by mingw, under wine (`meson.sh install`: only that).
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=meson
. "$root/tests/ports/support.sh"
command -v meson >/dev/null && command -v ninja >/dev/null || "$root/tools/install-deps.sh" meson >"$dir/deps" 2>&1
if ! command -v meson >/dev/null; then
    skip "there is no Meson: $(tail -n 1 "$dir/deps")"
    finish
    exit
fi
source_tree "$dir/devstream"
cp "$root/tests/ports/linked.c" "$dir/main.c"

consumer() { # consumer: a project with a program for the headers and one for the library
    cp "$root/examples/hello.c" app.c && cp "$dir/main.c" .
    printf '%s\n' "project('consumer', 'c')" \
        "executable('app', 'app.c', dependencies: dependency('devstream-headers'))" \
        "executable('main', 'main.c', dependencies: dependency('devstream', version: '>=$version'))" >meson.build
    mkdir subprojects
}
from_git() { # a repository with the tag of this version, and a wrap file for it
    repository origin
    printf '%s\n' '[wrap-git]' "url = file://$PWD/origin" "revision = v$version" 'depth = 1' '' '[provide]' \
        'dependency_names = devstream, devstream-headers' >subprojects/devstream.wrap
}
run() { # run OPTION...: configures, builds and runs the programs
    meson setup out --optimization=0 "$@"
    ninja -C out
    out/app | grep 'hello from the stream, world'
    out/main | grep 'linked: 42'
    if needs out/app | grep devstream; then return 1; fi
}

if part subproject; then
    if command -v git >/dev/null; then
        t "a subproject by a wrap file from git, shared library: runs" "
            consumer
            from_git
            run
            needs out/main | grep -x libdevstream.so.$series"
    else
        skip "a wrap file from git: there is no git"
    fi
    t "a subproject in the folder subprojects, static library: runs" "
        consumer
        cp -R $dir/devstream subprojects/devstream
        printf '%s\n' '[wrap-file]' 'directory = devstream' '' '[provide]' 'dependency_names = devstream, devstream-headers' \\
            >subprojects/devstream.wrap
        run -Ddefault_library=static
        if needs out/main | grep devstream; then exit 1; fi
        [ -z \"\$(find out -name 'libdevstream.so*')\" ]"
    t "a program that uses the headers compiles no library" "
        consumer
        cp -R $dir/devstream subprojects/devstream
        sed -i '/main/d; s/dependency(.devstream-headers.)/subproject('\"'devstream'\"').get_variable('\"'devstream_headers_dep'\"')/' meson.build
        meson setup out --optimization=0
        ninja -C out
        out/app | grep 'hello from the stream'
        [ -z \"\$(find out -name 'libdevstream.*' -type f)\" ]"
    t "another version in devstream.h is an error" "
        cp -R $dir/devstream other
        sed -i 's/^\(#define DEVSTREAM_VERSION_PATCH\) .*/\1 99/' other/devstream.h
        if meson setup other/out other >said; then exit 1; fi
        grep 'meson.build has another version than devstream.h' said"
    over
fi

built() { # built OPTION...: builds, tests and installs into usr
    meson setup out "$dir/devstream" --optimization=0 --prefix="$PWD/usr" --libdir=lib "$@"
    meson test -C out
    meson install -C out
    export PKG_CONFIG_PATH="$PWD/usr/lib/pkgconfig"
}
uses() { # uses OPTION...: a project that finds the installed package
    mkdir user && cp "$dir/main.c" user
    printf '%s\n' "project('user', 'c')" "executable('main', 'main.c', dependencies: dependency('devstream', version: '$version'))" \
        >user/meson.build
    meson setup user/out user "$@" && ninja -C user/out
    LD_LIBRARY_PATH=usr/lib user/out/main | grep 'linked: 42'
}
if part install; then
    t "build as a project of its own: its tests pass, it installs, and pkg-config's file serves others" "
        built >said 2>&1 || { cat said; exit 1; }
        grep '^Ok: *2' said
        grep '^Fail: *0' said
        for header in \$(cd $root && ls devstream*.h devstream.hpp); do cmp usr/include/\$header $root/\$header; done
        [ -e usr/share/doc/devstream/LICENSE ]
        [ -x usr/bin/devstream-kernels ]
        [ -e usr/share/man/man1/devstream-kernels.1 ]
        readelf -d usr/lib/libdevstream.so | grep 'SONAME.*\[libdevstream.so.$series\]'
        nm -D --defined-only usr/lib/libdevstream.so | awk '{ print \$NF }' >shown
        [ \$(wc -l <shown) -gt 300 ]
        if grep -v '^ds_[a-z]' shown; then exit 1; fi
        uses
        needs user/out/main | grep -x libdevstream.so.$series"
    t "default_library=static: tests, installs and serves others" "
        built -Ddefault_library=static >said 2>&1 || { cat said; exit 1; }
        uses
        if needs user/out/main | grep devstream; then exit 1; fi
        $CC -static -x c - -o none <<END_C || exit 0
int main(void) { return 0; }
END_C
        $CC -O0 -static $dir/main.c \$(pkg-config --static --cflags --libs devstream) -o whole && ./whole | grep 'linked: 42'"
    over
fi

if part cuda; then
    report() { # report OPTION...: the library has the CUDA driver
        meson setup out "$dir/devstream" --optimization=0 --prefix="$PWD/usr" --libdir=lib "$@"
        ninja -C out && meson install -C out
        printf '%s\n' '#include <devstream.h>' '#include <stdio.h>' 'int main(void) { char report[1000];' \
            'if (ds_backend_format(report, sizeof report) < 0) return 1; fputs(report, stdout); return ds_shutdown() < 0; }' >cuda.c
        $CC cuda.c $(PKG_CONFIG_PATH="$PWD/usr/lib/pkgconfig" pkg-config --cflags --libs devstream) -o cuda
        LD_LIBRARY_PATH=usr/lib ./cuda | tee said
        grep -i '^cuda' said
        if grep 'not compiled in' said; then return 1; fi
    }
    t "cuda=dlopen: the CUDA driver without a toolkit: runs" "CUDA_HOME= report -Dcuda=dlopen"
    if [ -n "${CUDA_HOME:-}" ] && [ -e "$CUDA_HOME/lib64/libcudart_static.a" ]; then
        t "cuda=on: with the static cudart: runs" "
            report -Dcuda=on -Dtoolkit=$CUDA_HOME
            if needs usr/lib/libdevstream.so | grep cudart; then exit 1; fi"
    else
        skip "cuda=on: no toolkit with a static cudart (CUDA_HOME)"
    fi
    over
fi
if part windows; then
    wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null)
    if have x86_64-w64-mingw32-gcc && [ -n "$wine" ]; then
        printf '%s\n' '[binaries]' "c = 'x86_64-w64-mingw32-gcc'" "ar = 'x86_64-w64-mingw32-ar'" "strip = 'x86_64-w64-mingw32-strip'" \
            "exe_wrapper = '$wine'" '[host_machine]' "system = 'windows'" "cpu_family = 'x86_64'" "cpu = 'x86_64'" "endian = 'little'" >"$dir/mingw.ini"
        export WINEPREFIX="$dir/wine" WINEDEBUG=-all
        WINEPATH=$(dirname "$(x86_64-w64-mingw32-gcc -print-libgcc-file-name)")
        export WINEPATH
        for linkage in shared static; do
            t "for Windows, by mingw, default_library=$linkage: its tests pass under wine, and it installs" "
                built --cross-file $dir/mingw.ini -Ddefault_library=$linkage >said 2>&1 || { tail -n 30 said; exit 1; }
                grep '^Ok: *2' said
                grep '^Fail: *0' said
                if [ $linkage = static ]; then ls usr/lib/libdevstream.a
                else ls usr/bin/libdevstream-$series.dll usr/lib/libdevstream.dll.a; fi
                if grep -e '-ldl' usr/lib/pkgconfig/devstream.pc; then exit 1; fi
                x86_64-w64-mingw32-objdump -p out/linked.exe >imports
                if grep 'DLL Name: libdevstream' imports; then [ $linkage = shared ]; else [ $linkage = static ]; fi"
        done
    else
        skip "Windows: there is no mingw or no wine64"
    fi
    over
fi
over_all
