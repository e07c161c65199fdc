#!/bin/sh
# Tests expected.tsv and answers.awk without a GPU: rows name probes and files that exist, and answers are classified.
set -eu
cd "$(dirname "$0")/../.."
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
fail() { echo "answers: $*"; exit 1; }
awk -F '\t' '!/^#/ { if (NF != 4) { print "line " NR " has " NF " columns"; exit 1 } print $1 }' tests/gpu/expected.tsv >"$new/probes" ||
    fail "expected.tsv: $(cat "$new/probes")"
sort -u "$new/probes" | while read -r probe; do
    grep -q "{ \"$probe\"," tests/gpu/risks.c || { echo "answers: risks.c has no probe $probe"; exit 1; }
done
for n in $(seq 15); do grep -q "^R$n\b" "$new/probes" || fail "no answer of R$n is expected"; done
grep -o '[a-z_]*/[a-z_/]*\.[hm][d]*' tests/gpu/expected.tsv | sort -u | while read -r file; do
    [ -e "$file" ] || [ -e "src/cuda/$file" ] || { echo "answers: there is no file $file"; exit 1; }
done
cat >"$new/risks.md" <<'END'
| R7 device | q | before: contexts 1 0; after: contexts 0 0; x |
| R7 peer | q | before: contexts 1 0; after: contexts 1 1; x |
| R7 pool | q | after: contexts -1 -1 |
| R8 | "q" | **died by signal 6 (Aborted)** |
| R9 with live | q | 18 of 18 copies were right |
| R9 without live | q | virtual to pool by cudaMemcpyPeerAsync: wrong; 17 of 18 copies were right |
| R15 bandwidth | q | needs 2 devices |
END
awk -v device='a "GPU"' -f tests/gpu/answers.awk tests/gpu/expected.tsv "$new/risks.md" >"$new/json"
# probe, answer, as_expected, skipped
awk -F '": ' '
    /^      "probe"/ { p = $2 } /^      "answer"/ { a = $2 } /^      "as_expected"/ { s = $2 }
    /^      "skipped"/ { print p a s $2 }' "$new/json" >"$new/found"
expect() { grep -qxF "$1" "$new/found" || fail "missing: $1"; }
expect '"R7 device","after: contexts 0 0",true,null,'
expect '"R7 peer","after: contexts 1 1",false,null,'
expect '"R7 pool",null,null,"the driver does not say which devices have a context",'
expect '"R8",null,null,"the probe died by signal 6 (Aborted)",'
expect '"R9 with live","none",true,null,'
expect '"R9 without live","by cudaMemcpyPeerAsync: wrong",false,null,'
expect '"R15 bandwidth",null,null,"needs 2 devices",'
expect '"R13",null,null,"the probe was not run",'
grep -qF '"device": "a \"GPU\"",' "$new/json" || fail "quotes are not escaped"
echo "answers: $(wc -l <"$new/probes") expected answers, $(sort -u "$new/probes" | wc -l) probes"
