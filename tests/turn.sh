#!/bin/sh
# Prints a part of its arguments, a line each. With SHARE=N it prints every N-th one, and the hash of the commit decides where to begin,
# so that commits take turns; TURN=K begins K places later. It prints at least one. Without SHARE it prints all.
share=${SHARE:-1} n=0
turn=$(((0x$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0) + ${TURN:-0}) % share))
[ $# -eq 0 ] || [ "$turn" -lt $# ] || turn=$((turn % $#))
for item; do
    [ $((n % share)) -ne $turn ] || echo "$item"
    n=$((n + 1))
done
