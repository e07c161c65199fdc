#!/bin/sh
# Runs the tests of process groups with MPICH: parts.sh BUILD [PART...], with the programs that `make ranks` builds in BUILD.
# collectives: against a reference; engine: the engine "mpi" alone; hangs: mistakes and failures; examples: train_ranks and ring.
# SHARE=N: every N-th part, and of the collectives every N-th number of ranks (tests/turn.sh).
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$1 status=0
shift
[ $# -gt 0 ] || set -- collectives engine hangs examples
for part in $(tests/turn.sh "$@"); do
    echo "== ranks: $part"
    case $part in
    collectives) tests/ranks/run.sh "$build/ranks/collectives" ;;
    engine) RANKS=${SHARE:+$(SHARE=$SHARE tests/turn.sh 2 3 4 8)} tests/ranks/engine_mpi.sh "$build" ;;
    hangs) python3 tests/ranks/hangs.py ;;
    examples) tests/ranks/examples.sh "$build/examples" ;;
    *) echo "ranks: there is no part $part" && false ;;
    esac || status=1
done
exit $status
