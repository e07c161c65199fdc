#!/bin/sh
# Runs the conformance suite with a process for each group: groups.sh PROGRAM [WORDS BEFORE IT]
# An emulator grows with each thread that it has ever had, and then each new process takes longer to begin.
# Environment: SHARE=N: only every N-th group, beginning where the commit says, so that commits take turns, TURN=K: K groups
# later; and what the suite reads.
set -u
program=$1
shift
share=${SHARE:-1} turn=$(((0x$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0) + ${TURN:-0}) % ${SHARE:-1})) n=0 ran=0 failed=
began=$(date +%s)
for group in $("$@" "$program" --groups); do
    n=$((n + 1))
    [ $((n % share)) -eq $turn ] || continue
    ran=$((ran + 1))
    at=$(date +%s)
    DS_TEST_GROUP=$group "$@" "$program" || failed="$failed $group"
    echo "== $group: $(($(date +%s) - at)) s"
done
echo "conformance: $ran of $n groups in $(($(date +%s) - began)) s${failed:+, failed:$failed}"
[ $ran -gt 0 ] && [ -z "$failed" ]
