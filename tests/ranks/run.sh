#!/bin/sh
# Runs the tests of process groups with MPICH, which install.sh installs:
#     run.sh PROGRAM [NAME]     only tests with NAME in their name
# Environment: RANKS: numbers of ranks ("2 3 4 8").
# Prints the line "ranks: N passed, M failed with R ranks" for each number. Exit 1: a test failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
program=$1 name=${2:-} status=0

folder=$(tests/ranks/install.sh)
case $? in
0) ;;
3) echo "$folder" && exit 0 ;;
*) echo "ranks: tests/ranks/install.sh failed: $folder" && exit 1 ;;
esac
said=$(mktemp) || exit 2
trap 'rm -f "$said"' EXIT
# The exit status does not count: after a test that gives up requests MPI is not finalized, and mpiexec
# may end the last ranks.
# shellcheck disable=SC2086
for ranks in ${RANKS:-2 3 4 8}; do
    LD_LIBRARY_PATH=$folder/lib timeout -k 5 300 "$folder/bin/mpiexec" -n "$ranks" "$program" $name >"$said" 2>&1
    if grep -q "^ranks: [1-9][0-9]* passed, 0 failed with $ranks ranks" "$said"; then
        grep -E '^(ok |ranks:|skip )' "$said"
    else
        cat "$said"
        echo "FAIL  $ranks ranks"
        status=1
    fi
done
exit $status
