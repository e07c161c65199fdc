#!/bin/sh
# Checks docs/features.md against what is there, not against names in it:
#     features.sh docs/features.md executed.log docs/reference-names.txt docs/migration.md header...
# Rows are | function of a reference | our function | test | drivers; remarks |.
# - Every ds_ or DS_ name of the second column must be declared in a header; "-" there needs a remark that says why.
# - Every test_ name of the third, at least one, must stand in the log of executed tests ("<driver> <test> ...") for each
#   driver that the fourth column names (cpu, cuda, unit); one behind which "(cpu)" or "(cuda)" stands, for that driver only.
# - Every name of the list must be in the first column of its section, and every name there in the list.
# - Every public function of the headers must be in the second column of some row.
# - Every ds_ or DS_ name of the migration page must be declared in a header.
# - Every class, function and attribute of the list must stand in back quotes in a first cell of its library's section of that page:
#   "torch.mtia.Stream" is looked up under the heading that begins with torch, and of Event.record the word record.
set -eu
page=$1 log=$2 names=$3 migration=$4
shift 4
for file in "$page" "$names" "$migration"; do [ -e "$file" ] || { echo "features: $file is not there"; exit 1; }; done
[ -e "$log" ] || { echo "features: $log is not there: run the conformance tests first"; exit 1; }

cat "$@" | awk -v page="$page" -v log_name="$log" -v list="$names" -v migration="$migration" '
BEGIN {
    while ((getline line < log_name) > 0) { split(line, word, /[ \t]+/); ran[word[1] " " word[2]] = 1; driver[word[1]] = 1 }
    while ((getline line < list) > 0) {
        list_line++
        if (line ~ /^## /) { section = substr(line, 4); listed_section[section] = 1 }
        else if (line !~ /^(#|$)/) { listed[section, line] = list_line; order[++names_listed] = section SUBSEP line }
    }
}
# The headers without their comments: whatever name is left is a function, a macro, a type or an enumerator of ours; behind
# DSDEF and before its parameters stands a function, in brackets where it is implemented.
{
    code = ""
    while ($0 != "") {
        if (comment) { at = index($0, "*/"); $0 = at ? substr($0, at + 2) : ""; if (at) comment = 0; continue }
        at = index($0, "/*")
        code = code " " (at ? substr($0, 1, at - 1) : $0)
        $0 = at ? substr($0, at + 2) : ""
        if (at) comment = 1
    }
    if (code ~ /^ DSDEF [^(]*[ *]ds_[a-z0-9_]+\(/ && code !~ /\(ds_[a-z0-9_]+\)\(/) {
        name = code
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
        public[name] = 1
    }
    while (match(code, /(ds|DS)_[A-Za-z0-9_]+/)) {
        declared[substr(code, RSTART, RLENGTH)] = 1
        code = substr(code, RSTART + RLENGTH)
    }
}
END {
    while ((getline line < page) > 0) {
        number++
        if (line ~ /^## /) section = substr(line, 4)
        if (line !~ /^\|/ || line ~ /^\|[ \t:|-]+$/ || line ~ /^\| (reference|what) \| devstream \|/) continue
        count = split(line, cell, "|")
        if (count != 6) { wrong("a row has four cells, not " count - 2); continue }
        rows++
        if (section in listed_section) look_up(cell[2])
        check(cell[3], "(ds|DS)_[A-Za-z0-9_]+", declared, "is not declared in a header")
        mark(cell[3])
        if (cell[3] ~ /^ *-? *$/ && cell[5] ~ /^ *$/) wrong("nothing of ours is named, and no reason")
        if (cell[3] ~ /(ds|DS)_/ && cell[4] !~ /test_/) wrong("no test is named")
        drivers = cell[5]
        sub(/;.*/, "", drivers)
        if (cell[3] !~ /(ds|DS)_/) continue
        if (drivers !~ /cpu|cuda|unit/) wrong("no driver is named")
        on_cpu = on_cuda = cell[4]
        gsub(/test_[A-Za-z0-9_]+ \(cuda\)/, "", on_cpu)
        gsub(/test_[A-Za-z0-9_]+ \(cpu\)/, "", on_cuda)
        if (drivers ~ /cpu/) check(on_cpu, "test_[A-Za-z0-9_]+", ran, "was not executed on cpu (" log_name ")", "cpu ")
        if (drivers ~ /cuda/ && "cuda" in driver) check(on_cuda, "test_[A-Za-z0-9_]+", ran, "was not executed on cuda (" log_name ")", "cuda ")
        if (drivers ~ /unit/ && "unit" in driver) check(cell[4], "test_[A-Za-z0-9_]+", ran, "is no unit test that was executed (" log_name ")", "unit ")
    }
    number = 0
    while ((getline line < migration) > 0) {
        number++
        check(line, "(ds|DS)_[A-Za-z0-9_]+", declared, "is not declared in a header", "", migration)
        if (line ~ /^## /) library = tolower(first(substr(line, 4)))
        if (line !~ /^\|/) continue
        split(line, cell, "|")
        parts = split(cell[2], part, "`")
        for (i = 2; i <= parts; i += 2)
            while (match(part[i], /[A-Za-z0-9_]+/)) {
                has[library, substr(part[i], RSTART, RLENGTH)] = 1
                part[i] = substr(part[i], RSTART + RLENGTH)
            }
    }
    for (i = 1; i <= names_listed; i++) {
        split(order[i], part, SUBSEP)
        name = part[2]
        if (name ~ /\(/) continue
        sub(/:.*/, "", name)
        sub(/.*\./, "", name)
        library = first(part[1])
        if ((library, name) in has) continue
        print migration ": " part[2] " of " part[1] " is in no row of the section for " library
        bad++
    }
    for (i = 1; i <= names_listed; i++)
        if (!(order[i] in in_row)) {
            split(order[i], part, SUBSEP)
            print list ":" listed[order[i]] ": " part[2] " has no row in the section " part[1] " of " page
            bad++
        }
    for (name in public) {
        functions++
        if (!(name in marked)) { print page ": " name " is a public function and stands in no row"; bad++ }
    }
    if (!("cuda" in driver)) print "features: the CUDA driver was not executed here, so its column was not checked"
    if (!("unit" in driver)) print "features: the unit tests were not executed here, so those that are named were not checked"
    if (rows < 2) { print page ": no rows found"; bad++ }
    if (names_listed < 2) { print list ": no names found"; bad++ }
    if (functions < 2) { print page ": no public functions found in the headers"; bad++ }
    printf "features: %d rows, %d names of the documents, %d public functions, %d names checked, %d wrong\n", rows, names_listed, functions, names, bad
    exit bad > 0
}
function first(text) { sub(/[^A-Za-z0-9_].*/, "", text); return text }
function wrong(text, file) { print (file == "" ? page : file) ":" number ": " text; bad++ }
# The names of a first cell; in Markdown they may have backslashes.
function look_up(text,    part, parts, i) {
    gsub(/\\/, "", text)
    gsub(/^ +| +$/, "", text)
    parts = split(text, part, ", ")
    for (i = 1; i <= parts; i++) {
        if (!((section, part[i]) in listed)) wrong(part[i] " is not among the names of " section " in " list)
        in_row[section, part[i]] = 1
    }
}
function mark(text) {
    while (match(text, /ds_[A-Za-z0-9_]+/)) { marked[substr(text, RSTART, RLENGTH)] = 1; text = substr(text, RSTART + RLENGTH) }
}
function check(text, pattern, known, complaint, prefix, file,    name) {
    while (match(text, pattern)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        names++
        if (!((prefix name) in known)) wrong(name " " complaint, file)
    }
}'
