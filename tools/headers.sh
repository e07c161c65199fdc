#!/bin/sh
# Writes the headers from their rooms: for each src/NAME.rooms the listed files one after the other become NAME.h.
# headers.sh --check: writes nothing, fails when a header differs.
set -eu
cd "$(dirname "$0")/../src"
status=0
for list in *.rooms; do
    header=../${list%.rooms}.h
    # shellcheck disable=SC2046
    if cat $(cat "$list") | cmp -s - "$header"; then continue; fi
    if [ "${1:-}" = --check ]; then echo "headers: ${header#../} differs from its rooms" && status=1; continue; fi
    cat $(cat "$list") >"$header"
    echo "headers: ${header#../} written"
done
exit $status
