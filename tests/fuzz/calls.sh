#!/bin/sh
# Fails if the API fuzzer calls a public function nowhere and no line of uncalled.txt gives the reason, or if a line there is not needed.
cd "$(dirname "$0")/../.." || exit 2
calls=$(cat tests/fuzz/api*.c)
functions=$(sed -n 's/^DSDEF [^(]*[ *]\(ds_[a-z0-9_]*\)(.*/\1/p' src/api/*.h | sort -u)
missing=0 called=0 excused=0
for function in $functions; do
    if echo "$calls" | grep -q "[^a-z_]$function("; then
        called=$((called + 1))
        ! grep -q "^$function " tests/fuzz/uncalled.txt || { echo "fuzz: $function is called; it stands in tests/fuzz/uncalled.txt"; missing=1; }
    elif grep -q "^$function [a-zA-Z]" tests/fuzz/uncalled.txt; then
        excused=$((excused + 1))
    else
        echo "fuzz: $function is not called, and tests/fuzz/uncalled.txt has no reason"
        missing=1
    fi
done
echo "fuzz: $called of $(echo "$functions" | wc -w) public functions are called, $excused are not for a reason"
exit $missing
