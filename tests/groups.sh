#!/bin/sh
# Runs the conformance suite with a process for each group: groups.sh PROGRAM [WORDS BEFORE IT]
# An emulator grows with each thread that it has ever had, and then each new process takes longer to begin.
# Environment: SHARE, TURN: only some of the groups (turn.sh); and what the suite reads.
set -u
program=$1
shift
groups=$("$@" "$program" --groups) ran=0 failed=
began=$(date +%s)
for group in $("$(dirname "$0")/turn.sh" $groups); do
    ran=$((ran + 1))
    at=$(date +%s)
    DS_TEST_GROUP=$group "$@" "$program" || failed="$failed $group"
    echo "== $group: $(($(date +%s) - at)) s"
done
echo "conformance: $ran of $(echo $groups | wc -w) groups in $(($(date +%s) - began)) s${failed:+, failed:$failed}"
[ $ran -gt 0 ] && [ -z "$failed" ]
