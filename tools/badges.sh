#!/bin/sh
# Writes the badges of README into docs/badges from what the project's files say: version, language, licence.
#     badges.sh [--check]    --check: writes nothing, and fails if a badge is not up to date
set -eu
cd "$(dirname "$0")/.."
out=docs/badges
if [ "${1:-}" = --check ]; then out=$(mktemp -d); trap 'rm -rf "$out"' EXIT; fi
mkdir -p "$out"

badge() { # badge FILE LABEL VALUE: about 6.5 units for each character
    label=$((${#2} * 13 / 2 + 12)) value=$((${#3} * 13 / 2 + 12))
    cat >"$out/$1.svg" <<END
<svg xmlns="http://www.w3.org/2000/svg" width="$((label + value))" height="20" role="img" aria-label="$2: $3">
  <title>$2: $3</title>
  <rect width="$label" height="20" rx="3" fill="#484f58"/>
  <rect x="$label" width="$value" height="20" rx="3" fill="#1f6feb"/>
  <g fill="#fff" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11" text-anchor="middle">
    <text x="$((label / 2))" y="14">$2</text>
    <text x="$((label + value / 2))" y="14">$3</text>
  </g>
</svg>
END
}

badge version version "$(sed -n 's/^#define DEVSTREAM_VERSION_[A-Z]* //p' src/api/base.h | paste -sd .)"
grep -q '__STDC_VERSION__ < 201112L' src/os/os.h && badge language language C11
grep -q 'Alternative A: MIT' LICENSE && grep -q 'Alternative B: Public Domain' LICENSE && badge licence licence 'MIT or public domain'

[ "$out" = docs/badges ] || diff -r "$out" docs/badges >/dev/null || { echo "badges: run tools/badges.sh"; exit 1; }
