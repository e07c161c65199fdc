#!/usr/bin/env bash
# run.sh - builds and runs the benchmarks, prints the table and writes docs/bench.md and docs/bench.svg; some 9 minutes.
# run.sh cuda - only the CUDA driver's own cost, upon the stand-in for cudart, into docs/bench.md. (On a GPU: make check-gpu.)
# run.sh graphs - only the rows about graphs, into docs/bench.md; a minute.
# run.sh alloc - only the rows about the allocator, into docs/bench.md; alloc --quick: one short pass of devstream and the limit, only printed.
# run.sh comm - only the rows about collectives, into docs/bench.md; two minutes. comm --quick: one short pass, only printed.
# run.sh once - only the rows about kernels that are written once, into docs/bench.md; two minutes. once --quick: one short pass, only printed.
# run.sh layers - only the cost of the layers check and trace, into docs/bench.md; three minutes.
# run.sh contention - only locked instructions and moved cache lines with many workers, into docs/bench.md; a minute.
# run.sh ranks - only process groups beside raw MPI (MPICH from PyPI), into docs/bench.md; a minute.
# run.sh quick - one short pass without the largest copies and the compile times, under 30 seconds, only printed. Set CC, CXX, CFLAGS as you like.
# Exit 1 when a result was wrong or a program failed; a missed goal is not a failure, and an absent peer is printed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
only=${1:-} short=${2:-} cc=${CC:-cc} cxx=${CXX:-c++} flags=${CFLAGS:--O2} out=build/bench passes=3
export CC=$cc BENCH_RESULTS=$out/results.tsv
unset BENCH_QUICK
warn="-Wall -Wextra -Wpedantic -Wshadow"
warn_c="$warn -Wconversion -Wsign-conversion -Werror"
case $only in
    quick) export BENCH_QUICK=1 passes=1 ;;
    cuda | graphs | alloc | comm | once | layers | contention | ranks | '') ;;
    *) echo "usage: $0 [quick | cuda | graphs | layers | contention | ranks | alloc [--quick] | comm [--quick] | once [--quick]]" >&2; exit 2 ;;
esac
case $only$short in
    "$only") ;;
    alloc--quick | comm--quick | once--quick) export BENCH_QUICK=1 passes=1 ;;
    *) echo "usage: $0 alloc|comm|once --quick" >&2; exit 2 ;;
esac
read -r load _ </proc/loadavg
[ "${load%.*}" -lt 1 ] || echo "the machine is busy (load $load): expect worse figures and wide ranges" >&2
mkdir -p $out docs && : >$BENCH_RESULTS || exit 2

remark() { printf '*\t%s\t%s\n' "$1" "$2" >>$BENCH_RESULTS; }
programs=() # source, program and its argument
# build SOURCE PROGRAM COMMAND...: adds the program to the list; a compiler's refusal is a failure that the report shows.
build() {
    local source=$1 program=$2
    shift 2
    if "$@" -o "$out/$program"; then programs+=("$source $program"); else remark "$source" "failed: $program does not build"; return 1; fi
}
# usable HEADER COMPILER [LIBRARY]: header and library are there
usable() { printf '#include <%s>\nint main(void) { return 0; }\n' "$1" | $2 - -o $out/usable ${3:-} >/dev/null 2>&1; }

model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
export BENCH_MACHINE="$(nproc) processors ($(echo "${model:-$(uname -m)}" | tr -s ' ')), $(uname -sr), $($cc --version | head -n 1), flags \`$flags\`"

# part NAME: standard input goes between the markers of that name in docs/bench.md.
part() {
    grep -qx "<!-- $1 -->" docs/bench.md || { echo "docs/bench.md has no part $1"; return 1; }
    { echo "<!-- $1 -->"; cat; echo "<!-- /$1 -->"; } >$out/$1.part
    awk -v part="$out/$1.part" -v first="<!-- $1 -->" -v last="<!-- /$1 -->" '
        $0 == first { while ((getline line <part) > 0) print line; skip = 1 } !skip { print } $0 == last { skip = 0 }' docs/bench.md >$out/bench.md &&
        cp $out/bench.md docs/bench.md
}
# They print a table, and put it into docs/bench.md unless the pass is short.
section() { # section NAME [OPTION OF REPORT]
    local status
    $out/report ${2:-} $BENCH_RESULTS >$out/$1.md
    status=$?
    cat $out/$1.md
    [ -n "${BENCH_QUICK:-}" ] || { echo "Machine: $BENCH_MACHINE."; echo; cat $out/$1.md; } | part $1
    return $status
}
graphs() { section graphs; }
alloc() { section alloc --alloc; }
comm() { section comm --comm; }
once() { section once --once; }
cuda() {
    if [ -z "${CUDA_HOME:-}" ]; then echo "the CUDA driver's own cost: not measured, no toolkit found (CUDA_HOME)"; return; fi
    $cc -std=gnu11 $flags $warn_c -DDEVSTREAM_CUDA -I. -Ibench -I"$CUDA_HOME/include" bench/cuda.c tests/support/standin/*.c -o $out/cuda -pthread -ldl -lm &&
        STANDIN_NULL=1 timeout 60 $out/cuda --standin >$out/cuda.md || { remark devstream "failed: bench/cuda.c"; return 1; }
    cat $out/cuda.md
    [ -n "${BENCH_QUICK:-}" ] || { echo "Machine: $BENCH_MACHINE. **Nothing on this page was measured on a GPU**; docs/gpu has the results of GPUs. The goal there is 50 ns."
      echo; cat $out/cuda.md; } | part cuda
}
if [ "$only" = cuda ]; then cuda; exit; fi

# What the allocator's rows need: the library with it, the traces, the peers.
declare -A heap=([glibc]= [jemalloc]="LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,tcache_max:67108864"
    [mimalloc]="LD_PRELOAD=libmimalloc.so.2 MIMALLOC_ALLOW_DECOMMIT=0 MIMALLOC_RESERVE_OS_MEMORY=40GiB"
    [tcmalloc]="LD_PRELOAD=libtcmalloc_minimal.so.4 TCMALLOC_RELEASE_RATE=0")
# newer TARGET SOURCE...: one of the sources is newer, or the target is not there.
newer() {
    local target=$1 source
    shift
    for source; do [ -e "$target" ] && [ ! "$source" -nt "$target" ] || return 0; done
    return 1
}
traces() {
    local name traces=$out/traces
    mkdir -p $traces && export BENCH_TRACES=$traces
    for name in train serve rand; do
        newer $traces/$name.trace bench/data/$name.trace.xz || continue
        xz -dc bench/data/$name.trace.xz >$traces/$name.trace || { rm -f $traces/$name.trace; remark devstream "failed: bench/data/$name.trace.xz is not read (package xz-utils)"; return 1; }
    done
}
alloc_programs() {
    local name library=$out/devstream_alloc.o traces=$out/traces
    if newer $library devstream*.h || [ "$(cat $library.flags 2>/dev/null)" != "$cc $flags" ]; then
        printf '#define DEVSTREAM_IMPLEMENTATION\n#include "devstream_alloc.h"\n' | $cc $flags -I. -x c -c - -o $library && echo "$cc $flags" >$library.flags ||
            { remark devstream "failed: devstream_alloc.h does not build"; return; }
    fi
    traces || return
    if newer $out/trace bench/trace.c bench/alloc.h; then
        $cc -std=gnu11 $flags $warn_c bench/trace.c -o $out/trace -lm && $out/trace vision 1 $traces/vision.trace >&2 && $out/trace table 1 $traces/table.trace >&2 ||
            { rm -f $out/trace; remark devstream "failed: bench/trace.c"; return; }
    fi
    build devstream alloc $cc -std=gnu11 $flags $warn_c bench/alloc.c $library -pthread -lm -ldl && programs+=("limit alloc limits")
    [ -z "${BENCH_QUICK:-}" ] || return
    $cc -std=gnu11 $flags $warn_c bench/peer_malloc.c -o $out/peer_malloc -pthread -lm -ldl || { remark glibc "failed: peer_malloc does not build"; return; }
    for name in glibc jemalloc mimalloc tcmalloc; do programs+=("$name peer_malloc $name"); done
}

[ "$only" = alloc ] || $cc $flags -c devstream.c -o $out/devstream.o || remark devstream "failed: devstream.c does not build"
main_programs() {
    build devstream streams $cc -std=gnu11 $flags $warn_c bench/streams.c $out/devstream.o -pthread
    build thread peer_thread $cc -std=gnu11 $flags $warn_c bench/peer_thread.c -pthread
    if usable omp.h "$cc -fopenmp -xc"; then
        build gomp peer_gomp $cc -std=gnu11 $flags $warn_c -fopenmp bench/peer_gomp.c
    else
        remark gomp "not installed: package libgomp1 with the compiler's OpenMP headers (libgcc-*-dev)"
    fi
    build limit limits $cc -std=gnu11 $flags $warn_c bench/limits.c -pthread
    build devstream copies $cc -std=gnu11 $flags $warn_c bench/copies.c $out/devstream.o -pthread
    if python3 -c 'import numpy' 2>/dev/null; then programs+=("numpy peer_numpy"); else remark numpy "not installed: python3 -m pip install numpy"; fi
}
graph_programs() {
    if usable tbb/flow_graph.h "$cxx -std=c++17 -xc++" -ltbb; then
        build tbb peer_tbb $cxx -std=c++17 $flags $warn -Werror bench/peer_tbb.cpp -ltbb && programs+=("tbb peer_tbb graphs")
    else
        remark tbb "not installed: package libtbb-dev"
    fi
    if usable CL/cl.h "$cc -xc" -lOpenCL; then
        build pocl peer_pocl $cc -std=gnu11 $flags $warn_c bench/peer_pocl.c -lOpenCL && programs+=("pocl peer_pocl graphs")
    else
        remark pocl "not installed: packages opencl-headers, ocl-icd-opencl-dev, pocl-opencl-icd"
    fi
    build devstream graphs $cc -std=gnu11 $flags $warn_c bench/graphs.c $out/devstream.o -pthread && programs+=("limit graphs limits")
}
comm_programs() {
    build devstream comm $cc -std=gnu11 $flags $warn_c bench/comm.c $out/devstream.o -pthread -lm
    if ! command -v mpicc >/dev/null || ! command -v mpirun >/dev/null; then
        remark openmpi "not installed: packages libopenmpi-dev, openmpi-bin"
    elif OMPI_CC=$cc mpicc -std=gnu11 $flags $warn_c bench/peer_mpi.c -o $out/peer_mpi -lm; then
        programs+=("openmpi peer_mpi 2" "openmpi peer_mpi 4")
    else
        remark openmpi "failed: peer_mpi does not build"
    fi
}
# Without OpenMP its pragmas say only that loops may be vectorised. A contracted loop would have other bits.
once_programs() {
    local openmp=-fopenmp
    usable omp.h "$cc -fopenmp -xc" || { openmp=-fopenmp-simd; remark openmp "not installed: package libgomp1 with the compiler's OpenMP headers (libgcc-*-dev)"; }
    build devstream once $cc -std=gnu11 $flags $warn_c -ffp-contract=off $openmp -I. bench/once.c -pthread -lm
}
# The cost of the layers; the programs have all headers, as devstream.c.
layers() {
    local name programs=()
    $cc -std=gnu11 $flags $warn_c bench/layers.c -o $out/layers -pthread -lm &&
        $cc -std=gnu11 $flags $warn_c -DWITHOUT_HEADER bench/layers.c -o $out/layers_without -pthread -lm || { remark devstream "failed: bench/layers.c"; return 1; }
    for name in examples/demo examples/train bench/alloc; do
        printf '#define DEVSTREAM_IMPLEMENTATION\n#include "devstream_check.h"\n#include "%s.c"\n' $name |
            $cc -std=gnu11 $flags -I. -Iexamples -Ibench -x c - -o $out/checked_${name#*/} -pthread -lm || { remark devstream "failed: $name.c"; return 1; }
    done
    programs+=("$out/checked_demo" "$out/checked_train")
    for name in train serve; do traces && programs+=("env BENCH_QUICK=1 BENCH_RESULTS=/dev/null $out/checked_alloc $name"); done
    timeout 500 $out/layers "${programs[@]}" >$out/layers.md || { remark devstream "failed: layers"; return 1; }
    cat $out/layers.md
    [ -n "${BENCH_QUICK:-}" ] || { echo "Machine: $BENCH_MACHINE."; echo; cat $out/layers.md; } | part layers
}
if [ "$only" = layers ]; then layers; exit; fi
# Locked instructions and moved cache lines with more workers than processors; gcc only (bench/counted.h).
contention() {
    if $cc --version | grep -q clang; then echo "contention: not counted, it needs gcc"; return; fi
    $cc -std=gnu11 $flags -Wall -Wextra -Werror bench/contention.c -o $out/contention -pthread -ldl -lm &&
        timeout 120 $out/contention >$out/contention.md || { remark devstream "failed: bench/contention.c"; return 1; }
    cat $out/contention.md
    [ -n "${BENCH_QUICK:-}" ] || { echo "Machine: $BENCH_MACHINE."; echo; cat $out/contention.md; } | part contention
}
if [ "$only" = contention ]; then contention; exit; fi
# Process groups and raw MPI in the same two processes.
ranks() {
    local mpich
    mpich=$(tests/ranks/install.sh) || { echo "process groups: not measured, $mpich"; return; }
    $cc -std=gnu11 $flags $warn_c -I. -Ibench -isystem "$mpich/include" bench/ranks.c -o $out/ranks -L"$mpich/lib" -lmpi_abi -pthread -ldl -lm &&
        LD_LIBRARY_PATH="$mpich/lib" timeout 300 "$mpich/bin/mpiexec" -n 2 $out/ranks $out >$out/ranks.md || { remark devstream "failed: bench/ranks.c"; return 1; }
    cat $out/ranks.md
    [ -n "${BENCH_QUICK:-}" ] || { echo "Machine: $BENCH_MACHINE; MPICH 5.0.2, two ranks."; echo; cat $out/ranks.md; } | part ranks
}
if [ "$only" = ranks ]; then ranks; exit; fi
case $only in
    graphs) graph_programs ;;
    alloc) alloc_programs ;;
    comm) comm_programs ;;
    once) once_programs ;;
    *) main_programs; graph_programs; alloc_programs; comm_programs; once_programs ;;
esac
$cc -std=gnu11 $flags $warn_c bench/report.c -o $out/report -lm || exit 2

run() { # SOURCE PROGRAM [ARGUMENT]; a hang is a failure too
    local source=$1 most=60
    shift
    case $1 in alloc | comm | once | peer_mpi) most=180 ;; esac # the first has a limit for each of its cases, the others move much memory
    if [ "$source" = openmpi ]; then # so many processes; more than there are processors give way
        timeout $most mpirun --allow-run-as-root --oversubscribe -np "$2" "$out/$1" || remark openmpi "failed: $* ended with $?"
        return
    fi
    if [ "$source" = numpy ]; then timeout $most python3 bench/peer_numpy.py || remark numpy "failed: peer_numpy.py ended with $?"; return; fi
    timeout $most env ${heap[$source]:-} "$out/$@" || remark "$source" "failed: $* ended with $?"
}
for ((pass = 1; pass <= passes; pass++)); do
    echo "pass $pass of $passes" >&2
    for entry in "${programs[@]}"; do
        read -r source program <<<"$entry"
        if [ "$program" = streams ]; then
            for what in queues calls copies pending streams; do run "$source" streams $what; done
        elif [ "$only" != graphs ] || { [ "$program" != peer_pocl ] && [ "$program" != peer_tbb ]; }; then
            run "$source" $program
        fi
    done
done
if [ "$only" = graphs ] || [ "$only" = alloc ] || [ "$only" = comm ] || [ "$only" = once ]; then echo "$BENCH_MACHINE"; $only; exit; fi
[ $passes = 1 ] || bench/compile.sh $out >>$BENCH_RESULTS || remark devstream "failed: compile.sh"

echo "$BENCH_MACHINE"
if [ $passes = 1 ]; then
    $out/report $BENCH_RESULTS $out
    status=$?
    echo && graphs || status=1
    echo && alloc || status=1
    echo && comm || status=1
    echo && once || status=1
    exit $status
fi
$out/report $BENCH_RESULTS $out docs/bench.md
status=$?
echo && graphs || status=1
echo && alloc || status=1
echo && comm || status=1
echo && once || status=1
cuda || status=1
echo && layers || status=1
echo && contention || status=1
echo && ranks || status=1
if command -v gnuplot >/dev/null; then
    gnuplot -e "folder='$out'; out='docs/bench.svg'" bench/plot.gp || status=1
else
    echo "docs/bench.svg not written: not installed: package gnuplot-nox"
fi
exit $status
