#!/bin/sh
# Takes devstream into projects of CMake, as their authors would: add_subdirectory, FetchContent, and install with find_package. The
# programs are built in empty folders and run. Parts: subdirectory, fetch, install, cuda, windows: mingw and wine if they are there (`cmake.sh fetch`: only that). Not optimised.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=cmake
. "$root/tests/ports/support.sh"
command -v cmake >/dev/null && command -v pkg-config >/dev/null || "$root/tools/install-deps.sh" matrix >"$dir/deps" 2>&1
if ! command -v cmake >/dev/null; then
    skip "there is no CMake: $(tail -n 1 "$dir/deps")"
    finish
    exit
fi
export CFLAGS=-O0
source_tree "$dir/devstream"
cp "$root/tests/ports/linked.c" "$dir/main.c"

consumer() { # consumer LINE...: a project with these lines, and a program for each target
    cp "$root/examples/hello.c" app.c && cp "$dir/main.c" .
    {
        echo 'cmake_minimum_required(VERSION 3.16)'
        echo 'project(consumer C)'
        printf '%s\n' "$@"
        printf '%s\n' 'add_executable(app app.c)' 'target_link_libraries(app PRIVATE devstream::devstream)' \
            'add_executable(fixed main.c)' 'target_link_libraries(fixed PRIVATE devstream::static)' \
            'add_executable(main main.c)' 'target_link_libraries(main PRIVATE devstream::shared)'
    } >CMakeLists.txt
}
run() { # run OPTION...: configures, builds and runs the three programs
    cmake -S . -B out "$@"
    cmake --build out
    out/app | grep 'hello from the stream, world'
    for program in fixed main; do out/$program | grep 'linked: 42'; done
    needs out/main | grep -x "libdevstream.so.$series"
    for program in app fixed; do if needs out/$program | grep devstream; then return 1; fi; done
}

if part subdirectory; then
    t "add_subdirectory: headers, static and shared library: run" "
        consumer 'add_subdirectory(devstream)'
        cp -R $dir/devstream devstream
        run
        if grep -i 'devstream_hello\|devstream_linked' out/Makefile out/build.ninja 2>/dev/null; then exit 1; fi"
    t "add_subdirectory: a program that uses the headers compiles no library" "
        consumer 'add_subdirectory(devstream)'
        cp -R $dir/devstream devstream
        sed -i '/fixed\|main/d' CMakeLists.txt
        cmake -S . -B out
        cmake --build out
        out/app | grep 'hello from the stream'
        [ -z \"\$(find out -name 'libdevstream*')\" ]"
    t "the version is that of devstream.h" "
        printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(asks C)' 'add_subdirectory(devstream)' \\
            'get_directory_property(found DIRECTORY devstream DEFINITION PROJECT_VERSION)' 'message(STATUS \"version=\${found}\")' >CMakeLists.txt
        cp -R $dir/devstream devstream
        cmake -S . -B out | grep -x -e '-- version=$version'"
    over
fi

if part fetch; then
    if command -v git >/dev/null; then
        t "FetchContent from a git repository: run" "
            repository origin
            consumer 'include(FetchContent)' 'FetchContent_Declare(devstream GIT_REPOSITORY file://'\$PWD/origin' GIT_TAG v$version)' \\
                'FetchContent_MakeAvailable(devstream)'
            run"
    else
        skip "FetchContent from git: there is no git"
    fi
    t "FetchContent from a folder (FETCHCONTENT_SOURCE_DIR_DEVSTREAM): run" "
        consumer 'include(FetchContent)' 'FetchContent_Declare(devstream URL https://example.invalid/devstream.tar.gz)' \\
            'FetchContent_MakeAvailable(devstream)'
        run -DFETCHCONTENT_SOURCE_DIR_DEVSTREAM=$dir/devstream"
    over
fi

built() { # built FOLDER OPTION...: builds, tests and installs into FOLDER/usr
    folder=$1 && shift
    cmake -S "$dir/devstream" -B "$folder/out" -DCMAKE_INSTALL_PREFIX="$folder/usr" "$@"
    cmake --build "$folder/out"
    (cd "$folder/out" && ctest --output-on-failure) >"$folder/tests" || { cat "$folder/tests"; return 1; }
    cmake --install "$folder/out"
}
if part install; then
    t "build as a project of its own: ctest passes, and it installs" "
        built $dir/plain
        grep '100% tests passed.* out of 3' $dir/plain/tests
        cd $dir/plain/usr
        [ -e share/doc/devstream/LICENSE ]
        [ -e share/doc/devstream/docs/install.md ]
        [ -x bin/devstream-kernels ]
        [ -e share/man/man1/devstream-kernels.1 ]
        for header in \$(cd $root && ls devstream*.h devstream.hpp); do cmp include/\$header $root/\$header; done"
    t "the libraries show what those of make install show" "
        make -s -C $root MAKEFLAGS= CFLAGS=-O0 B=build/ports/make CUDA_HOME= library
        for file in so a; do
            case \$file in so) options=-D ;; a) options=-g ;; esac
            nm \$options --defined-only $root/build/ports/make/library/libdevstream.\$file* | awk 'NF == 3 { print \$3 }' | sort >wanted
            nm \$options --defined-only $dir/plain/usr/lib*/libdevstream.\$file | awk 'NF == 3 { print \$3 }' | sort >there
            [ \$(wc -l <wanted) -gt 300 ]
            diff wanted there
        done
        readelf -d $dir/plain/usr/lib*/libdevstream.so | grep 'SONAME.*\[libdevstream.so.$series\]'"
    t "find_package(devstream CONFIG): headers, static and shared library: run, also where the folder was moved" "
        mv $dir/plain/usr $dir/moved
        consumer 'find_package(devstream $series CONFIG REQUIRED)'
        run -DCMAKE_PREFIX_PATH=$dir/moved
        mv $dir/moved $dir/plain/usr"
    t "find_package refuses versions of other series" "
        for wanted in 99 0.0.1 ${version%.*}.999; do
            printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(asks C)' \"find_package(devstream \$wanted CONFIG REQUIRED)\" >CMakeLists.txt
            if cmake -S . -B out -DCMAKE_PREFIX_PATH=$dir/plain/usr >said 2>&1; then exit 1; fi
            grep 'compatible with requested' said
            rm -r out
        done"
    if command -v pkg-config >/dev/null; then
        t "pkg-config finds what CMake has installed: runs" "
            export PKG_CONFIG_PATH=\$(echo $dir/plain/usr/lib*/pkgconfig)
            [ \$(pkg-config --modversion devstream) = $version ]
            pkg-config --static --libs devstream | grep -e -pthread
            $CC -O0 $dir/main.c \$(pkg-config --cflags --libs devstream) -o main
            LD_LIBRARY_PATH=\$(echo $dir/plain/usr/lib*) ./main | grep 'linked: 42'"
    else
        skip "pkg-config: not installed"
    fi
    over
fi

if part cuda; then
    cat >"$dir/cuda.c" <<'END_C'
#include <devstream.h>
#include <stdio.h>
int main(void) {
    char report[1000] = "";
    if (ds_backend_format(report, sizeof report) < 0) return 1;
    fputs(report, stdout);
    return ds_shutdown() < 0;
}
END_C
    reports() { # reports OPTION...: programs with both libraries, which have the CUDA driver
        mkdir cuda && cp "$dir/cuda.c" cuda
        printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(cuda C)' 'find_package(devstream CONFIG REQUIRED)' \
            'add_executable(fixed cuda.c)' 'target_link_libraries(fixed PRIVATE devstream::static)' \
            'add_executable(main cuda.c)' 'target_link_libraries(main PRIVATE devstream::shared)' >cuda/CMakeLists.txt
        cmake -S cuda -B cuda/out -DCMAKE_PREFIX_PATH="$PWD/usr" "$@" && cmake --build cuda/out
        for program in fixed main; do
            cuda/out/$program | tee said
            grep -i '^cuda' said
            if grep 'not compiled in' said; then return 1; fi
        done
    }
    t "DEVSTREAM_CUDA=DLOPEN: the CUDA driver without a toolkit: runs" "
        built . -DDEVSTREAM_CUDA=DLOPEN -DDEVSTREAM_TESTS=OFF
        reports -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON"
    if [ -n "${CUDA_HOME:-}" ] && [ -e "$CUDA_HOME/lib64/libcudart_static.a" ]; then
        t "DEVSTREAM_CUDA=ON: with the static cudart: runs, and the shared library shows none of it" "
            built . -DDEVSTREAM_CUDA=ON -DDEVSTREAM_TESTS=OFF -DCUDAToolkit_ROOT=$CUDA_HOME
            if nm -D --defined-only usr/lib*/libdevstream.so | grep -i ' cuda'; then exit 1; fi
            if needs usr/lib*/libdevstream.so | grep cudart; then exit 1; fi
            reports -DCUDAToolkit_ROOT=$CUDA_HOME"
    else
        skip "DEVSTREAM_CUDA=ON: no toolkit with a static cudart (CUDA_HOME)"
    fi
    over
fi

if part windows; then
    wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null)
    if have x86_64-w64-mingw32-gcc && [ -n "$wine" ]; then
        printf '%s\n' 'set(CMAKE_SYSTEM_NAME Windows)' 'set(CMAKE_SYSTEM_PROCESSOR x86_64)' 'set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc)' \
            'set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)' 'set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)' \
            'set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)' 'set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)' \
            "set(CMAKE_CROSSCOMPILING_EMULATOR $wine)" >"$dir/mingw.cmake"
        export WINEPREFIX="$dir/wine" WINEDEBUG=-all
        libraries=$(dirname "$(x86_64-w64-mingw32-gcc -print-libgcc-file-name)")
        t "for Windows, by mingw: builds, ctest passes under wine, and it installs a DLL, its import library and a static library" "
            mkdir $dir/windows
            export WINEPATH=\"$libraries;$dir/windows/out\"
            built $dir/windows -DCMAKE_TOOLCHAIN_FILE=$dir/mingw.cmake
            grep '100% tests passed.* out of 3' $dir/windows/tests
            ls $dir/windows/usr/bin/libdevstream.dll $dir/windows/usr/lib/libdevstream.dll.a $dir/windows/usr/lib/libdevstream.a
            x86_64-w64-mingw32-objdump -p $dir/windows/usr/bin/libdevstream.dll >shown
            if grep 'DLL Name' shown | grep -v 'KERNEL32\|msvcrt\|ucrt\|api-ms-win-crt\|libgcc_s'; then exit 1; fi
            [ \$(grep -c ' ds_[a-z0-9_]*\$' shown) -gt 300 ]
            if grep -e '-ldl' $dir/windows/usr/lib/pkgconfig/devstream.pc; then exit 1; fi"
        t "for Windows: find_package and the three targets: run under wine" "
            consumer 'find_package(devstream $series CONFIG REQUIRED)'
            cmake -S . -B out -DCMAKE_TOOLCHAIN_FILE=$dir/mingw.cmake -DCMAKE_PREFIX_PATH=$dir/windows/usr
            cmake --build out
            export WINEPATH=\"$libraries;$dir/windows/usr/bin\"
            for program in app fixed main; do # into a file: a pipe would wait for wine's server
                timeout 200 $wine out/\$program.exe >\$program.said 2>&1 || { cat \$program.said; exit 1; }
            done
            grep 'hello from the stream, world' app.said
            grep 'linked: 42' fixed.said
            grep 'linked: 42' main.said
            x86_64-w64-mingw32-objdump -p out/main.exe | grep 'DLL Name: libdevstream.dll'
            for program in app fixed; do if x86_64-w64-mingw32-objdump -p out/\$program.exe | grep 'DLL Name: libdevstream'; then exit 1; fi; done"
    else
        skip "Windows: there is no mingw or no wine64"
    fi
    over
fi
over_all
