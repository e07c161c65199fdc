#!/bin/sh
# Compiles device code to PTX and keeps the copies of it up to date.
#     kernels.sh                        rewrites the NAME.ptx.h files and the marked blocks
#     kernels.sh --check                changes nothing; fails when one of them is not what its source gives
#     kernels.sh --assemble [--check]   assembles all of this PTX with ptxas for all architectures that it knows, and rewrites (or
#                                       compares) docs/kernels.md; a spilled register is an error. The part of the page between
#                                       marks needs nvdisasm, too (NVDISASM, CUDA_HOME, PATH); without it, the part stays as it is
#     kernels.sh --counts               writes the instructions of hot loops to the standard output, as tools/sass.py counts them
# A kernel file, NAME.kernels.h, that includes NAME.ptx.h has its PTX there. tools/devstream-kernels compiles it.
# A block lies between the lines
#     /* >>device-code DIR/NAME.cu: written by make kernels */    and    /* <<device-code DIR/NAME.cu */
# in a header or C file. It gets the parts between ">>shared" and "<<shared" of DIR/NAME.h, if there is such a file, and for
# each kernel X of DIR/NAME.cu a string ptx_X with a module of its own; of the library's own, ds__X, the string is ds__ptx_X. What is longer
# than the 4095 characters that C11 promises is an array of strings, which are to be put together, with a 0 behind the last.
# The text depends on the compiler, so the compiler is pinned. Without it or without ptxas there is nothing to do, except
# where CI or REQUIRE_KERNELS is set: there that is an error.
set -eu
cd "$(dirname "$0")/.."
clang=${KERNELS_CLANG:-clang-14}
architectures="75 80 86 89 90 100 120"
page=docs/kernels.md
write=1 assemble=0 counts=0
for option in "$@"; do
    case $option in
    --check) write=0 ;;
    --assemble) assemble=1 ;;
    --counts) assemble=1 counts=1 ;;
    *) sed -n '2,9s/^# *//p' "$0"; exit 1 ;;
    esac
done
if [ $counts = 1 ]; then exec 3>&1 >&2; fi # only the counts go to the standard output
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

missing() { # missing WHAT
    if [ -n "${CI:-}${REQUIRE_KERNELS:-}" ]; then echo "kernels: $1"; exit 1; fi
    echo "kernels: skipped: $1"
    exit 0
}
blocks() { # the files that have one
    grep -rl --include='*.[ch]' '^/\* >>device-code ' . --exclude-dir=build --exclude-dir=.git | sed 's/^..//' |
        grep -v '^devstream\|^single/' | sort # those are generated from src/
}
kernel_files() { # the kernel files that have PTX
    find examples tests/support bench -name '*.kernels.h' | sort | while read -r file; do
        if grep -q "^#include \"$(basename "$file" .kernels.h)\.ptx\.h\"" "$file"; then echo "$file"; fi
    done
}

# ---- PTX: clang's text to C strings ----------------------------------------------------------------------------------

compile() { # compile FILE.cu: its PTX
    "$clang" -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib -std=c++14 -O2 -ffp-contract=off \
        -Wall -Wextra -Werror -Wno-unknown-cuda-version -S "$1" -o -
}

# Each entry becomes a module with the header and the variables that it names. Comments go, names get short, and statements
# share lines. What was not to be unrolled here for the sake of its length ptxas may unroll.
to_c() { # to_c FILE.cu <PTX
    awk -v source="$1" '
    function fail(text) { print "kernels: " source ": " text >"/dev/stderr"; bad = 1; exit 1 }
    /\.func/ { fail("a function was not inlined: " $0) }
    { sub(/\/\/.*/, ""); sub(/^[ \t]*\.pragma "nounroll";/, ""); gsub(/[ \t]+/, " "); sub(/^ /, ""); sub(/ $/, "") }
    $0 == "" { next }
    /^\.(version|target|address_size) / { header = header $0 "\n"; next }
    /\.entry / { inside = 1; entry = $0; sub(/.*\.entry /, "", entry); sub(/[ (].*/, "", entry); order[++entries] = entry }
    inside { body[entry] = body[entry] $0 "\n"; if ($0 == "}") inside = 0; next }
    { global = global $0 " "; if (/;$/) { variable[++variables] = global; global = "" } }

    # One line of a literal at a time; n counts what the compiler will count.
    function put(text) {
        if (n + length(text) + 1 > 4095) { pieces = pieces out ", /* " n " characters */"; out = ""; n = 0 }
        n += length(text) + 1
        gsub(/"/, "\\\"", text)
        out = out "\n    \"" text "\\n\""
    }
    function put_statements(text,    part, parts, i, line) {
        parts = split(text, part, "\n")
        line = ""
        for (i = 1; i <= parts; i++) {
            if (part[i] == "") continue
            if (line != "" && (length(line) + length(part[i]) > 117 || part[i] ~ /:$/)) { put(line); line = "" }
            line = line (line == "" ? "" : " ") part[i]
        }
        if (line != "") put(line)
    }
    END {
        if (bad) exit 1
        if (!entries) fail("no kernels")
        for (e = 1; e <= entries; e++) {
            entry = order[e]
            text = body[entry]
            before = ""
            for (v = 1; v <= variables; v++) {
                name = variable[v]
                sub(/[[ ]*(\[.*)?( = .*)?;.*/, "", name); sub(/.* /, "", name)
                if (index(text, name)) before = before variable[v] "\n"
            }
            gsub(entry "_param_", "p", text)
            gsub(/LBB[0-9]+_/, "L", text)
            while (match(text, "_ZZ[0-9]+" entry "E[0-9]+[A-Za-z_]+")) { # a variable inside of the kernel
                name = short = substr(text, RSTART, RLENGTH)
                sub(/^_ZZ[0-9]+[A-Za-z_0-9]*E[0-9]+/, "", short)
                gsub(name, "s_" short, text)
            }
            gsub(/%rd/, "%d", text)
            gsub(/, /, ",", text)
            n = 0
            out = pieces = ""
            lines = split(header, line, "\n")
            for (i = 1; i < lines; i++) put(line[i])
            put_statements(before text)
            name = entry ~ /^ds__/ ? "ds__ptx_" substr(entry, 5) : "ptx_" entry
            if (pieces == "") print "static const char " name "[] =" out "; /* " n " characters */"
            else print "static const char *const " name "[] = {" pieces out ", /* " n " characters */\n    0 };"
        }
    }'
}

# What the block of a source is to hold.
make_block() { # make_block FILE.cu
    if [ -e "${1%.cu}.h" ]; then
        sed -n '/^\/\* >>shared/,/^\/\* <<shared/p' "${1%.cu}.h" |
            sed -e '/^\/\* [<>][<>]shared/d' -e 's/^DEVICE /static inline /' -e 's/^CONSTANT /static const /'
        echo
    fi
    compile "$1" >"$new/ptx" || return 1
    to_c "$1" <"$new/ptx"
}

replace_blocks() { # replace_blocks FILE: the file with its blocks as they are to be
    for source in $(sed -n 's/^\/\* >>device-code \([^ :]*\.cu\):.*/\1/p' "$1"); do
        [ -e "$source" ] || { echo "kernels: $1 has a block of $source, which is not there" >&2; return 1; }
        make_block "$source" >"$new/$(echo "$source" | tr / -).block" || return 1
    done
    awk -v folder="$new" -v file="$1" '
    /^\/\* >>device-code / {
        print
        source = $3
        sub(/:$/, "", source)
        path = source
        gsub("/", "-", path)
        while ((getline line < (folder "/" path ".block")) > 0) print line
        skip = 1
        next
    }
    /^\/\* <<device-code / {
        if ($3 != source) { print "kernels: " file ": the block of " source " ends as that of " $3 >"/dev/stderr"; exit 1 }
        skip = 0
    }
    !skip { print }
    END { if (skip) { print "kernels: " file ": the block of " source " has no end" >"/dev/stderr"; exit 1 } }' "$1"
}

# keep FILE: compares it with $new/file, and rewrites it unless --check; 1 if it differs then
keep() {
    if cmp -s "$1" "$new/file"; then
        echo "kernels: $1 is up to date"
    elif [ $write = 1 ]; then
        cat "$new/file" >"$1" # keeps its mode
        echo "kernels: $1 rewritten"
    else
        diff -u "$1" "$new/file" | head -n 40 || true
        echo "kernels: $1 is not what its source gives: run make kernels"
        return 1
    fi
}

if [ $assemble = 0 ]; then
    "$clang" --version 2>/dev/null | grep -q 'version 14\.' ||
        missing "clang 14 ($clang) is not installed; another version would write another text"
    status=0
    for file in $(blocks); do
        replace_blocks "$file" >"$new/file"
        keep "$file" || status=1
    done
    for file in $(kernel_files); do # compiled in a copy of their folder
        folder=$new/$(dirname "$file")
        mkdir -p "$folder"
        cp "$(dirname "$file")"/*.h "$folder"
        for other in $(sed -n 's,^#include "\(\.\./.*\)"$,\1,p' "$file"); do
            mkdir -p "$folder/$(dirname "$other")"
            cp "$(dirname "$file")/$other" "$folder/$other"
        done
        case $file in
        */debug.kernels.h) debug=--debug ;; # the checks are tested
        *) debug= ;;
        esac
        # shellcheck disable=SC2086
        tools/devstream-kernels $debug --compiler "$clang" --include . "$new/$file"
        mv "${folder}/$(basename "$file" .kernels.h).ptx.h" "$new/file"
        keep "${file%.kernels.h}.ptx.h" || status=1
    done
    exit $status
fi

# ---- ptxas -----------------------------------------------------------------------------------------------------------

ptxas=
for candidate in "${CUDA_HOME:+$CUDA_HOME/bin/ptxas}" "$(command -v ptxas || true)" \
    "$(dirname "$(command -v nvcc || echo none)")/ptxas" /usr/local/cuda/bin/ptxas; do
    if [ -z "$ptxas" ] && [ -x "$candidate" ]; then ptxas=$candidate; fi
done
[ -n "$ptxas" ] || missing "ptxas was not found (CUDA_HOME, PATH, /usr/local/cuda)"
release=$("$ptxas" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
known= wanted=$architectures
for architecture in $architectures; do
    if "$ptxas" --help | grep -q "sm_$architecture\b"; then known="$known $architecture"; else echo "kernels: ptxas $release does not know sm_$architecture"; fi
done
architectures=${known# }

# The same of a NAME.ptx.h, which is one module.
from_ptx_h() { # from_ptx_h FILE LIST
    sed -n "s,^#define DS_PTX_\([A-Za-z0-9_]*\) .*,${1%.ptx.h}.kernels.h \1,p" "$1" >"$2"
    sed -n 's/^    "\(.*\)\\n",\{0,1\}$/\1/p' "$1" | sed 's/\\"/"/g'
}

# The modules of a file's blocks as one text, as the C strings have them: "source entry" lines go to the list given.
from_c() { # from_c FILE LIST
    awk -v list="$2" '
    /^\/\* >>device-code / { source = $3; sub(/:$/, "", source) }
    /^\/\* <<device-code / { source = "" }
    source && /^static const char (\*const )?(ds__)?ptx_/ {
        modules++
        name = $4 == "*const" ? $5 : $4
        sub(/ptx_/, "", name)
        sub(/\[.*/, "", name)
        print source, name >list
    }
    source && /^    "/ {
        sub(/^    "/, "")
        sub(/\\n"([;,] .*)?$/, "")
        gsub(/\\"/, "\"")
        if (/^\.(version|target|address_size)/ && modules > 1) next
        print
    }' "$1"
}

# "entry architecture registers spilled shared" lines from what ptxas -v says.
resources() { # resources ARCHITECTURE
    awk -v architecture="$1" '
    /Compiling entry function/ { split($0, part, "\047"); entry = part[2] }
    /bytes spill stores/ { spilled = $0; sub(/ bytes spill stores.*/, "", spilled); sub(/.* /, "", spilled) }
    /Used [0-9]+ registers/ {
        registers = shared = $0
        sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
        if (!sub(/ bytes smem.*/, "", shared)) shared = 0
        sub(/.* /, "", shared)
        print entry, architecture, registers, spilled, shared
    }'
}

for file in $(blocks) $(kernel_files | sed 's/\.kernels\.h$/.ptx.h/'); do
    : >"$new/list"
    case $file in
    *.ptx.h) from_ptx_h "$file" "$new/list" >"$new/module.ptx" ;;
    *) from_c "$file" "$new/list" >"$new/module.ptx" ;;
    esac
    case $file in
    src/*/kernels.gen.h | examples/demo.ptx.h) # those that tools/sass.py looks at
        cp "$new/module.ptx" "$new/$(echo "$file" | tr / -).ptx" ;;
    esac
    : >"$new/found"
    for architecture in $architectures; do
        "$ptxas" -v -arch=sm_"$architecture" "$new/module.ptx" -o "$new/module.cubin" >"$new/log" 2>&1 || {
            cat "$new/log"
            echo "kernels: $file: ptxas refuses it for sm_$architecture"
            exit 1
        }
        resources "$architecture" <"$new/log" >>"$new/found"
    done
    # Each kernel of each source must have been seen for each architecture.
    awk -v file="$file" -v wanted="$(echo "$architectures" | wc -w)" '
    NR == FNR { seen[$1]++ }
    NR == FNR && $4 > 0 { print "kernels: " file ": " $1 " spills " $4 " bytes on sm_" $2; bad = 1 }
    NR == FNR { next }
    seen[$2] != wanted { print "kernels: " file ": " $2 " was assembled " (seen[$2] + 0) " times, not " wanted; bad = 1 }
    { kernels++ }
    END { if (!bad) print "kernels: " file ": " kernels " kernels assembled for " wanted " architectures, nothing spilled"; exit bad }
    ' "$new/found" "$new/list"
    awk 'NR == FNR { source[$2] = $1; next } $1 in source { print source[$1], $0 }' "$new/list" "$new/found" >>"$new/all"
done

# Instructions of the hot loops, by the same ptxas. tools/sass.py needs the architectures of docs/kernels.md's estimates.
disassembler=
for candidate in "${NVDISASM:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvdisasm}" "$(command -v nvdisasm || true)" "$(dirname "$ptxas")/nvdisasm"; do
    if [ -z "$disassembler" ] && [ -x "$candidate" ]; then disassembler=$candidate; fi
done
if [ -z "$disassembler" ]; then
    echo "kernels: the instructions of hot loops are not counted: nvdisasm was not found (NVDISASM, CUDA_HOME, PATH)" >&2
elif [ "$architectures" != "$wanted" ]; then
    echo "kernels: the instructions of hot loops are not counted: ptxas $release does not know all architectures" >&2
else
    python3 tools/sass.py --ptxas "$ptxas" --disassembler "$disassembler" "$new"/*.h.ptx >"$new/counts"
fi
if [ $counts = 1 ]; then
    [ -e "$new/counts" ] || exit 1
    LC_ALL=C sort -k 1,2 -k 3,3n "$new/counts" >&3
    exit
fi
instructions() { # the part of the page
    if [ ! -e "$new/counts" ]; then
        sed -n '/^<!-- >>instructions/,/^<!-- <<instructions/p' $page
        return
    fi
    echo '<!-- >>instructions: written by tools/kernels.sh and tools/sass.py -->'
    python3 tools/sass.py --table tools/sass-before.txt "$new/counts" || return
    echo '<!-- <<instructions -->'
}
instructions >"$new/instructions"

# The page shows what is the project's own, not the tests'.
{
    cat <<EOF
# Device code

With this page you can compare the registers, shared memory and instructions of devstream's kernels on each architecture.
ptxas $release assembled the kernels' PTX (ISA 5.0, written for sm_60 by clang 14). Registers are per thread, shared memory is
per block, and the last column counts the bytes of spilled registers. \`tools/kernels.sh --assemble\` writes this page.

| kernel | source |$(printf ' sm_%s |' $architectures) shared bytes | spilled bytes |
| --- | --- |$(printf ' ---: |%.0s' $architectures) ---: | ---: |
EOF
    grep '^\(kernels\|examples\)/' "$new/all" | awk -v list="$architectures" '
    { key = $1 " " $2 }
    !(key in shared) { order[++kernels] = key; shared[key] = 0 }
    { registers[key, $3] = $4; spilled[key] += $5; if ($6 > shared[key]) shared[key] = $6 }
    END {
        n = split(list, architecture, " ")
        for (k = 1; k <= kernels; k++) {
            key = order[k]
            split(key, part, " ")
            row = "| " part[2] " | `" part[1] "` |"
            for (i = 1; i <= n; i++) row = row " " registers[key, architecture[i]] " |"
            print row " " shared[key] " | " spilled[key] + 0 " |"
        }
    }'
    echo
    cat "$new/instructions"
} >"$new/page"
sed -n '/^|/p' "$new/page"
if [ $write = 1 ]; then
    cat "$new/page" >$page
elif [ -e $page ] && ! grep -q "ptxas $release " $page; then
    echo "kernels: $page was written with another ptxas than $release, so its numbers are not compared"
elif ! diff -u $page "$new/page"; then
    echo "kernels: $page is not up to date: run tools/kernels.sh --assemble"
    exit 1
fi
