#!/bin/sh
# Runs the tests of process groups with MPICH: parts.sh BUILD [PART...], with the programs that `make ranks` builds in BUILD.
# collectives: against a reference, with 2, 3, 4 and 8 ranks, and with 2 ranks on the stand-in; collectives-N: with N ranks;
# engine: the engine "mpi" alone; hangs: mistakes and failures; examples: train_ranks and ring.
# SHARE=N: every N-th part (tests/turn.sh). STANDIN: set if the programs have the stand-in.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$1 status=0
shift
[ $# -gt 0 ] || set -- collectives-2 collectives-3 collectives-4 engine collectives-8 hangs examples

collectives() { # collectives RANKS
    RANKS=$1 tests/ranks/run.sh "$build/ranks/collectives" || return
    [ "${1%% *}" != 2 ] || [ -z "${STANDIN:-}" ] ||
        DS_TEST_DRIVER=cuda RANKS=2 tests/ranks/run.sh "$build/ranks/collectives"
}
for part in $(tests/turn.sh "$@"); do
    echo "== ranks: $part"
    case $part in
    collectives) collectives "2 3 4 8" ;;
    collectives-[2348]) collectives "${part#collectives-}" ;;
    engine) tests/ranks/engine_mpi.sh "$build" ;;
    hangs) python3 tests/ranks/hangs.py ;;
    examples) tests/ranks/examples.sh "$build/examples" ;;
    *) echo "ranks: there is no part $part" && false ;;
    esac || status=1
done
exit $status
