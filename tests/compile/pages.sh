#!/bin/sh
# Looks for what the pages name and is not there: pages.sh [root]. In all .md files of the project it checks that
# - each fence is three back quotes at the start of a line, with a language (c and cpp blocks are compiled and run by run.sh; output is text), and closed;
#   and no code stands there by indentation, where nobody would try it;
# - links to files, and to headings, lead somewhere;
# - `make x` in back quotes or in a sh block is a target;
# - words in back quotes or in a sh block that begin with a folder of the project are files or patterns of files;
# - names in back quotes that begin with ds_, DS_ or DEVSTREAM_ are in the sources.
# Prints what is wrong, and exits with 1 then.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1
found=$(mktemp) || exit 1
trap 'rm -f "$found"' EXIT
sources=$(find . -name build -prune -o -name .git -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name Makefile -o -name CMakeLists.txt -o -name '*.sh' \) -print)
pages=$(find . -name build -prune -o -name '*.md' -print | sed 's,^\./,,' | sort)
targets=" $(sed -n 's/^\([a-z-][a-z -]*\):.*/\1/p' Makefile | tr '\n' ' ') "
folders=$(find . -mindepth 1 -maxdepth 1 -type d ! -name build ! -name .git | sed 's,^\./,,' | tr '\n' '|')

# Lines "page:line kind value" of everything that can be looked up.
# shellcheck disable=SC2086
awk -v folders="${folders%|}" '
    function say(kind, value) { print FILENAME ":" FNR, kind, value }
    function command(text,   n, i, word) {
        n = split(text, word, /[ \t"]+/)
        if (word[1] == "make") for (i = 2; i <= n && word[i] ~ /^[a-z][a-z-]*$/; i++) say("target", word[i])
        n = split(text, word, /[ \t"=]+/)
        for (i = 1; i <= n; i++) if (word[i] ~ "^(\\./)?(" folders ")/") { sub(/^\.\//, "", word[i]); sub(/:[0-9]+$/, "", word[i]); say("file", word[i]) }
    }
    function name(text,    prefix) {
        while (match(text, /(ds|DS|DEVSTREAM)_[A-Za-z0-9_]+[*]?/)) {
            prefix = substr(text, RSTART, RLENGTH)
            if (RSTART == 1 || substr(text, RSTART - 1, 1) !~ /[A-Za-z0-9_]/) # not the end of another name
                if (prefix ~ /[*_]$/ ? !(sub(/[*]$/, "", prefix) + begins(prefix)) : !(prefix in known)) say("name", substr(text, RSTART, RLENGTH))
            text = substr(text, RSTART + RLENGTH)
        }
    }
    function begins(prefix,    word) { for (word in known) if (index(word, prefix) == 1) return 1; return 0 }
    FILENAME !~ /[.]md$/ {
        while (match($0, /(ds|DS|DEVSTREAM)_[A-Za-z0-9_]+/)) { known[substr($0, RSTART, RLENGTH)]; $0 = substr($0, RSTART + RLENGTH) }
        next
    }
    FNR == 1 { if (inside) print last, "fence open"; inside = list = 0; blank = 1 }
    { last = FILENAME ":" FNR }
    /^ +```|^ *~~~/ { say("fence", "indented"); next }
    !inside && /^(    |\t) *[^ ]/ && blank && !list { say("indented", "") }
    { blank = /^[ \t]*$/ || !inside && blank && /^(    |\t)/ }
    !inside && /^[^ \t]/ { list = /^([-*+]|[0-9]+[.)]) / }
    /^```/ {
        inside = !inside; language = $0; gsub(/[` \t]/, "", language)
        if (inside && language !~ /^(c|cpp|cuda|sh|text|json|dot|cmake|make|diff|ini|python)$/) say("fence", language == "" ? "bare" : language)
        next
    }
    inside { if (language == "sh") { line = $0; sub(/^\$ /, "", line); sub(/[ \t]+#.*/, "", line); command(line) } ; next }
    {
        n = split($0, quoted, "`")
        for (i = 2; i <= n; i += 2) { command(quoted[i]); name(quoted[i]) }
        line = $0
        gsub(/`[^`]*`/, "", line)
        while (match(line, /\]\([^) ]+\)/)) { say("link", substr(line, RSTART + 2, RLENGTH - 3)); line = substr(line, RSTART + RLENGTH) }
    }
    END { if (inside) print last, "fence open" }' $sources $pages |
while read -r where kind value; do
    page=${where%%:*}
    case $kind in
    fence)
        echo "$where: a fence of the language '$value': use c, cpp, cuda, sh, or text" ;;
    indented)
        echo "$where: code by indentation: put it between fences" ;;
    name)
        echo "$where: there is no $value in the sources" ;;
    target)
        case $targets in *" $value "*) ;; *) echo "$where: there is no target '$value'" ;; esac ;;
    file)
        case $value in *\{*) continue ;; esac
        # shellcheck disable=SC2086
        set -- $value
        [ -e "$1" ] || echo "$where: there is no file '$value'" ;;
    link)
        case $value in *://* | mailto:*) continue ;; esac
        file=${value%%#*} anchor=
        case $value in *\#*) anchor=${value#*#} ;; esac
        if [ -n "$file" ]; then file=$(dirname "$page")/$file; else file=$page; fi
        if [ ! -e "$file" ]; then echo "$where: the link '$value' leads nowhere"
        elif [ -n "$anchor" ]; then
            sed -n 's/^##* *//p' "$file" | tr '[:upper:]' '[:lower:]' | sed 's/ *{#.*//; s/[^a-z0-9_ -]//g; s/ /-/g' | grep -qx -- "$anchor" ||
                echo "$where: the link '$value' names no heading"
        fi ;;
    esac
done >"$found"
for program in tests/compile/pages/*.c; do
    name=$(basename "$program" .c)
    [ "$name" = default ] || [ -e "docs/$name.md" ] || echo "$program: there is no page docs/$name.md" >>"$found"
done
cat "$found"
[ ! -s "$found" ]
