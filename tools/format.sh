#!/bin/sh
# Formats everything that is written by hand, by .clang-format: format.sh; format.sh --check changes
# nothing and fails for a file that is not formatted, or a line of more than 100 columns.
# Generated files are left out: the headers in the top folder, *.gen.h, *.ptx.h, and PTX as text.
set -eu
cd "$(dirname "$0")/.."
tool=${CLANG_FORMAT:-$(command -v clang-format-14 || command -v clang-format || true)}
if ! "${tool:-false}" --version 2>/dev/null | grep -q 'version 14\.'; then
    [ -z "${REQUIRE_FORMAT:-}" ] || { echo "format: clang-format 14 is not installed"; exit 1; }
    echo "skip  format: clang-format 14 is not installed; another version formats differently"
    exit 0
fi

files=$(find src kernels examples bench tests -name build -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.[ch]pp' \) -print |
    grep -v '\.gen\.h$\|\.ptx\.h$\|^tests/support/kernels_ptx\.h$' | sort)
[ "${1:-}" = --check ] || { echo "$files" | xargs "$tool" -i; exit 0; }

status=0
echo "$files" | xargs "$tool" --dry-run --Werror 2>&1 | grep 'error:' && status=1
echo "$files" | xargs awk '
    /^\/\* clang-format off \*\/$/ { off = 1 }
    !off && length > 100 { print FILENAME ":" FNR ": " length " columns"; bad = 1 }
    /^\/\* clang-format on \*\/$/ { off = 0 }
    END { exit bad }' || status=1
[ $status = 0 ] && echo "format: $(echo "$files" | wc -l) files are formatted" || echo "format: run make format"
exit $status
