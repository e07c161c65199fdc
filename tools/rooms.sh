#!/bin/bash
# Checks every room, which is a file of src/ that is written by hand:
# - it has at most 600 lines, none of more than 100 columns;
# - its functions are within the limits of tools/density.py (needs python3);
# - it opens with a comment "path - title." that, except in api/, has the paragraphs Invariants, Locks
#   and Threads;
# - it compiles alone, so that an editor's language server knows every name in it (compile_flags.txt).
#     rooms.sh [FOLDER...]      of these folders of src/; otherwise of all
# The last check needs clang; without CUDA's headers the rooms of cuda/ are compiled for a cudart that is
# loaded. SHARE=N compiles every N-th room (tests/turn.sh).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
rooms=$(cd src && find "${@:-.}" -mindepth 1 -name '*.h' ! -name '*.gen.h' | sed 's,^\./,,' | grep / | sort)
wrong=$(mktemp)
trap 'rm -f "$wrong"' EXIT

for room in $rooms; do
    awk -v room="$room" '
        FNR == 1 && index($0, "/* " room " - ") != 1 { print "src/" room ": the first line is not \"/* " room " - title.\"" }
        length > 100 { print "src/" room ":" FNR ": " length " columns; at most 100 are allowed" }
        !closed && /^   (Invariants|Locks|Threads): / { label[$1] }
        /\*\// { closed = 1 }
        END {
            if (FNR > 600) print "src/" room ": " FNR " lines; at most 600 are allowed"
            if (room !~ /^api\//)
                for (i = split("Invariants: Locks: Threads:", names, " "); i > 0; i--)
                    if (!(names[i] in label)) print "src/" room ": the opening comment has no paragraph \"" names[i] "\""
        }' "src/$room" >>"$wrong"
done

if command -v python3 >/dev/null; then
    if [ $# -eq 0 ]; then python3 tools/density.py --limits | grep -v '^density: ' >>"$wrong"; fi
else
    echo "skip  rooms: the limits of functions are not checked, since there is no python3"
fi

if command -v clang >/dev/null; then
    flags=$(cat compile_flags.txt)
    [ -z "${CUDA_HOME:-}" ] || flags="$flags -I$CUDA_HOME/include"
    [ -e "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime_api.h" ] || flags=${flags/-DDEVSTREAM_CUDA/-DDEVSTREAM_CUDA_DLOPEN}
    # shellcheck disable=SC2086
    compile() {
        case $1 in
        os/windows*) set -- "$1" --target=x86_64-w64-mingw32 ${flags/-DDEVSTREAM_CUDA/} ;;
        *) set -- "$1" $flags ;;
        esac
        clang "${@:2}" -DDEVSTREAM_IMPLEMENTATION -Werror -fsyntax-only "src/$1" 2>&1 | grep -E 'error:' | head -n 3
    }
    export -f compile
    export flags
    # shellcheck disable=SC2016
    others='^os/macos' # tests/ports/macos.sh compiles them, with headers that are not part of a system
    if ! echo '#include <stdlib.h>' | clang --target=x86_64-w64-mingw32 -fsyntax-only -xc - 2>/dev/null; then
        others='^os/\(macos\|windows\)'
        echo "skip  rooms: those of Windows are not compiled, since the headers of mingw-w64 are not installed"
    fi
    (echo "$rooms"; ls src | grep '\.h$') | grep -v "$others" |
        xargs tests/turn.sh | xargs -P "$(nproc)" -I{} bash -c 'compile {}' >>"$wrong"
else
    echo "skip  rooms: none is compiled, since clang is not installed"
fi
sort "$wrong"
[ -s "$wrong" ] || echo "rooms: $(echo "$rooms" | wc -l) are as they should be"
[ ! -s "$wrong" ]
