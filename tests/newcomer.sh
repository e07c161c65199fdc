#!/bin/sh
# The first steps of somebody who has just cloned the project and reads README.md: its ten lines, its commands, in empty folders, with
# nothing from outside but compilers and no network (where the system lets us switch it off).
# What README.md says is read from there, so a sentence that is not true any more fails here. A line per case and a closing count.
# Environment: CUDA_HOME (skipped when empty).
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
CUDA_HOME=${CUDA_HOME:-}
began=$(date +%s)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
offline=$(unshare -rn true 2>/dev/null && echo unshare -rn)

# The clone has the files that git knows, as they are now.
mkdir "$dir/clone"
(cd "$root" && git ls-files -z | tar -cf - --null -T -) | tar -xf - -C "$dir/clone" || exit 1
README=$dir/clone/README.md
extract() { awk -v "want=$1" -f "$dir/clone/tests/compile/extract.awk" "$README"; }

cat >"$dir/prelude" <<END
set -eu
clone='$dir/clone' CUDA_HOME='$CUDA_HOME' README='$README'
says() { ./"\$1" >out; cat out; grep -qxF "\$(cat ../prints)" out; }
addition() { # the files of README's vector addition, its commands and the line that it prints
    awk -v want=blocks -v page=README.md -f "\$clone/tests/compile/extract.awk" "\$README"
    cp "\$(grep -l 'add\.kernels\.h' program*.c)" add.c
    cp "\$clone/devstream.h" "\$clone/devstream_kernel.h" .
    sed -n 's,.*/\* prints \(.*\) \*/.*,\1,p' add.c >prints
    awk -v want=commands -f "\$clone/tests/compile/extract.awk" "\$README" | grep '\./add\$' >commands
}
END
extract program >"$dir/app.c"
extract commands | grep -m 1 "^cc .*\.c\b" >"$dir/command"
extract commands | sed -n '/^cp /,/^c++ /p' >"$dir/several"
extract commands | sed -n '/^cc .*-c devstream\.c/{h;d}; /^nvcc /{x;G;p;q}' >"$dir/device"
# shellcheck disable=SC2016
sed -n 's/.*`\.\/app` prints `\([^`]*\)`.*/\1/p' "$README" >"$dir/prints"
# shellcheck disable=SC2016
sed -n '/^Put /{:a;/into a folder/!{N;ba};p;q}' "$README" | grep -o 'devstream[a-z_]*\.h' >"$dir/headers"
sed '/^#define DEVSTREAM_IMPLEMENTATION/d' "$dir/app.c" >"$dir/main.c"

n=0
t() { # t NAME COMMANDS: one case in a folder of its own, with an environment of its own, beside others; done shows them
    n=$((n + 1))
    mkdir "$dir/$n"
    { cat "$dir/prelude"; printf '%s\n' "$2"; } >"$dir/$n.case"
    echo "$1" >"$dir/$n.name"
    (cd "$dir/$n" && env -i PATH="$PATH" HOME="$dir/$n" $offline sh "../$n.case" >"../$n.log" 2>&1; echo $? >"../$n.status") &
}
shown=0 failed=0
finish() { # waits for those that were begun
    wait
    while [ $shown -lt $n ]; do
        shown=$((shown + 1))
        if [ "$(cat "$dir/$shown.status")" = 0 ]; then echo "ok    $(cat "$dir/$shown.name")"; continue; fi
        echo "FAIL  $(cat "$dir/$shown.name")"
        head -n 20 "$dir/$shown.log" | sed 's/^/      /'
        failed=$((failed + 1))
    done
}
skip() { echo "skip  $1"; }

t "README has ten lines, a command, the headers that it needs and what it prints" "
    for f in app.c command headers prints; do [ -s ../\$f ] || { echo \"nothing found for \$f\"; exit 1; }; done
    [ \"\$(cat ../headers)\" = devstream.h ]"
t "the targets that README names are those of make" "
    cd \$clone && make >help
    sed -n '/^\`make\` alone/,/^\$/p' README.md | tr '\n' ' ' | sed 's/([^)]*)//g' | grep -o '\`[a-z-]*\`' | tr -d '\`' | grep -v '^make\$' >named
    [ \$(wc -l <named) -gt 5 ]
    for target in demo check \$(cat named); do grep -q \"^  \$target  *[a-z]\" help || { echo \"make does not know \$target\"; exit 1; }; done"
t "make demo, not optimised: verifies what it computed, and trains" "
    cd \$clone && make demo CFLAGS=-O0 >demo
    grep 'the same as a plain pass' demo && grep 'the same, bit for bit' demo"
t "the ten lines with their command beside the header: run" "
    for header in \$(cat ../headers); do cp \$clone/\$header .; done
    cp ../app.c .
    sh ../command && says app"
t "the same with the single file: runs" "
    cp \$clone/single/devstream.h ../app.c .
    sh ../command && says app"
t "the commands for C++ with devstream.c as an object, and the same in C: run" "
    [ \$(grep -c . ../several) -gt 2 ]
    cp ../main.c . && cp main.c main.cpp && ln -s \$clone ../devstream
    command -v c++ >/dev/null || sed -i '/^c++/d' ../several
    sh -e ../several
    if command -v c++ >/dev/null; then says main; fi
    cc main.c devstream.o -o main -pthread && says main"
t "README's vector addition with its first command: runs" "
    addition
    sed -i 2,\\\$d commands && [ -s commands ]
    sh -e ./commands >out && cmp out prints"
command -v c++ >/dev/null || skip "C++: not installed"
finish

if [ -n "$CUDA_HOME" ]; then
    if ! command -v clang >/dev/null; then
        skip "README's vector addition with CUDA: no clang"
    elif [ -e "$CUDA_HOME/lib64/libcudart.so" ]; then
        # LD_LIBRARY_PATH: where cudart is, for the last command.
        t "README's vector addition: on the CPU, on the stand-in, on what is there" "
            export CUDA_HOME PATH=\$clone/tools:\$PATH CFLAGS=-O0 LD_LIBRARY_PATH=\$CUDA_HOME/lib64
            addition
            [ \$(wc -l <commands) = 3 ]
            sh -e ./commands >out && cat out
            [ \"\$(grep -cxF \"\$(cat prints)\" out)\" = 3 ]"
    else
        skip "README's vector addition with CUDA: no shared cudart"
    fi
    if [ -x "$CUDA_HOME/bin/nvcc" ]; then
        t "README's commands for a .cu file: run" "
            export CUDA_HOME PATH=\$CUDA_HOME/bin:\$PATH
            grep '^nvcc ' ../device
            cp \$clone/devstream*.h \$clone/devstream.c . && cp ../main.c main.cu
            sh -e ../device && says main"
    else
        skip "a .cu file: no nvcc"
    fi
    finish
else
    skip "CUDA: no toolkit found (CUDA_HOME)"
fi

[ -n "$offline" ] || skip "without network: this system does not let us switch it off"
echo "newcomer: $((n - failed)) passed, $failed failed in $(($(date +%s) - began)) s"
[ "$failed" -eq 0 ]
