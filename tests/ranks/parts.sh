#!/bin/sh
# Runs the tests of process groups with MPICH: parts.sh BUILD [PART...], with the programs that `make ranks` builds in BUILD.
# collectives: against a reference, with 2, 3, 4 and 8 ranks, and with 2 ranks on the stand-in; collectives-N: with N ranks;
# gpu: the same on the stand-in with an MPI library that accepts memory of GPUs (gpu_mpi.c);
# nccl: the engine "nccl" on the stand-ins for NCCL and cudart; engine: the engine "mpi" alone; hangs, hangs-nccl, hangs-nccl-threads: mistakes and failures; examples: train_ranks and ring.
# SHARE=N: every N-th part (tests/turn.sh). STANDIN: if the programs have the stand-in, the folder of CUDA.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$1 status=0
shift
[ $# -gt 0 ] || set -- collectives-2 collectives-3 collectives-4 gpu nccl engine collectives-8 hangs hangs-nccl hangs-nccl-threads examples

collectives() { # collectives RANKS
    RANKS=$1 tests/ranks/run.sh "$build/ranks/collectives" || return
    [ "${1%% *}" != 2 ] || [ -z "${STANDIN:-}" ] ||
        DS_TEST_DRIVER=cuda RANKS=2 tests/ranks/run.sh "$build/ranks/collectives"
}
gpu() {
    [ -n "${STANDIN:-}" ] || { echo "skip  ranks: no stand-in for cudart without CUDA's headers"; return; }
    mpich=$(tests/ranks/install.sh)
    case $? in
    0) ;;
    3) echo "$mpich" && return ;;
    *) echo "ranks: tests/ranks/install.sh failed: $mpich" && return 1 ;;
    esac
    "${CC:-cc}" -std=gnu11 -O1 -g -Wall -Wextra -Werror -shared -fPIC -isystem "$mpich/include" -isystem "$STANDIN/include" \
        tests/ranks/gpu_mpi.c -o "$build/ranks/libgpu_mpi.so" -L"$mpich/lib" -Wl,-rpath,"$mpich/lib" -lmpi_abi || return
    DEVSTREAM_MPI_LIBRARY=$build/ranks/libgpu_mpi.so DS_TEST_DRIVER=cuda RANKS="2 3" tests/ranks/run.sh "$build/ranks/collectives"
}
for part in $(tests/turn.sh "$@"); do
    echo "== ranks: $part"
    case $part in
    collectives) collectives "2 3 4 8" ;;
    collectives-[2348]) collectives "${part#collectives-}" ;;
    gpu) gpu ;;
    nccl)
        [ -z "${STANDIN:-}" ] && echo "skip  ranks: no stand-in for NCCL without CUDA's headers" ||
            CUDA=$STANDIN tests/ranks/nccl.sh "$build"
        ;;
    engine) tests/ranks/engine_mpi.sh "$build" ;;
    hangs) python3 tests/ranks/hangs.py ;;
    hangs-nccl | hangs-nccl-threads)
        [ -z "${STANDIN:-}" ] && echo "skip  ranks: no stand-in for NCCL without CUDA's headers" ||
            ENGINES="${part#hangs-}" HANGS_STANDIN=$build/lib python3 tests/ranks/hangs.py
        ;;
    examples) tests/ranks/examples.sh "$build/examples" ;;
    *) echo "ranks: there is no part $part" && false ;;
    esac || status=1
done
exit $status
