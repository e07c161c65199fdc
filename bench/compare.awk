# compare.awk - the table of bench/compare.sh. First file: identifier, unit and title of each row; second file: side (old, new),
# number of the turn, row and value. A ratio is that of two values of one turn.
BEGIN { FS = "\t" }
function sort(v, n,  i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t } }
function at(v, n, share) { return v[int((n - 1) * share + 1.5)] }
function figure(x) { return x >= 100 ? sprintf("%.0f", x) : x >= 10 ? sprintf("%.1f", x) : sprintf("%.2f", x) }
# Both quartiles are more than 5 % away from 1.
function verdict(low, high) { return (low > 1.05) ? "**slower**" : (high < 0.95) ? "faster" : "" }
NR == FNR { unit[$1] = $2; title[$1] = $3; next }
{ if (!($3 in seen)) { seen[$3] = ++rows; row[rows] = $3 }
  value[$3, $1, $2] = $4; if ($2 > turns) turns = $2 }
END {
    print "| row | OLD | NEW | ratio of times | quartiles | |"
    print "|---|---:|---:|---:|---:|---|"
    for (k = 1; k <= rows; k++) {
        id = row[k]; base = id; sub(/,.*/, "", base); rest = substr(id, length(base) + 1)
        n = nold = nnew = 0
        more = unit[base] ~ /GB\/s|times/
        for (t = 1; t <= turns; t++) {
            o = value[id, "old", t]; w = value[id, "new", t]
            if (o != "" && o != "WRONG") vo[++nold] = o + 0
            if (w != "" && w != "WRONG") vn[++nnew] = w + 0
            if (o + 0 > 0 && w + 0 > 0) ratio[++n] = more ? o / w : w / o
        }
        sort(vo, nold); sort(vn, nnew); sort(ratio, n)
        name = (base in title ? title[base] : base) rest (base in unit ? ", " unit[base] : "")
        if (!n) { printf "| %s | %s | %s | - | - | only one commit has a figure |\n", name, nold ? figure(at(vo, nold, .5)) : "-", nnew ? figure(at(vn, nnew, .5)) : "-"; continue }
        low = at(ratio, n, .25); high = at(ratio, n, .75)
        printf "| %s | %s | %s | %.2f | %.2f to %.2f | %s |\n", name, figure(at(vo, nold, .5)), figure(at(vn, nnew, .5)), at(ratio, n, .5), low, high,
            verdict(low, high)
    }
}
