#!/bin/sh
# Compiles, and where it says so runs, every way in which a user may include devstream.
#     run.sh [--fast] [folder with the headers]
# One line per case and a closing count; the exit status is 1 when a case failed. --fast takes only CC and few dialects.
# Environment: CC (cc), JOBS at once (2), CUDA_HOME (skipped when empty), OBJECT: the implementation, compiled by CC with -O2 and
# these warnings, for --fast, which compiles one itself without it; ONLY: a pattern of the cases wanted, e.g. 'pages\|\.md' (make pages);
# SHARE=N: every N-th case (tests/turn.sh), a fourth of the pages, and what others need or what looks at all pages.
# Compiling the implementation takes seconds, with the optimiser many, so cases share objects, and what only the compiler's
# first half can notice stops there (-fsyntax-only). Warnings that need the optimiser are looked for once per compiler and level.
set -u
tests=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$tests/../.." && pwd)
fast=; [ "${1:-}" = --fast ] && { fast=1; shift; }
I=$(cd "${1:-$root}" && pwd) || exit 1
label=; [ -e "$I/devstream_alloc.h" ] || label="single file: "
CC=${CC:-cc} CUDA_HOME=${CUDA_HOME:-}
began=$(date +%s)

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# What every case begins with. fails TEXT COMMAND...: the command must fail and name TEXT.
cat >"$dir/prelude" <<END
set -eu
T='$tests' I='$I' root='$root' CUDA_HOME='$CUDA_HOME'
warn='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror'
C="\$warn -Wstrict-prototypes -I\$I"
CXX="\$warn -I\$I"
fails() {
    text=\$1; shift
    if "\$@" >out 2>&1; then echo "compiled, but should not"; return 1; fi
    grep -q -- "\$text" out || { echo "failed without naming '\$text':"; cat out; return 1; }
}
END

have() { command -v "$1" >/dev/null 2>&1; }
n=0 round=2 seen=0 needed=
turn=$(i=0; while [ $i -lt "${SHARE:-1}" ]; do echo $i; i=$((i + 1)); done | xargs "$root/tests/turn.sh")
t() { # t NAME COMMANDS: one case
    [ -z "${ONLY:-}" ] || [ "$1" = "$CC -O0, implementation" ] || echo "$1" | grep -q "$ONLY" || return 0
    seen=$((seen + 1))
    every=${SHARE:-1}
    case $1 in pages*) every=1 ;; *.md*) [ "$every" -lt 4 ] || every=4 ;; esac
    [ -n "$needed" ] || [ $((seen % every)) -eq $((turn % every)) ] || return 0
    n=$((n + 1))
    mkdir "$dir/$n"
    echo "$label$1" >"$dir/$n/name"
    { cat "$dir/prelude"; printf '%s\n' "$2"; } >"$dir/$n/case"
    echo "$dir/$n" >>"$dir/round$round"
}
long() { round=1; t "$@"; round=2; } # run before the others, since it takes long
early() { needed=1; long "$@"; needed=; } # the same, and others want its object
skip() { echo "skip  $label$1"; skipped=$((skipped + 1)); }
skipped=0

cxx_of() { echo "$1" | sed 's/clang/clang++/; t; s/gcc/g++/; t; s/cc$/c++/'; }
header_names=devstream.h
[ -n "$label" ] || header_names="$header_names devstream_alloc.h devstream_comm.h devstream_rng.h devstream_kernel.h"
alloc=devstream_alloc.h; [ -z "$label" ] || alloc=devstream.h
rng=devstream_rng.h

dialects='-std=c11'
owner_dialects='-std=c++20'
[ -n "$fast" ] || owner_dialects='-std=c++11 -std=c++14 -std=c++17 -std=c++20'
[ -n "$fast" ] || dialects='-std=c11 -std=gnu11 -std=c11,-D_GNU_SOURCE -std=c11,-include,stdio.h'

declarations() { # declarations CC: what costs little; in C, and in the first and the latest C++
    cc=$1 cxx=$(cxx_of "$1")
    for h in $header_names; do
        for d in $dialects; do
            d=$(echo "$d" | tr , ' ')
            t "$cc $d, $h alone" "$cc $d \$C -DHEADER='\"$h\"' -c \$T/decl.c"
        done
        have "$cxx" || continue
        for std in c++11 c++20; do
            t "$cxx -std=$std, $h alone" "$cxx -std=$std \$CXX -DHEADER='\"$h\"' -x c++ -c \$T/decl.c"
        done
    done
    t "$cc, included twice" "$cc -std=c11 \$C -fsyntax-only \$T/twice.c"
    if have "$cxx"; then t "$cxx, implementation is refused" "fails devstream.c $cxx -I\$I -x c++ -fsyntax-only \$T/impl.c"
    else skip "$cxx: not installed"; fi
}

runs() { # runs CC OBJECT: the programs that are linked with that implementation
    cc=$1 cxx=$(cxx_of "$1")
    t "$cc, two files, one implements: runs" "$cc -std=c11 -O2 \$C $2 \$T/use.c -o use -pthread && ./use"
    have "$cxx" || return 0
    t "$cxx, scopes and verbs, linked with the C object: runs" "
        $cxx -std=c++11 \$CXX -x c++ -c \$T/use.c -o use.o && $cxx $2 use.o -o use -pthread && ./use"
    t "$cxx, devstream.hpp with and without exceptions and RTTI: runs" "
        for options in '-std=c++11 -fno-exceptions -fno-rtti' $owner_dialects; do
            $cxx \$options \$CXX -c \$T/owners.cpp -o owners.o
            $cxx $2 owners.o -o owners -pthread && ./owners
        done"
    t "$cxx, devstream.hpp: unused results and elements with constructors are refused" "
        for n in 1 2 3 4; do fails unused-result $cxx -std=c++11 \$CXX -DUNCHECKED=\$n -c \$T/owners.cpp; done
        fails 'trivially copyable' $cxx -std=c++11 \$CXX -DUNCHECKED=5 -fsyntax-only \$T/owners.cpp"
    t "$cxx, the example of devstream.hpp: runs" "
        awk -v want=header -f \$T/extract.awk \$I/devstream.hpp >app.cpp
        $cxx -std=c++11 \$CXX app.cpp $2 -o app -pthread && ./app >out && grep -q '^1000 floats, the last is 1.5' out"
}

compiler() { # compiler CC: what is done with each compiler
    cc=$1 o2=../$(echo "$1" | tr -c 'A-Za-z0-9\n' _)-O2
    m=; [ "$(uname -m)" != x86_64 ] || m=' -m64'
    declarations "$cc"
    if [ -z "$fast" ]; then
        early "$cc -O2$m, implementation" "$cc -std=c11 -O2$m \$C -c \$T/impl.c -o $o2.o && times >$o2.time"
        long "$cc -O3, implementation" "$cc -std=c11 -O3 \$C -c \$T/impl.c"
        long "$cc -Og, implementation" "$cc -std=c11 -Og \$C -c \$T/impl.c"
        long "$cc -Os -fPIC -fvisibility=hidden, implementation" "$cc -std=c11 -Os -fPIC -fvisibility=hidden \$C -c \$T/impl.c"
        for d in -std=gnu11 '-std=c11 -D_GNU_SOURCE' '-std=c11 -include stdio.h'; do
            t "$cc $d, implementation" "$cc $d \$C -fsyntax-only \$T/impl.c"
        done
    elif [ -z "${OBJECT:-}" ]; then
        OBJECT=$o2.o
        early "$cc -O2, implementation" "$cc -std=c11 -O2 \$C -c \$T/impl.c -o $OBJECT"
    fi
    if [ -n "$fast" ]; then runs "$cc" "$OBJECT"; else runs "$cc" $o2.o; fi
    t "$cc, DEVSTREAM_STATIC: runs" "$cc -std=c11 \$C -DIMPLEMENT -DDEVSTREAM_STATIC \$T/use.c -o use -pthread && ./use
        nm -g --defined-only use | grep ' ds_' && exit 1 || true"
    t "$cc, the allocator's example: runs" "
        awk -v want=header -f \$T/extract.awk \$I/devstream_alloc.h >app.c
        $cc -std=c11 \$C app.c -o app -pthread && ./app >out && grep -q 'bytes are cached' out"
    t "$cc, the generators' example: runs" "
        awk -v want=header -f \$T/extract.awk \$I/$rng >app.c
        $cc -std=c11 \$C app.c -o app -pthread && ./app >out && grep -q '^[0-9.]* [0-9.]* [0-9.]* [0-9.]*\$' out"
    [ -z "$fast" ] || return 0
    t "$cc, DEVSTREAM_NO_SITES: runs" "$cc -std=c11 \$C -DIMPLEMENT -DDEVSTREAM_NO_SITES \$T/use.c -o use -pthread && ./use"
    t "$cc, DEVSTREAM_NO_CPU: runs" "$cc -std=c11 \$C \$T/nocpu.c -o nocpu -pthread && ./nocpu"
    t "$cc -ffast-math, reductions of floats are refused: runs" "
        $cc -std=c11 -ffast-math \$C \$T/fastmath.c -o fastmath -pthread && ./fastmath"
    t "$cc, the allocator after devstream.h, static, without sites: runs" "
        { echo '#include \"devstream.h\"'; awk -v want=header -f \$T/extract.awk \$I/devstream_alloc.h; } >app.c
        $cc -std=c11 -DDEVSTREAM_STATIC -DDEVSTREAM_NO_SITES \$C app.c -o app -pthread && ./app >out && grep -q 'bytes are cached' out"
    t "$cc, the header's example: runs" "
        awk -v want=header -f \$T/extract.awk \$I/devstream.h >app.c
        $cc -std=c11 \$C app.c -o app -pthread && ./app >out && grep -q 'hello from the stream, world' out"
}

# The single file: whatever is defined, it has the same lines as the several headers, with all declarations in front, and the same object code.
single() {
    cc=$1
    declarations "$cc"
    for d in -DDEVSTREAM_IMPLEMENTATION -DDEVSTREAM_NO_NVTX -DDEVSTREAM_STATIC -DDEVSTREAM_NO_SITES '-DDEVSTREAM_STATIC -DDEVSTREAM_NO_SITES' \
        -DDEVSTREAM_NO_CPU -DDEVSTREAM_API=extern "-DDEVSTREAM_CUDA -I$CUDA_HOME/include"; do
        case $d in *CUDA*) [ -n "$CUDA_HOME" ] || continue ;; esac
        t "$cc ${d%% -I*}, the same lines as the several headers" "
            # Declarations that follow another header's implementation are hidden, as their definitions are.
            lines() { \"\$@\" -E -P -dD | sed 's/__attribute__((visibility(\"hidden\")))//; s/^ *//' | grep -v '_INCLUDED *\$\|^ *\$' | sort; }
            lines $cc -std=c11 $d -I\$root \$root/devstream.c >several
            lines $cc -std=c11 $d -I\$I \$T/impl.c >single
            [ \$(wc -l <several) -gt 1000 ] && diff several single"
    done
    t "$cc, the same object code as of the several headers" "
        $cc -std=c11 -O0 -I\$root -c \$root/devstream.c -o several.o && $cc -std=c11 -O0 -I\$I -c \$T/impl.c -o single.o
        # The sizes of all functions and objects; those of sections also have padding, which depends on the order of the objects.
        for o in several single; do nm -S --defined-only \$o.o | awk 'NF == 4 { sub(/\.[0-9]+\$/, \"\", \$4); print \$2, \$3, \$4 }' | sort >\$o.symbols; done
        [ \$(wc -l <several.symbols) -gt 1000 ]
        diff several.symbols single.symbols"
}
compilers=
for cc in $([ -n "$fast" ] && echo "$CC" || echo gcc clang); do
    if have "$cc"; then compilers="$compilers $cc"; else skip "$cc: not installed"; fi
done
for cc in $compilers; do
    if [ -z "$label" ]; then compiler "$cc"; else single "$cc"; fi
done
if [ -n "$fast" ]; then impl=$OBJECT; else
    impl=../impl.o
    early "$CC -O0, implementation" "$CC -std=c11 -O0 \$C -c \$T/impl.c -o $impl"
fi
[ -z "$label" ] || runs "$CC" $impl

t "exported names begin with ds_ and are declared, but for the weak ones of NVTX where its header is found" "
    nm -g --defined-only $impl | awk '!(\$2 ~ /[VW]/ && tolower(\$NF) ~ /nvtx/) { print \$NF }' >names
    grep -v '^ds_[a-z]' names && { echo 'these names are visible'; exit 1; }
    for name in \$(cat names); do cat \$I/*.h | grep -q \"^DS[A-Z]* .*\\<\$name\\>\\|^ *X(\${name#ds_},\" || { echo \"\$name is not declared\"; exit 1; }; done"
t "what is exported is functions, no data" "
    nm -g --defined-only $impl >names && grep -q ' T ds_' names
    if awk '\$2 !~ /[TVW]/' names | grep .; then exit 1; fi"
t "every declared function is there" "
    nm -g --defined-only $impl | awk '{ print \$NF }' >names
    sed -n '/(ds_[a-z0-9_]*)(/!s/^DS\(DEF\|INLINE\) [^(]*[ *]\(ds_[a-z0-9_]*\)(.*/\2/p; s/^ *X(\([a-z0-9_]*\), DS_CODE.*/ds_\1/p' \$I/*.h | sort -u >declared
    [ \$(wc -l <declared) -gt 20 ]
    for name in \$(cat declared); do grep -qx \$name names || { echo \"\$name is missing\"; exit 1; }; done"
t "macros begin with DS or ds_" "
    $CC -std=c11 -dM -E \$T/names.c | sort >before
    echo '#include \"$alloc\"' | $CC -std=c11 -I\$I -dM -E -x c - | sort >after
    comm -13 before after | awk '{ print \$2 }' | grep -v '^\(DS\|DEVSTREAM\|ds_\)' && { echo 'these macros are visible'; exit 1; } || true"
[ -n "$label" ] || t "DEVSTREAM_API stands in front of every function" "
    $CC -std=c11 -fPIC -shared '-DDEVSTREAM_API=__attribute__((visibility(\"hidden\")))' \$C \$T/impl.c -o lib.so -pthread
    nm -D --defined-only lib.so | grep ' ds_' && exit 1 || true"
[ -n "$label" ] || t "a shared object with the implementation exports none of it, but all with DEVSTREAM_SHARED" "
    $CC -std=c11 -O0 -fPIC -shared \$C \$T/impl.c -o lib.so -pthread
    nm -D --defined-only lib.so | grep ' ds_' && exit 1
    printf '%s\\n' '#include \"devstream.h\"' '#define DEVSTREAM_IMPLEMENTATION' '#include \"devstream_alloc.h\"' >late.c
    $CC -std=c11 -O0 -fPIC -shared \$C late.c -o late.so -pthread
    nm -D --defined-only late.so | grep ' ds_\(init\|mem_alloc\|stream_create\)\$' && exit 1
    $CC -std=c11 -O0 -fPIC -shared -fvisibility=hidden -DDEVSTREAM_SHARED \$C \$T/impl.c -o shared.so -pthread
    [ \$(nm -D --defined-only shared.so | grep -c ' T ds_') -gt 300 ]"

# The headers against the source tree: whatever is defined, and in whatever order the headers are included, the compiler sees the same text.
same_text='same_text() { # same_text FOLDER FOLDER FILE OPTIONS...: both give the same text
        one=$1 two=$2 file=$3; shift 3
        '"$CC"' -std=c11 "$@" -I$one -E -P $file >one && '"$CC"' -std=c11 "$@" -I$two -E -P $file >two
        [ $(wc -l <one) -gt 1000 ] && cmp one two
    }'
if [ -z "$label" ]; then
    for d in '' "-DDEVSTREAM_CUDA -I$CUDA_HOME/include" -DDEVSTREAM_NO_CPU -DDEVSTREAM_NO_SITES -DDEVSTREAM_STATIC; do
        case $d in *CUDA*) [ -n "$CUDA_HOME" ] || continue ;; esac
        t "headers are what src/ has: ${d%% -I*}" "$same_text
            sed 's/^/ /' \$I/devstream.c >all.c && same_text \$I \$root/src all.c $d"
    done
    t "headers in every order, implementation at the first, the last and a second include" "$same_text
        for order in 'alloc comm rng' 'alloc rng comm' 'comm alloc rng' 'comm rng alloc' 'rng alloc comm' 'rng comm alloc'; do
            for first in 1 3 4; do # before which of the includes, of which there are six, it is requested
                n=0
                for name in \$order \$order; do
                    n=\$((n + 1))
                    [ \$n != \$first ] || echo '#define DEVSTREAM_IMPLEMENTATION'
                    [ \$n -le 3 ] || [ \$first = 4 ] || continue
                    echo \"#include \\\"devstream_\$name.h\\\"\"
                done >order.c
                same_text \$I \$root/src order.c
                [ \$first != 4 ] || $CC -std=c11 \$C -fsyntax-only order.c
            done
        done"
fi

if [ -n "$label" ]; then :
elif [ -e "$root/README.md" ]; then
    t "README: its program is examples/hello.c" "
        awk -v want=program -f \$T/extract.awk \$root/README.md >program.c
        sed -n '/DEVSTREAM_IMPLEMENTATION/,\$p' \$root/examples/hello.c | diff program.c -"
else
    skip "README.md: not there"
fi

[ -n "$fast$label" ] || t "examples: memory explains itself, replay reads a trace and refuses nonsense: run" "
    $CC -std=c11 -O1 -I\$I \$root/examples/memory.c -o memory -pthread -lm && ./memory --cpu --out page >out && [ -s page.html ] && [ -s page.pickle ]
    command -v xz >/dev/null || exit 0
    $CC -std=c11 -O1 -I\$I \$root/examples/replay.c -o replay -pthread -lm && ./replay \$root/bench/data/train.trace.xz '' >out
    fails nonsense ./replay \$root/bench/data/train.trace.xz nonsense:1
    { xz -dc \$root/bench/data/train.trace.xz | head -c 8; printf '\1\0\0\0\0\0\0\0\0\0\0\020\0\0\0\0'; head -c 16 /dev/zero; } >bad.trace
    fails 'more blocks than it has lines' ./replay bad.trace ''"
[ -n "$fast$label" ] || t "examples: replay tells of a log of ds_resource_create_log what each configuration would have reserved: runs" "
    $CC -std=c11 -O1 \$C \$T/record.c -o record -pthread -lm && ./record log.csv
    $CC -std=c11 -O1 -I\$I \$root/examples/replay.c -o replay -pthread -lm && ./replay log.csv preset:torch preset:cupy >out
    grep -q '^4 allocations on 2 streams of 1 devices, at most 33.0 MiB live' out
    awk '{ print \$1, \$2, \$3, \$4, \$5, \$6 }' out >numbers
    grep -qx 'preset:torch 64.0 1.939 76.6% 4 0' numbers # segments of 30, 20, 2 and 12 MiB
    grep -qx 'preset:cupy 45.0 1.364 66.7% 4 0' numbers # each as large as its block
    sed '3s/.*/nonsense/' log.csv >bad.csv
    fails 'ds_resource_create_log did not write' ./replay bad.csv ''"
[ -n "$fast$label" ] || t "examples: train recognises 95 % of the digits, with the same weights on one device and on four: runs" "
    $CC -std=c11 -O2 \$C \$root/examples/train.c -o train -pthread
    ./train \$root/examples/data/digits.csv >out && grep -q 'bit for bit' out"
# The pages. Their C blocks are numbered and linked with an object that is there: pages/NAME.c says where each one stands in a
# program, for docs/NAME.md; a page without such a file gets default.c, so a new page is covered, or fails here.
page() { # page PATH
    name=$(basename "$1" .md)
    frame=default
    [ "$1" != "docs/$name.md" ] || [ ! -e "$tests/pages/$name.c" ] || frame=$name
    t "$1: its C blocks compile and run" "
        awk -v want=blocks -v page=$1 -f \$T/extract.awk \$root/$1
        frame=\$T/pages/$frame.c blocks=
        for block in [0-9]*.c; do
            [ -e \$block ] || break
            blocks=1
            grep -q \"^#include \\\"\\(all\\|\${block%.c}\\).c\\\"\" \$frame || { echo \"\$block, see \$(head -n 1 \$block), is not in \$frame\"; exit 1; }
        done
        ln -s \$root/examples examples
        for program in program*.c \${blocks:+\$frame}; do
            [ -e \$program ] || continue
            sed '/define DEVSTREAM_IMPLEMENTATION/d' \$program >app.c
            $CC -std=c11 \$C -I. -I\$T/pages app.c $impl -o app -pthread
            rm -f out && DEVSTREAM_CPU_DEVICES=4 DEVSTREAM_LOG=2 ./app >out 2>log || { cat log; exit 1; }
            if grep 'not freed\\|not destroyed' log; then exit 1; fi
        done
        for program in program*.cpp; do
            if ! [ -e \$program ] || ! command -v c++ >/dev/null; then continue; fi
            c++ -std=c++11 \$CXX \$program $impl -o app -pthread
            DEVSTREAM_LOG=2 ./app 2>log || { cat log; exit 1; }
            if grep 'not freed\\|not destroyed' log; then exit 1; fi
        done
        [ -e out ]
        sed -n 's,^.*expect: ,,; T; s, *\*/\$,,; p' \$frame >expected
        while read -r line; do grep -qF \"\$line\" out || { echo \"it does not say '\$line'\"; exit 1; }; done <expected"
}
if [ -z "$fast$label" ]; then
    for file in $(cd "$root" && find . -name build -prune -o -name '*.md' -print | sed 's,^\./,,' | sort); do
        if grep -q '^```c[[:space:]]*$\|^```cuda' "$root/$file"; then page "$file"; fi
    done
    # Each command for one of these, once: app.c is README's program, scale.cu a page's device code. What is not installed is not run;
    # those for other files are run by tests/newcomer.sh and tests/install/run.sh, and those for Windows by tests/ports/windows.sh.
    t "pages: their compile commands run" "
        cp \$I/*.h . && cp -r \$root/kernels . && cp \$root/examples/hello.c app.c
        awk -v want=blocks -v page=docs/cuda.md -f \$T/extract.awk \$root/docs/cuda.md && cp 1.cu scale.cu
        for file in \$root/README.md \$root/docs/*.md; do awk -v want=commands -f \$T/extract.awk \$file; done |
            grep '^\\(cc\\|clang\\|nvcc\\) .*\\(app\\.c\\|scale\\.cu\\)' | grep -v 'pkg-config\|w64' | sort -u >commands
        ran=0
        while read -r command; do
            case \$command in
            *CUDA_HOME*) [ -n \"\$CUDA_HOME\" ] || continue ;;
            nvcc*) # with CUDA's own words for those of device.h, as the page says
                [ -n \"\$CUDA_HOME\" ] || continue
                PATH=\$CUDA_HOME/bin:\$PATH
                { echo '#include <stdint.h>'; echo '#define KERNEL(name) extern \"C\" __global__ void name'
                  echo '#define GLOBAL_INDEX() (blockIdx.x * blockDim.x + threadIdx.x)'; grep -v device.h 1.cu; } >scale.cu ;;
            clang*) command -v clang >/dev/null || continue; cp 1.cu scale.cu ;;
            esac
            rm -f app scale.ptx
            eval \"\$command\"
            if [ -e app ]; then LD_LIBRARY_PATH=\${CUDA_HOME:+\$CUDA_HOME/lib64} ./app | grep -q 'hello from the stream, world'; else grep -q 'entry scale' scale.ptx; fi
            ran=\$((ran + 1))
        done <commands
        [ \$ran -gt 0 ]"
    t "pages: fences, links, make targets and files that they name are there" "\$T/pages.sh \$root"
fi

if [ -n "$fast$label" ]; then :
elif have musl-gcc; then
    long "musl-gcc, also -static: runs" "
        musl-gcc -std=c11 -O2 \$C -DIMPLEMENT -c \$T/use.c
        for static in '' -static; do musl-gcc \$static use.o -o use -pthread && ./use; done"
else
    skip "musl-gcc: not installed"
fi

if [ -n "$fast$label" ]; then :
elif have aarch64-linux-gnu-gcc; then
    long "aarch64-linux-gnu-gcc: links" "aarch64-linux-gnu-gcc -std=c11 -O2 \$C -DIMPLEMENT \$T/use.c -o use -pthread
        if command -v qemu-aarch64 >/dev/null; then qemu-aarch64 -L /usr/aarch64-linux-gnu ./use; fi"
else
    skip "aarch64-linux-gnu-gcc: not installed"
fi

# A program prints check sums of the results of kernels.
if [ -z "$fast$label" ]; then
    native=; [ "$(uname -m)" != x86_64 ] || native=-march=native
    cxx=$(for cc in $compilers; do cxx_of "$cc"; done)
    long "arithmetic of kernels, the same bits by all compilers and options: runs" "
        same() { # same COMPILER OPTIONS...
            \"\$@\" \$warn -I\$I \$T/kernel_math.c -o math -lm || return
            \${run:-} ./math >sums
            [ -e expected ] || cp sums expected
            cmp expected sums || { echo \"by: \$*\"; diff expected sums; }
        }
        for cc in $(echo $compilers); do
            same \$cc -std=c11 -O0
            same \$cc -std=gnu11 -O3
            same \$cc -std=gnu11 -O3 $native
        done
        for cxx in $(echo $cxx); do
            if command -v \$cxx >/dev/null; then same \$cxx -x c++ -std=c++11 -O2; same \$cxx -x c++ -std=c++11 -O3 $native; fi
        done
        if command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64; then
            run='qemu-aarch64 -L /usr/aarch64-linux-gnu'
            same aarch64-linux-gnu-gcc -std=gnu11 -O0
            same aarch64-linux-gnu-gcc -std=gnu11 -O3
            if command -v clang; then same clang --target=aarch64-linux-gnu -std=gnu11 -O3; fi
        fi"
fi
# The functions of float64 need libdevice there; an older clang reads a newer toolkit's.
if [ -n "$fast$label" ]; then :
elif have clang; then
    t "arithmetic of kernels, device code by clang, of float64 with libdevice only" "
        device=\"clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib -ffp-contract=off -std=c++14 \
            -O2 -S -Wall -Wextra -Werror -Wno-unknown-cuda-version\"
        \$device \$root/tests/unit/kernel_math_device.cu -o math.ptx
        { echo '#define DEVSTREAM_KERNEL_DEVICE'; echo '#include \"api/kernel_math_wide.h\"'
          for f in ds_exp ds_log ds_sin ds_cos ds_tanh; do echo \"DS__GLOBAL \${f}_of(double *p) { *p = \$f(*p); }\"; done
          echo 'DS__GLOBAL ds_pow_of(double *p) { *p = ds_pow(*p, p[1]); }'; } >wide.cu
        fails 'ds_tanh of float64 needs libdevice' \$device -I\$root/src wide.cu -o wide.ptx
        library=\$CUDA_HOME/nvvm/libdevice/libdevice.10.bc
        [ ! -e \$library ] || \$device -DDEVSTREAM_KERNEL_LIBDEVICE -Xclang -mlink-builtin-bitcode -Xclang \$library \
            -I\$root/src wide.cu -o wide.ptx"
fi

needed=1
t "$CC, DEVSTREAM_CUDA_DLOPEN, one command without CUDA's headers: runs, and names what it looked for" "
    $CC -std=c11 \$C \$T/dlopen.c -o dlopen -pthread -ldl
    ./dlopen >out && cat out
    DEVSTREAM_CUDART=\$PWD/nowhere ./dlopen >out
    grep '^cuda: not taken: no cudart (libcudart.so.13, libcudart.so.12, libcudart.so.11.0) was found' out
    grep '^cpu: taken' out
    readelf -d dlopen >out && if grep cudart out; then exit 1; fi"
needed=
echo '#include <cuda_runtime_api.h>' | $CC -x c -fsyntax-only - 2>/dev/null ||
    t "DEVSTREAM_CUDA without CUDA's headers: refused" "fails 'error.*DEVSTREAM_CUDA' $CC -std=c11 -I\$I -fsyntax-only \$T/cuda.c"
if [ -n "$CUDA_HOME" ]; then
    [ -n "$fast" ] || t "nvcc, declarations in a .cu file" "
        \$CUDA_HOME/bin/nvcc -std=c++17 -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -I\$I -c \$T/decl.cu"
    [ -n "$fast" ] || t "nvcc, implementation is refused" "
        cp \$T/impl.c impl.cu; fails devstream.c \$CUDA_HOME/bin/nvcc -I\$I -c impl.cu"
    [ -n "$label" ] || for cc in $compilers; do
        t "$cc, DEVSTREAM_CUDA with cudart_static: runs" "
            $cc -std=c11 \$C -I\$CUDA_HOME/include \$T/cuda.c -o cuda -L\$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -pthread && ./cuda"
    done
    if [ -z "$fast" ] && [ -z "$label" ] && [ -e "$CUDA_HOME/include/nvtx3/nvToolsExt.h" ]; then
        for cc in $compilers; do
            t "$cc, ranges with NVTX's header, and without it by DEVSTREAM_NO_NVTX: run" "
                for without in '' -DDEVSTREAM_NO_NVTX; do
                    $cc -std=c11 \$C -I\$CUDA_HOME/include \$without -c \$T/impl.c -o impl.o
                    $cc -std=c11 \$C impl.o \$T/use.c -o use -pthread -ldl && ./use
                    nm -g --defined-only impl.o | awk '{ print \$NF }' | grep -v '^ds_[a-z]' >others || true
                    if [ -n \"\$without\" ]; then [ ! -s others ]; else grep -q nvtxGlobals others && ! grep -qv -i nvtx others; fi
                done"
        done
    fi
    # CUPTI_HEADERS: folders with the headers of other versions, out of PyPI's wheels nvidia-cuda-cupti-cu11, -cu12 and nvidia-cuda-cupti.
    if [ -z "$fast" ] && [ -z "$label" ] && [ -e "$CUDA_HOME/include/cupti_activity.h" ]; then
        for H in "$CUDA_HOME/include" ${CUPTI_HEADERS:-}; do
            t "$CC, CUPTI's records and functions that are loaded at run time, $H" "
                latest() { sed -n \"s/^} \\(CUpti_Activity\$1[0-9]*\\);.*/\\1/p\" $H/cupti_activity.h | tail -n 1; }
                $CC -std=gnu11 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-variable -Wno-deprecated-declarations \\
                    -Wno-strict-prototypes -I\$root/src -I$H -isystem \$CUDA_HOME/include -DKERNEL=\$(latest Kernel) \\
                    -DCOPY=\$(latest Memcpy) -DPEER_COPY=\$(latest MemcpyPtoP) -DFILL=\$(latest Memset) -fsyntax-only \$T/cupti.c"
        done
    fi
    if [ -z "$fast" ] && [ -z "$label" ]; then
        t "nvcc, C++ and C in one project, with cudart_static and cudart: runs" "
            \$CUDA_HOME/bin/nvcc -std=c++17 -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -I\$I -c \$T/project.cu -o kernel.o
            c++ -std=c++11 \$CXX -c \$T/project.cpp -o other.o
            cp \$root/devstream.c . && $CC -std=c11 \$C -DDEVSTREAM_CUDA -I\$CUDA_HOME/include -c devstream.c
            c++ kernel.o other.o devstream.o -o static -L\$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -pthread
            c++ kernel.o other.o devstream.o -o shared -L\$CUDA_HOME/lib64 -lcudart -pthread
            ./static >out && LD_LIBRARY_PATH=\$CUDA_HOME/lib64 ./shared >>out
            [ \$(grep -c 'no CUDA device (.*cuda[A-Z].*[0-9]\|on cuda:0' out) -eq 2 ]"
        for program in probes risks; do
            t "tests/gpu/$program.c: runs, or says why not" "
                $CC -std=c11 \$C -I\$CUDA_HOME/include \$root/tests/gpu/$program.c -o $program \\
                    -L\$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -pthread
                ./$program D4 R8 >out || { [ \$? -eq 77 ] && grep 'no CUDA device: cudaGetDeviceCount says [0-9]' out; }
                PROBES_SELFTEST=1 PROBES_DEADLINE_MS=500 ./$program >out || [ \$? -eq 1 ]
                sed 's/([A-Z][^)]*)/()/' out | diff \$T/probes.expected -"
        done
    fi
else
    skip "CUDA: no toolkit found (CUDA_HOME)"
fi

# The headers of other versions, whose signatures differ: with SHARE=N every N-th version. A version that cannot be downloaded is a
# skipped case, with the reason.
versions=
if [ -z "$fast$label${ONLY:-}" ]; then
    # shellcheck disable=SC2046
    CUDA_HOME="$CUDA_HOME" "$root/tools/cuda-headers.sh" $("$root/tests/turn.sh" $("$root/tools/cuda-headers.sh" --list)) >"$dir/headers"
    while IFS=': ' read -r _ _ v where; do
        case $where in build/*) ;; *) skip "CUDA headers $v: $where"; continue ;; esac
        versions="$versions $v"
        cat >"$dir/cuda-$v.c" <<END
#include "$tests/cuda.c"
#include <cuda_runtime_api.h>
_Static_assert(CUDART_VERSION / 10 == $(echo "$v" | awk -F. '{ print $1 * 100 + $2 }'), "headers of another version");
END
    done <"$dir/headers"
    needed=1
    for v in $versions; do
        for cc in $compilers; do
            t "$cc, CUDA headers $v" "
                H=\$root/build/cuda-headers/$v/include
                $cc -std=c11 \$C -I\$H -fsyntax-only ../cuda-$v.c
                : >../compiled-$v-$cc"
        done
        # one compiler is enough for the macros of names, and for programs of tests
        t "$cc, CUDA headers $v, the thread's own default stream, the probes and the benchmark" "
            H=\$root/build/cuda-headers/$v/include
            $cc -std=c11 \$C -I\$H -DCUDA_API_PER_THREAD_DEFAULT_STREAM -fsyntax-only ../cuda-$v.c
            $cc -std=c11 \$C -I\$H -fsyntax-only \$root/tests/gpu/probes.c
            $cc -std=c11 \$C -I\$H -fsyntax-only \$root/tests/gpu/risks.c
            $cc -std=gnu11 \$C -I\$H -I\$root -fsyntax-only \$root/bench/cuda.c"
        t "$cc, CUDA headers $v, types and functions that are loaded at run time" "
            H=\$root/build/cuda-headers/$v/include
            awk -f \$T/layout.awk \$root/src/cuda/cudart_types.h >print.c
            $cc -w -I\$root/src print.c -o print && ./print >layout.c
            $cc -std=c11 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-variable -Wno-deprecated-declarations \\
                -I. -I\$root/src -I\$H -fsyntax-only \$T/prototypes.c
            # a program that includes CUDA's headers too, and one that only could
            $cc -std=c11 \$C -include cuda_runtime_api.h -isystem \$H -fsyntax-only \$T/dlopen.c
            $cc -std=c11 \$C -isystem \$H -fsyntax-only \$T/dlopen.c"
        t "$cc, CUDA headers $v, the stand-in" "
            H=\$root/build/cuda-headers/$v/include
            for f in \$root/tests/support/standin/[!p]*.c; do $cc -std=gnu11 \$C -I\$H -fsyntax-only \$f; done
            $cc -std=gnu11 \$C -I\$H -DCUDA_API_PER_THREAD_DEFAULT_STREAM -fsyntax-only \$root/tests/support/standin/names.c"
    done
    if [ -n "$versions" ] && [ "$(uname -m)" = x86_64 ]; then
        t "$CC, DEVSTREAM_CUDA_DLOPEN with the cudart of these versions, and of wheels: runs" "
            $CC -std=c11 \$C \$T/dlopen.c -o dlopen -pthread -ldl
            for v in $versions; do
                lib=\$root/build/cuda-headers/\$v/lib
                case \$v in 11*) name=libcudart.so.11.0 folder=cuda_runtime ;; 12*) name=libcudart.so.12 folder=cuda_runtime ;; *) name=libcudart.so.13 folder=cu13 ;; esac
                DEVSTREAM_CUDART=\$lib ./dlopen >out && cat out && grep -q \"^cuda: .*taken.*\$name\" out
                wheels=venv-\$v/lib/python3.11/site-packages/nvidia/\$folder
                mkdir -p \$wheels && ln -s \$lib \$wheels/lib
                VIRTUAL_ENV=\$PWD/venv-\$v DEVSTREAM_CUDART=wheels ./dlopen >out && cat out && grep -q \"^cuda: .*taken.*\$name\" out
                if grep lacks out; then exit 1; fi
            done"
    fi
    needed=
fi

# One case: its output is shown only when it fails, and at once, so that two cases do not mix.
cat >"$dir/one" <<'END'
cd "$1" || exit
if out=$(sh ./case 2>&1); then result="ok    $(cat name)"; else status=$?; result="FAIL  $(cat name) (status $status)
$(printf '%s\n' "$out" | head -n 12 | sed 's/^/      /')"; : >failed; fi
printf '%s\n' "$result"
END
for k in 1 2; do [ ! -e "$dir/round$k" ] || xargs -P "${JOBS:-2}" -n 1 sh "$dir/one" <"$dir/round$k"; done

# Not a test: what an include costs, against a file with <stdio.h> alone, the best of three; and the implementation, beside others.
if [ -z "$fast$label${ONLY:-}" ] && [ "$(date +%N)" != N ]; then
    best() {
        for k in 1 2 3; do a=$(date +%s%N); "$@" 2>/dev/null || return; echo $((($(date +%s%N) - a) / 1000000)); done | sort -n | head -n 1
    }
    cd "$dir" || exit 1
    echo '#include <stdio.h>' >base.c
    echo "compile time with $CC: $(best "$CC" -std=c11 -c base.c) ms <stdio.h>," \
        "$(best "$CC" -std=c11 -I"$I" -c "$tests/decl.c") ms declarations"
    for cc in $compilers; do echo "compile time with $cc: $(tail -n 1 ./"$cc"-O2.time | cut -d ' ' -f 1) of the processor, implementation with -O2"; done
fi

failed=$(find "$dir" -name failed | wc -l)
compiled=
for v in $versions; do
    for cc in $compilers; do [ -e "$dir/compiled-$v-$cc" ] || continue 2; done
    compiled="$compiled $v"
done
[ -z "$versions" ] || [ -n "${SHARE:-}" ] || echo "compile matrix: CUDA headers${compiled:- none}"
echo "compile matrix: $((n - failed)) passed, $((failed)) failed, $skipped skipped in $(($(date +%s) - began)) s"
[ "$failed" -eq 0 ]
