#!/bin/sh
# Doxygen's search page knows a name by its beginning only, and all of ours begin alike: this enters each name under every word of it too.
# search.sh FOLDER: the folder with searchdata.js, whose sections (functions, pages, ...) have a file for each first character.
set -eu
cd "$1"
tab=$(printf '\t')
cp all_0.html page.template
for section in $(sed -n 's/^  [0-9]*: "\([a-z]*\)",*$/\1/p' searchdata.js | awk '!seen[$0]++'); do
    ls "${section}"_*.js >/dev/null 2>&1 || continue # a list of letters looks the same
    # The beginning of a line is its key: the name, in which other characters are _ and two hexadecimal digits, and a number.
    sed -n "s/^  \['\(.*\)_[0-9a-f]*',\(\['.*\]\)\],*$/\1$tab\2/p" "${section}"_*.js | awk -F '\t' '
        { for (key = $1; ; key = substr(key, RSTART + 3)) { if (key ~ /^[a-z]/) print key "\t" $2; if (!match(key, /_(5f|20|2d)/)) break } }' |
        LC_ALL=C sort -u >entries
    rm -f "${section}"_*.js "${section}"_*.html
    awk -F '\t' -v section="$section" '
        function close_file() { if (n) { printf "\n];\n" >file; close(file) } }
        { letter = substr($1, 1, 1) }
        letter != last {
            close_file()
            name = sprintf("%s_%x", section, count++)
            file = name ".js"
            print "var searchData=\n[" >file
            page = name ".html"
            while ((getline line <"page.template") > 0) { sub(/all_0\.js/, name ".js", line); print line >page }
            close("page.template")
            close(page)
            letters = letters letter
            last = letter
            n = 0
        }
        { printf "%s  [\047%s_%d\047,%s]", n ? ",\n" : "", $1, n, $2 >file; n++ }
        END { close_file(); print section, letters >>"letters" }' entries
done
# The list of first characters of each section comes first in searchdata.js, then that of its names.
awk 'NR == FNR { letters[$1] = $2; next }
     /^var/ { list = $2 }
     list == "indexSectionNames" && match($0, /"[a-z]+"/) { name[$1] = substr($0, RSTART + 1, RLENGTH - 2) }
     { line[++n] = $0; of[n] = list; number[n] = $1 }
     END {
         for (i = 1; i <= n; i++)
             if (of[i] == "indexSectionsWithContent" && name[number[i]] in letters) printf "  %s \"%s\"%s\n", number[i], letters[name[number[i]]], line[i] ~ /,$/ ? "," : ""
             else print line[i]
     }' letters searchdata.js >new && mv new searchdata.js
rm -f page.template entries letters
