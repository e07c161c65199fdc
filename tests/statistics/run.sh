#!/bin/sh
# run.sh [TEST...]: dieharder (Debian's package) on the words of both mappings, 2^30 bytes and more of each; all tests take hours, these four minutes.
# Prints dieharder's lines; exit 1 when one says FAILED. (A WEAK among a hundred is to be expected: it means a probability below a half in a hundred.)
# Not part of CI: what is looked at there is in tests/unit/test_rng_kernels.c.
set -eu
cd "$(dirname "$0")/../.."
command -v dieharder >/dev/null || { echo "not installed: package dieharder"; exit 1; }
mkdir -p build/statistics
${CC:-cc} -O2 -std=gnu11 -I. tests/statistics/words.c -o build/statistics/words -pthread
# Birthdays, 32x32 ranks, 6x8 ranks, count the ones, craps, monobit, runs, serial.
[ $# -gt 0 ] || set -- 0 2 3 9 16 100 101 102
for mapping in element torch; do
    for test in "$@"; do
        build/statistics/words $mapping 2026 2>/dev/null | dieharder -g 200 -d "$test" | sed -n "/PASSED\|WEAK\|FAILED/s/^/$mapping: /p"
    done
done | tee build/statistics/log
! grep -q FAILED build/statistics/log && grep -q PASSED build/statistics/log
