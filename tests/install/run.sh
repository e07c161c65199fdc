#!/bin/sh
# Installs into a folder of its own and builds programs against what was installed, by pkg-config and by CMake: with the headers, the
# static and the shared library, with CUDA where its toolkit is; then removes everything. A line per case and a closing count.
# Environment: CC (cc), CUDA_HOME (without CUDA when empty). Not optimised: that changes nothing here.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
CC=${CC:-cc} CUDA_HOME=${CUDA_HOME:-}
export CC
began=$(date +%s)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 1
passed=0 failed=0

t() { # t NAME COMMANDS: one case; as the condition of an if the commands would go on after one that fails
    (set -eu; eval "$2") >log 2>&1
    # shellcheck disable=SC2181
    if [ $? -eq 0 ]; then echo "ok    $1"; passed=$((passed + 1)); return 0; fi
    echo "FAIL  $1"
    head -n 20 log | sed 's/^/      /'
    failed=$((failed + 1))
    return 1
}
skip() { echo "skip  $1"; }

make_() { make -s -C "$root" MAKEFLAGS= CFLAGS=-O0 "$@"; } # of the make that calls this nothing is taken over
without="B=build/installed CUDA_HOME="
with="B=build/installed-cuda CUDA_HOME=$CUDA_HOME"
version=$(sed -n 's/^#define DEVSTREAM_VERSION_[A-Z]* //p' "$root/devstream.h" | paste -sd .)
series=${version%.*}
case $version in 0.*) ;; *) series=${version%%.*} ;; esac
sed -n '/(ds_[a-z0-9_]*)(/!s/^DS\(DEF\|INLINE\) [^(]*[ *]\(ds_[a-z0-9_]*\)(.*/\2/p; s/^ *X(\([a-z0-9_]*\), DS_CODE.*/ds_\1/p' "$root"/devstream*.h | sort -u >declared

# The same program twice: with the implementation, and for those who link.
cp "$root/examples/hello.c" app.c
# And a kernel, for CPU and GPU.
cat >add.kernels.h <<'END'
#include "devstream_kernel.h"
#if __has_include("add.ptx.h")
#include "add.ptx.h"
#endif
DS_KERNEL_1D(add, i, n, DS_READ(int, a, n), DS_READ_WRITE(int, b, n)) {
    b[i] += a[i];
}
END
cat >add.c <<'END'
#define DEVSTREAM_IMPLEMENTATION
#include "add.kernels.h"
#include <stdio.h>
int main(void) {
    int host[2] = { 40, 2 }, cuda = 0, peer = 9;
    void *a = NULL, *b = NULL;
    ds_stream s;
    if (ds_device_get_count(DS_DEVICE_CUDA, &cuda) < 0 || ds_stream_create(NULL, &s) < 0 ||
        ds_device_alloc(ds_device_current(), sizeof(int), &a) < 0 || ds_device_alloc(ds_device_current(), sizeof(int), &b) < 0 ||
        ds_copy(a, host, sizeof(int), s) < 0 || ds_copy(b, host + 1, sizeof(int), s) < 0 ||
        DS_LAUNCH(add, s, 1, (const int *)a, (int *)b) < 0 || ds_copy(host, b, sizeof(int), s) < 0 || ds_stream_synchronize(s) < 0 ||
        (cuda > 1 && ds_device_can_access_peer(ds_cuda(0), ds_cuda(1), &peer) < 0)) {
        puts(ds_error_get_last());
        return 1;
    }
    printf("%d, %d GPUs, peer %d\n", host[0], cuda, peer);
    return 0;
}
END
sed '/^#define DEVSTREAM_IMPLEMENTATION/d' app.c >main.c
use=$root/tests/compile/use.c # C and C++
owners=$root/tests/compile/owners.cpp
# The commands of docs/install.md: for a program with the implementation, for one with the shared and for one with the static library.
awk -v want=commands -f "$root/tests/compile/extract.awk" "$root/docs/install.md" | sed -n "/pkg-config/s|^cc |$CC -O0 |p" >commands

# ---- what is installed ----

cuda="" ahead=""
if [ -n "$CUDA_HOME" ] && [ -e "$CUDA_HOME/lib64/libcudart_static.a" ]; then
    cuda=1
    make_ library $with >ahead 2>&1 & ahead=$!
fi

t "make install" "make_ install $without PREFIX=$dir/usr"
(cd usr && find . ! -type d | sort) >files
t "the files are those of docs/install.md, and links lead to them" "
    { for h in devstream.h devstream.hpp devstream_alloc.h devstream_check.h devstream_comm.h devstream_kernel.h devstream_ranks.h devstream_rng.h devstream_trace.h; do echo ./include/\$h; done
      for f in devstream-config-version devstream-config; do echo ./lib/cmake/devstream/\$f.cmake; done
      for f in a so so.$series so.$version; do echo ./lib/libdevstream.\$f; done
      for f in devstream devstream-static; do echo ./lib/pkgconfig/\$f.pc; done
      for f in devstream-kernels devstream-ranks; do echo ./bin/\$f; echo ./share/man/man1/\$f.1; done; echo ./share/devstream/devstream.cdef.h; } | sort >wanted
    grep -v '^./share/doc/devstream/' files | diff wanted -
    for f in \$(cat files); do [ -s usr/\$f ]; done"
t "licence and pages are installed, and no link leads out of them, but for tests and examples" "
    doc=usr/share/doc/devstream
    cmp $root/LICENSE \$doc/LICENSE
    (cd $root && ls *.md docs/*.md) >pages && [ \$(wc -l <pages) -gt 15 ]
    for page in \$(cat pages); do
        cmp $root/\$page \$doc/\$page
        grep -o '](\([^)#:]*\)[)#]' \$doc/\$page | sed 's/^](//; s/[)#]\$//' | grep . | sort -u >links || continue
        while read -r link; do
            case \$link in *tests/* | *examples/*) continue ;; esac
            [ -e \$doc/\$(dirname \$page)/\$link ] || { echo \$page: \$link; exit 1; }
        done <links
    done"
t "all headers of the project are among them" "
    (cd $root && ls devstream*.h devstream*.hpp) | sort >headers; (cd usr/include && ls) | sort | diff headers -"
t "the shared library shows the declared functions and nothing else" "
    nm -D --defined-only usr/lib/libdevstream.so | awk '{ print \$NF }' | sort >shown
    grep -v '^ds_[a-z]' shown && exit 1
    [ \$(wc -l <declared) -gt 20 ] && comm -23 declared shown | grep . && exit 1
    cat usr/include/*.h | grep '^DS[A-Z]* ' >lines
    for name in \$(comm -13 declared shown); do grep -q \"\\<\$name\\>\" lines; done"
t "dlsym finds every declared function, inline ones too, in the shared library: runs" "
    printf '%s\\n' '#include <dlfcn.h>' '#include <stdio.h>' 'int main(int argc, char **argv) {' \\
        'void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL; char name[100]; int missing = !library;' \\
        'while (library && scanf(\"%99s\", name) == 1) if (!dlsym(library, name)) { missing = 1; puts(name); }' \\
        'return missing; }' >names.c
    $CC -std=gnu11 names.c -o names -ldl
    grep -qx ds_cpu declared && grep -qx ds_float32 declared && grep -qx ds_tensor_of declared
    ./names usr/lib/libdevstream.so <declared"
t "so does the static one, but for hidden ones of NVTX where its header is found" "
    nm -g --defined-only usr/lib/libdevstream.a | awk 'NF == 3 && !(\$2 ~ /[VW]/ && tolower(\$NF) ~ /nvtx/) { print \$NF }' | sort | diff shown -"
t "the tool for flight recorders is executable and refuses another file" "
    command -v python3 >/dev/null || exit 0
    status=0; usr/bin/devstream-ranks app.c >out 2>&1 || status=\$?
    [ \$status -eq 2 ] && grep -F 'app.c: is not a flight recorder of devstream' out"
t "the tool for kernels is executable and finds the installed header" "
    command -v clang >/dev/null || exit 0
    usr/bin/devstream-kernels --ptx add.kernels.h && grep 'entry add' add.ptx"
t "the tool for kernels finds stale PTX" "
    command -v clang >/dev/null || exit 0
    cp add.kernels.h stale.kernels.h && usr/bin/devstream-kernels stale.kernels.h && usr/bin/devstream-kernels --check stale.kernels.h
    echo '/* changed */' >>stale.kernels.h
    if usr/bin/devstream-kernels --check stale.kernels.h 2>out; then exit 1; fi
    grep -F 'written from another text' out && rm stale.ptx.h
    if usr/bin/devstream-kernels --check stale.kernels.h 2>out; then exit 1; fi
    grep -F 'stale.ptx.h is missing' out"
t "the tool for kernels checks thread loops on request" "
    command -v clang >/dev/null || exit 0
    printf '%s\\n' '#include \"devstream_kernel.h\"' 'DS_BLOCK_KERNEL_1D(block, 32, DS_WRITE(int, y, 32)) { DS_THREADS y[DS_THREAD_X] = 1; }' >block.kernels.h
    usr/bin/devstream-kernels --ptx block.kernels.h && if grep 'barrier.sync' block.ptx; then exit 1; fi
    usr/bin/devstream-kernels --debug --ptx block.kernels.h && grep 'barrier.sync' block.ptx && grep 'target sm_70' block.ptx"
t "the tool for kernels names the rule of a wrong thread loop" "
    command -v clang >/dev/null || exit 0
    wrong() { # wrong WORDS BODY
        echo '#include \"devstream_kernel.h\"' >wrong.kernels.h
        echo \"DS_BLOCK_KERNEL_1D(wrong, 32, DS_WRITE(int, y, 32)) { \$2 }\" >>wrong.kernels.h
        if usr/bin/devstream-kernels wrong.kernels.h 2>out; then return 1; fi
        cat out && grep -F -e \"\$1\" out
    }
    for way in break return 'goto out'; do
        wrong 'must not be left by break, goto or return' \"DS_THREADS { if (DS_THREAD_X) \$way; y[DS_THREAD_X] = 1; } out: ;\"
    done
    wrong only_in_DS_THREADS 'int at = DS_THREAD_X; DS_THREADS y[at] = 1;'"
t "the shared library's soname is libdevstream.so.$series" "readelf -d usr/lib/libdevstream.so | grep 'SONAME.*\[libdevstream.so.$series\]'"

# ---- pkg-config ----

export PKG_CONFIG_PATH="$dir/usr/lib/pkgconfig"
needs() { readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p'; }
if command -v pkg-config >/dev/null; then
    t "pkg-config: the version is $version" "[ \"\$(pkg-config --modversion devstream devstream-static | uniq)\" = $version ]"
    t "pkg-config, --static: a program without shared libraries runs" "
        echo 'int main(void) { return 0; }' | $CC -static -x c - -o none || exit 0 # no static C library
        pkg-config --static --libs devstream | grep -e -ldl | grep -e -pthread
        if pkg-config --libs devstream | grep -e -ldl; then exit 1; fi
        $CC -static main.c \$(pkg-config --cflags --libs --static devstream) -o whole
        [ -z \"\$(needs whole)\" ] && ./whole | grep 'hello from the stream, world'"
    t "pkg-config, headers only: runs" "
        [ \$(wc -l <commands) = 4 ]
        eval \"\$(sed -n 1p commands)\"
        ./app | grep 'hello from the stream, world'
        needs app | grep devstream && exit 1 || true"
    t "pkg-config, headers only, cudart loaded at run time: runs" "
        rm app && eval \"\$(sed -n 2p commands)\"
        ./app | grep 'hello from the stream, world'
        needs app | grep cudart && exit 1 || true"
    t "pkg-config, shared library: runs" "
        eval \"\$(sed -n 3p commands)\"
        needs main | grep -x libdevstream.so.$series
        LD_LIBRARY_PATH=usr/lib ./main | grep 'hello from the stream, world'"
    t "pkg-config, static library: runs" "
        eval \"\$(sed -n 4p commands)\"
        ./main | grep 'hello from the stream, world'
        needs main | grep devstream && exit 1 || true"
    t "pkg-config, all examples, shared library: build" "
        for f in $root/examples/*.c; do
            sed '/^#define DEVSTREAM_IMPLEMENTATION/d' \$f >example.c
            $CC -std=c11 -O0 -I$root/examples example.c \$(pkg-config --cflags --libs devstream) -o example -lm
            needs example | grep -x libdevstream.so.$series
        done"
    command -v c++ >/dev/null && t "pkg-config, from C++, both libraries: run" "
        c++ -std=c++11 -x c++ $use -x none \$(pkg-config --cflags --libs devstream-static) -o use && ./use
        c++ -std=c++11 -x c++ $use -x none \$(pkg-config --cflags --libs devstream) -o use && LD_LIBRARY_PATH=usr/lib ./use"
    command -v c++ >/dev/null && t "pkg-config, devstream.hpp, shared library: runs" "
        c++ -std=c++11 $owners \$(pkg-config --cflags --libs devstream) -o owners && LD_LIBRARY_PATH=usr/lib ./owners"
else
    skip "pkg-config: not installed"
fi

# ---- plugins ----

t "two plugins, each with the static library, have each a devstream of its own: run" "
    for n in 2 3; do
        printf '%s\\n' '#include <devstream.h>' '__attribute__((visibility(\"default\"))) int plugin(void) {' \\
            'ds_cpu_desc cpu = { .devices = '\$n' }; ds_init_desc desc = { .cpu = &cpu }; int count = -1;' \\
            'if (ds_init(&desc) < 0 || ds_device_get_count(DS_DEVICE_CPU, &count) < 0) return -1;' \\
            'return count; }' >plugin\$n.c
        $CC -std=c11 -fPIC -shared plugin\$n.c -Iusr/include usr/lib/libdevstream.a -o plugin\$n.so -ldl -pthread
    done
    printf '%s\\n' '#include <dlfcn.h>' '#include <stdio.h>' 'int main(void) {' \\
        'for (int n = 2; n <= 3; n++) { char name[20]; snprintf(name, sizeof name, \"./plugin%d.so\", n);' \\
        'void *plugin = dlopen(name, RTLD_NOW | RTLD_GLOBAL); if (!plugin) { puts(dlerror()); return 1; }' \\
        'int (*count)(void) = (int (*)(void))dlsym(plugin, \"plugin\"); printf(\"%d \", count()); } return 0; }' >host.c
    $CC -std=gnu11 host.c -o host -ldl
    [ \"\$(./host)\" = '2 3 ' ]"

# ---- CMake ----

project() { # project FOLDER [BLOCKS]: the first blocks (1) of docs/install.md, and a program with the static library
    mkdir "$1" && cp app.c main.c "$1"
    awk -v last="${2:-1}" '/^```/ { on = /^```cmake/ && ++n <= last; next } on' "$root/docs/install.md" >"$1/CMakeLists.txt"
    printf '%s\n' 'add_executable(fixed main.c)' 'target_link_libraries(fixed PRIVATE devstream::static)' >>"$1/CMakeLists.txt"
}
asks() { # asks FOLDER VERSION: configures a project that wants this version
    mkdir -p "$1"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.19)' 'project(asks C)' "find_package(devstream $2 REQUIRED)" >"$1/CMakeLists.txt"
    cmake -S "$1" -B "$1/build" -DCMAKE_PREFIX_PATH="$dir/usr"
}
refuses() { # and this one is not good enough
    ! asks "$@" >out 2>&1 || return 1
    grep -q 'compatible with requested version' out
}
if command -v cmake >/dev/null; then
    t "CMake, the project of docs/install.md, headers, shared and static library: runs" "
        project cmake
        cmake -S cmake -B cmake/build -DCMAKE_PREFIX_PATH=$dir/usr -DCMAKE_C_FLAGS=-O0
        cmake --build cmake/build
        for p in app main fixed; do cmake/build/\$p | grep 'hello from the stream, world'; done
        needs cmake/build/main | grep -x libdevstream.so.$series
        [ -z \"\$(needs cmake/build/fixed | grep devstream)\" ]"
    command -v c++ >/dev/null && t "CMake, devstream.hpp, static library: runs" "
        mkdir owned
        printf '%s\\n' 'cmake_minimum_required(VERSION 3.16)' 'project(owned CXX)' 'find_package(devstream REQUIRED)' \\
            'add_executable(owners $owners)' 'target_link_libraries(owners PRIVATE devstream::static)' >owned/CMakeLists.txt
        cmake -S owned -B owned/build -DCMAKE_PREFIX_PATH=$dir/usr && cmake --build owned/build && owned/build/owners"
    t "CMake: takes versions of the series, no later and no other ones" "
        asks same $version && asks range ${version}...9
        refuses later ${version%.*}.999 && refuses other 99 && refuses before 0.0.1 && refuses ranges 98...99"
else
    skip "CMake: not installed"
fi

# ---- for packages ----

triplet=$($CC -print-multiarch 2>/dev/null)
t "DESTDIR: the files name the place where they will be; CMake finds them where they are" "
    lib=/usr/lib/${triplet:-aarch64-linux-gnu}
    make_ install $without DESTDIR=$dir/stage PREFIX=/usr LIBDIR=\$lib
    [ -e stage\$lib/libdevstream.so.$series ] && [ -e stage/usr/include/devstream.h ]
    grep -rF $dir stage/usr/include stage\$lib/pkgconfig stage\$lib/cmake && exit 1
    [ \$(PKG_CONFIG_PATH=stage\$lib/pkgconfig pkg-config --variable=libdir devstream) = \$lib ]
    command -v cmake >/dev/null || exit 0
    printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(staged C)' \\
        'find_package(devstream REQUIRED PATHS \${CMAKE_SOURCE_DIR}/stage'\$lib/cmake' NO_DEFAULT_PATH)' \\
        'add_executable(main main.c)' 'target_link_libraries(main PRIVATE devstream::static)' >CMakeLists.txt
    cmake -S . -B staged && cmake --build staged && staged/main
    make_ uninstall $without DESTDIR=$dir/stage PREFIX=/usr LIBDIR=\$lib
    [ -z \"\$(find stage ! -type d)\" ]"
# Packages replace the command that copies.
printf '#!/bin/sh\necho "$*" >>%s/copied\nexec install "$@"\n' "$dir" >copy
chmod +x copy
t "the GNU variables: each folder, INSTALL and CPPFLAGS have their effect, and make uninstall removes all" "
    gnu() { # gnu VERB
        make_ \$1 B=build/installed-gnu CUDA_HOME= CPPFLAGS=-DDS__SEEN_BY_CPPFLAGS INSTALL='$dir/copy -p' DESTDIR=$dir/gnu \\
            prefix=/a exec_prefix=/b bindir=/c/bin includedir=/d libdir=/e/lib64 datarootdir=/f datadir=/i docdir=/g/doc mandir=/h/man
    }
    gnu install
    [ -x gnu/c/bin/devstream-kernels ] && [ -e gnu/d/devstream.h ] && [ -e gnu/e/lib64/pkgconfig/devstream.pc ]
    [ -e gnu/g/doc/LICENSE ] && [ -e gnu/h/man/man1/devstream-kernels.1 ] && [ -e gnu/i/devstream/devstream.cdef.h ]
    [ -z \"\$(find gnu ! -type d | grep -v '^gnu/[cdeghi]/')\" ]
    grep -e '-p .*bin/devstream-kernels' copied && grep -e '-p -m 644 .*devstream.h' copied
    [ \$(find gnu -type f | wc -l) = \$(wc -l <copied) ]
    tr ' ' '\n' <$root/build/installed-gnu/flags | grep -x -e -DDS__SEEN_BY_CPPFLAGS
    gnu uninstall
    [ -z \"\$(find gnu ! -type d)\" ] && [ ! -e gnu/g/doc ]"
t "prefix in lower case sets all folders" "
    make_ install $without DESTDIR=$dir/lower prefix=/opt/here
    [ -e lower/opt/here/lib/libdevstream.a ] && [ \"\$(ls lower lower/opt | xargs)\" = 'lower: opt lower/opt: here' ]
    grep -x 'prefix=/opt/here' lower/opt/here/lib/pkgconfig/devstream.pc"

# In place of the commands that install or download stand some that record the call.
mkdir -p sealed/bin sealed/tests
cp -R "$root/tools" sealed/tools && cp -R "$root/tests/ranks" sealed/tests/ranks && cp "$root/Makefile" "$root/devstream.h" sealed
for command in apt-get dnf sudo python3; do
    printf '#!/bin/sh\ncase "$*" in *--version*) exit 0 ;; esac\necho "%s $*" >>%s\nexit 1\n' $command "$dir/called" >sealed/bin/$command
done
printf '#!/bin/sh\ncase "$*" in *-fsyntax-only*) exit 1 ;; esac\nexec %s "$@"\n' "$CC" >sealed/bin/no-cmocka
chmod +x sealed/bin/*
t "NO_INSTALL_DEPS: nothing is installed or downloaded, and a sentence says so" "
    PATH=$dir/sealed/bin:\$PATH
    steps() { # what make check and its parts install
        if make -s MAKEFLAGS= CC=no-cmocka cmocka; then return 1; fi
        if CC=$CC tools/cmocka.sh build/cmocka; then return 1; fi
        CUDA_HOME= tools/cuda-headers.sh 12.9
        if tests/ranks/install.sh mpich; then return 1; fi
    }
    cd sealed
    rm -f ../called
    (export NO_INSTALL_DEPS=1; steps) >out 2>&1
    cat out
    [ ! -e ../called ]
    [ \$(grep -c 'NO_INSTALL_DEPS is set' out) = 4 ]
    steps >out 2>&1
    cat ../called
    grep apt-get ../called && grep 'python3 .*cuda-runtime\|python3 .*cuda-crt' ../called && grep 'python3 .*mpich' ../called"
t "a relative PREFIX is refused" "! make_ install $without PREFIX=here && [ ! -e $root/here ]"
t "make uninstall takes all of it and nothing else" "
    echo mine >usr/include/mine.h
    make_ uninstall $without PREFIX=$dir/usr
    [ \"\$(find usr ! -type d)\" = usr/include/mine.h ] && [ ! -e usr/lib/cmake/devstream ]"

# ---- with CUDA ----

if [ -n "$cuda" ]; then
    cat >cuda.c <<'END'
#include <devstream.h>
#include <stdio.h>
int main(void) {
    char report[1000] = "";
    if (ds_backend_format(report, sizeof report) < 0) return 1;
    fputs(report, stdout);
    return ds_shutdown() < 0;
}
END
    has_cuda() { if grep 'not compiled in' "$1"; then return 1; fi; grep -i '^cuda' "$1"; } # "! grep" would end nothing
    wait "$ahead" # what went wrong there goes wrong again
    t "with CUDA: make install" "make_ install $with PREFIX=$dir/cuda"
    export PKG_CONFIG_PATH="$dir/cuda/lib/pkgconfig"
    t "with CUDA: the shared library needs no cudart and shows none" "
        nm -D --defined-only cuda/lib/libdevstream.so | awk '{ print \$NF }' | grep -v '^ds_[a-z]' && exit 1
        needs cuda/lib/libdevstream.so | grep cudart && exit 1 || true"
    command -v pkg-config >/dev/null && t "with CUDA: pkg-config, both libraries, without CUDA's headers and folders: run" "
        for kind in devstream devstream-static; do
            $CC -std=c11 cuda.c \$(pkg-config --cflags --libs \$kind) -o cuda-\$kind
            LD_LIBRARY_PATH=cuda/lib ./cuda-\$kind | tee out
            has_cuda out
        done"
    name=$(cd cuda/lib/devstream && ls)
    t "with CUDA: the stand-in is installed, and is not found by linkers" "
        case $name in libcudart.so.[1-9]*) ;; *) exit 1 ;; esac
        readelf -d cuda/lib/devstream/$name | grep 'SONAME.*\[$name\]'
        [ -x cuda/bin/devstream-standin ] && ! grep -F $dir cuda/bin/devstream-standin"
    if [ -e "$CUDA_HOME/lib64/libcudart.so" ] && command -v pkg-config >/dev/null && command -v clang >/dev/null; then
        t "with CUDA: a program runs on the installed stand-in, with its options" "
            cuda/bin/devstream-kernels add.kernels.h
            $CC -O0 -DDEVSTREAM_CUDA add.c \$(pkg-config --cflags devstream) -o add -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart
            [ \"\$(cuda/bin/devstream-standin ./add)\" = '42, 4 GPUs, peer 1' ]
            [ \"\$(cuda/bin/devstream-standin --devices 2 --peers=0100 -- ./add)\" = '42, 2 GPUs, peer 1' ]
            [ \"\$(cuda/bin/devstream-standin --devices 2 --peers none --memory 4194304 ./add)\" = '42, 2 GPUs, peer 0' ]
            PATH=$dir:$dir/cuda/bin:\$PATH && [ \"\$(cd / && devstream-standin --devices 4 --peers half add)\" = '42, 4 GPUs, peer 1' ]"
        t "with CUDA: a program that loads cudart runs on the installed stand-in" "
            cuda/bin/devstream-kernels add.kernels.h
            $CC -O0 -DDEVSTREAM_CUDA_DLOPEN add.c \$(pkg-config --cflags devstream) -o loads -pthread -ldl
            [ \"\$(DEVSTREAM_CUDART=/nowhere cuda/bin/devstream-standin --devices 2 ./loads)\" = '42, 2 GPUs, peer 1' ]"
        t "with CUDA: programs that cannot run on the stand-in end with a sentence" "
            refused() { # refused WORDS ARGUMENTS
                words=\$1 status=0; shift
                cuda/bin/devstream-standin \"\$@\" >out 2>&1 || status=\$?
                cat out; [ \$status -eq 2 ] && [ \$(wc -l <out) -eq 1 ] && grep -e \"\$words\" out
            }
            at='-I$CUDA_HOME/include -L$CUDA_HOME/lib64'
            echo '#include <cuda_runtime_api.h>
                int main(void) { return cudaFree(0) + cudaDestroyTextureObject(0); }' >texture.c
            $CC texture.c \$at -lcudart -o texture && refused 'not have: cudaDestroyTextureObject' ./texture
            sed 's/ + [^;]*//' texture.c >plain.c
            $CC plain.c \$at -lcudart_static -ldl -lrt -pthread -o fixed && refused './fixed contains cudart as a static' ./fixed
            $CC plain.c \$at -lcudart -Wl,--disable-new-dtags,-rpath,$CUDA_HOME/lib64 -o rpath && cuda/bin/devstream-standin ./rpath
            $CC cuda.c \$(pkg-config --cflags --libs devstream) -o linked
            LD_LIBRARY_PATH=cuda/lib refused 'libdevstream.* contains cudart as a static' ./linked
            refused 'sh neither loads cudart nor is linked with it' sh -c true
            cuda/bin/devstream-standin --no-check sh -c 'exit \$STANDIN_DEVICES' || [ \$? -eq 4 ]
            refused 'devices 17: a number from 1 to 16' --devices 17 ./add
            refused '4 digits are needed' --devices 2 --peers 010 ./add
            refused 'all, none, half, or 4 digits' --devices 2 --peers 0102 ./add
            refused 'memory 4k: a number of bytes' --memory 4k ./add
            cp ./add twelve && sed -i s/libcudart.so.13/libcudart.so.12/g twelve && refused 'twelve needs libcudart.so.12' ./twelve
            mv cuda/lib/devstream/$name moved && refused 'there is no stand-in in .*/cuda/lib/devstream' ./add
            mv moved cuda/lib/devstream/$name"
        if [ -x "$CUDA_HOME/bin/nvcc" ]; then
            t "with CUDA: a program with a fatbin ends with a sentence on the stand-in" "
                echo '__global__ void k(void) {} int main() { k<<<1, 1>>>(); }' >fatbin.cu
                $CUDA_HOME/bin/nvcc -cudart shared fatbin.cu -o fatbin
                status=0; cuda/bin/devstream-standin ./fatbin 2>out || status=\$?
                [ \$status -eq 2 ] && grep 'kernels that nvcc compiled into it as a fatbin' out"
        fi
    else
        skip "with CUDA: the stand-in: no shared cudart, no pkg-config or no clang"
    fi
    command -v cmake >/dev/null && t "with CUDA: CMake, both libraries: run" "
        project with && cp cuda.c with/main.c
        sed -i '/(app /d' with/CMakeLists.txt
        cmake -S with -B with/build -DCMAKE_PREFIX_PATH=$dir/cuda && cmake --build with/build
        for p in main fixed; do with/build/\$p >out; has_cuda out; done"
    command -v cmake >/dev/null && t "with CUDA: CMake, all blocks of docs/install.md, the implementation in the program: run" "
        project both 3 && cp cuda.c both/main.c && { echo '#define DEVSTREAM_IMPLEMENTATION'; cat cuda.c; } >both/app.c
        grep CUDAToolkit both/CMakeLists.txt
        cmake -S both -B both/build -DCMAKE_PREFIX_PATH=$dir/cuda -DCUDAToolkit_ROOT=$CUDA_HOME && cmake --build both/build
        for p in app main fixed; do both/build/\$p >out; has_cuda out; done
        [ -z \"\$(needs both/build/app | grep devstream)\" ]
        (cd both/build && ctest --output-on-failure)"
    t "with CUDA: make uninstall takes the stand-in and its command, too" "
        make_ uninstall $with PREFIX=$dir/cuda && [ -z \"\$(find cuda ! -type d)\" ] && [ ! -e cuda/lib/devstream ]"
else
    skip "with CUDA: no toolkit with a static cudart (CUDA_HOME)"
fi

echo "install: $passed passed, $failed failed in $(($(date +%s) - began)) s"
[ "$failed" -eq 0 ]
