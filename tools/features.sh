#!/bin/sh
# Checks docs/features.md against what is there, not against names in it: features.sh docs/features.md executed.log header...
# Rows are | function of a reference | our function | test | ...: every ds_ name of the second column must be declared in a
# header, and every test_ name of the third, at least one, must stand in the log of executed tests ("<driver> <test> ...")
# for each driver that the fourth column names; one behind which "(cpu)" or "(cuda)" stands, for that driver only.
set -eu
page=$1 log=$2
shift 2
if [ ! -e "$page" ]; then echo "features: $page is not there, nothing to check"; exit 0; fi
[ -e "$log" ] || { echo "features: $log is not there: run the conformance tests first"; exit 1; }

cat "$@" | awk -v page="$page" -v log_name="$log" '
BEGIN {
    while ((getline line < log_name) > 0) { split(line, word, /[ \t]+/); ran[word[2]] = 1; ran[word[1] " " word[2]] = 1; driver[word[1]] = 1 }
}
# The headers without their comments: whatever name is left is a function, a macro, a type or an enumerator of ours.
{
    code = ""
    while ($0 != "") {
        if (comment) { at = index($0, "*/"); $0 = at ? substr($0, at + 2) : ""; if (at) comment = 0; continue }
        at = index($0, "/*")
        code = code " " (at ? substr($0, 1, at - 1) : $0)
        $0 = at ? substr($0, at + 2) : ""
        if (at) comment = 1
    }
    while (match(code, /(ds|DS)_[A-Za-z0-9_]+/)) {
        declared[substr(code, RSTART, RLENGTH)] = 1
        code = substr(code, RSTART + RLENGTH)
    }
}
END {
    while ((getline line < page) > 0) {
        number++
        if (line !~ /^\|/ || line ~ /^\|[ \t:|-]+$/) continue
        count = split(line, cell, "|")
        if (count < 5) continue
        rows++
        check(cell[3], "(ds|DS)_[A-Za-z0-9_]+", declared, "is not declared in a header")
        if (cell[3] ~ /ds_/ && cell[4] !~ /test_/) { print page ":" number ": no test is named"; bad++ }
        drivers = cell[5]
        sub(/;.*/, "", drivers)
        if (cell[3] ~ /ds_/ && drivers !~ /cpu|cuda/) { print page ":" number ": no driver is named"; bad++ }
        on_cpu = on_cuda = cell[4]
        gsub(/test_[A-Za-z0-9_]+ \(cuda\)/, "", on_cpu)
        gsub(/test_[A-Za-z0-9_]+ \(cpu\)/, "", on_cuda)
        if (drivers ~ /cpu/) check(on_cpu, "test_[A-Za-z0-9_]+", ran, "was not executed on cpu (" log_name ")", "cpu ")
        if (drivers ~ /cuda/ && "cuda" in driver) check(on_cuda, "test_[A-Za-z0-9_]+", ran, "was not executed on cuda (" log_name ")", "cuda ")
    }
    if (!("cuda" in driver)) print "features: the CUDA driver was not executed here, so its column was not checked"
    if (rows < 2) { print page ": no rows found"; bad++ }
    printf "features: %d rows, %d names, %d wrong\n", rows, names, bad
    exit bad > 0
}
function check(text, pattern, known, complaint, prefix,    name) {
    while (match(text, pattern)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        names++
        if (!((prefix name) in known)) { print page ":" number ": " name " " complaint; bad++ }
    }
}'
