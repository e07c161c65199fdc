#!/bin/sh
# Checks the model of the lock-free section with spin; needs spin and a C compiler. Usage: run.sh [build folder]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-build/model}
mkdir -p "$out"
cd "$out"
spin -a "$here/cpu.pml"
${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=8000 -o pan pan.c
./pan -m200000 >pan.log 2>&1 || true
if grep -q 'errors: 0' pan.log && ! grep -q 'max search depth too small' pan.log; then
    echo "model: $(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log | head -n 1) states, no error"
    echo "1 passed, 0 failed"
else
    cat pan.log
    echo "0 passed, 1 failed"
    exit 1
fi
