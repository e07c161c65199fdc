#!/bin/sh
# Checks the model of the lock-free section with spin: two workers; one worker with host functions; one worker that sets streams aside, or does not wait for locks.
# Needs spin and a C compiler.
# Usage: run.sh [build folder]. SHARE=2: half of the configurations (tests/turn.sh)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
turn=$(cd "$here/../.." && tests/turn.sh "-DWORKERS=2" "-DWORKERS=1 -DHOSTS=1" "-DWORKERS=1 -DASIDE=1" "-DWORKERS=1 -DBUSY=1 -DOPS=1")
out=${1:-build/model}
mkdir -p "$out"
cd "$out"
passed=0 failed=0
while read -r options; do
    spin $options -a "$here/cpu.pml"
    ${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=8000 -o pan pan.c
    ./pan -m200000 >pan.log 2>&1 || true
    if grep -q 'errors: 0' pan.log && ! grep -q 'max search depth too small' pan.log; then
        echo "model $options: $(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log | head -n 1) states, no error"
        passed=$((passed + 1))
    else
        cat pan.log
        failed=$((failed + 1))
    fi
done <<END
$turn
END
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
