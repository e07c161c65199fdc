#!/bin/sh
# Runs the examples of devstream_ranks.h with MPICH: examples.sh FOLDER, with FOLDER/train,
# FOLDER/train_ranks and FOLDER/ring (`make examples`: build/cc/examples).
# A group of four devices must have the weights of one process with four devices, whatever the
# number of ranks. A line for each test and a closing count.
set -u
cd "$(dirname "$0")/../.." || exit 2
folder=$1
mpich=$(tests/ranks/install.sh mpich)
case $? in
0) ;;
3) echo "$mpich" && exit 0 ;;
*) echo "FAIL  tests/ranks/install.sh: $mpich" && exit 1 ;;
esac
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
export LD_LIBRARY_PATH="$mpich/lib"
head -n 485 examples/data/digits.csv >"$dir/digits.csv"

result() { # result NAME REASON
    if [ -z "$2" ]; then
        passed=$((passed + 1)) && echo "ok    $1"
    else
        failed=$((failed + 1)) && echo "FAIL  $1: $2" && tail -n 20 "$dir/out"
    fi
}
# Runs a program with some ranks; reason is empty if it succeeds.
ranks() { # ranks COUNT PROGRAM ARGUMENTS...
    count=$1 program=$2
    shift 2
    reason=
    timeout 120 "$mpich/bin/mpiexec" -n "$count" "$folder/$program" "$@" >"$dir/out" 2>&1 ||
        reason="exit code $?"
}
# Prints the last checksum of weights in the output.
weights() { sed -n 's/^weights .* //p' "$dir/out"; }

timeout 120 "$folder/train" --cpu --epochs 2 "$dir/digits.csv" >"$dir/out" 2>&1
wanted=$(weights)
for count in 1 2 4; do
    ranks $count train_ranks --cpu --epochs 2 --devices $((4 / count)) --check "$dir/digits.csv"
    grep -q 'bit for bit' "$dir/out" || reason=${reason:-"does not compare the weights"}
    [ -n "$wanted" ] && [ "$(weights)" = "$wanted" ] ||
        reason=${reason:-"the weights are $(weights), those of train are $wanted"}
    result "train_ranks, $count ranks" "$reason"
done
ranks 3 train_ranks --cpu --epochs 1 --check "$dir/digits.csv"
result "train_ranks, 3 ranks of one device" "$reason"

ranks 2 train_ranks --cpu --epochs 1 "$dir/none.csv"
case $reason in
"exit code 1") reason= ;;
*) reason="${reason:-does not fail}, not exit code 1" ;;
esac
grep -q 'cannot read' "$dir/out" || reason=${reason:-"does not name the file"}
result "train_ranks ends if it cannot read the file" "$reason"

for order in '' --any-order; do
    ranks 2 ring --cpu --max 64K --factor 16 --iterations 3 $order
    [ "$(grep -c ' float32 .* 0$' "$dir/out")" = 20 ] || reason=${reason:-"does not have 20 rows"}
    result "ring, 2 ranks${order:+, any order}" "$reason"
done
ranks 3 ring --cpu --max 1K --factor 4 --iterations 2 --devices 2 --wait
result "ring, 3 ranks of two devices" "$reason"

echo "examples: $passed passed, $failed failed"
[ $failed -eq 0 ]
