#!/bin/sh
# Fails if a public struct or one of its members has no line in tests/unit/abi.h, if a line there names none, or if a union has
# no name, which other languages need. Structs of inline functions (ds__) cross no border of a library.
cd "$(dirname "$0")/.." || exit 2
awk '
FILENAME ~ /abi\.h$/ {
    if (match($0, /^(SIZE|AT)\([a-z_0-9]+(, [a-z_0-9]+)?,/)) {
        line = substr($0, 1, RLENGTH - 1)
        sub(/^[A-Z]*\(/, "", line)
        sub(/, /, ".", line)
        listed[line]
    }
    next
}
{ sub(/\/\*.*\*\//, "") }
/^ *(typedef )?(struct|union) \{/ { print "abi: " FILENAME " has a struct or union without a name"; bad = 1 }
/^(typedef )?struct ds_[a-z][a-z_0-9]*[a-z0-9] \{/ {
    name = $0
    sub(/^(typedef )?struct /, "", name)
    sub(/ .*/, "", name)
    there[name]
    depth = 1
    next
}
!name { next }
{
    if (comment) { if (sub(/.*\*\//, "")) comment = 0; else next }
    if (sub(/\/\*.*/, "")) comment = 1
    before = depth
    depth += gsub(/\{/, "{") - gsub(/\}/, "}")
    statement = statement $0
    if (depth == 0) { name = statement = ""; next }
    if (depth > 1 || statement !~ /;/) next
    sub(/(\[[^]]*\])?; *$/, "", statement)
    if (match(statement, /\(\*[a-z_0-9]+\)/)) member = substr(statement, RSTART + 2, RLENGTH - 3)
    else { match(statement, /[a-z_0-9]+$/); member = substr(statement, RSTART) }
    there[name "." member]
    statement = ""
}
END {
    for (line in there) if (!(line in listed)) { print "abi: " line " has no line in tests/unit/abi.h"; bad = 1 }
    for (line in listed) if (!(line in there)) { print "abi: tests/unit/abi.h names " line ", which is in no header"; bad = 1 }
    for (line in there) n++
    print "abi: " n " structs and members"
    exit bad
}' tests/unit/abi.h $(ls src/api/*.h | grep -v 'gen\.h$')
