# Compares the answers of the probes with the expected ones, and writes JSON.
#     awk -f answers.awk [-v reason=TEXT] [-v date=DATE] [-v device=TEXT] [-v driver=TEXT] [-v commit=ID] \
#         expected.tsv [risks.md]
# reason: why there are no answers at all, such as "there is no GPU". An observation that is missing has the answer
# null and a reason.
BEGIN { FS = "\t" }

function quoted(text) {
    gsub(/\\/, "\\\\", text)
    gsub(/"/, "\\\"", text)
    gsub(/\t/, " ", text)
    return "\"" text "\""
}

# Why a probe has no answer; empty if its row is complete.
function gap(probe, cell) {
    if (!(probe in seen))
        return reason != "" ? reason : "the probe was not run"
    if (match(cell, /\*\*[^*]*\*\*/))
        return "the probe " substr(cell, RSTART + 2, RLENGTH - 4)
    if (match(cell, /needs [0-9]+ devices|do not reach each other|no second cudart[^;]*|not with these headers[^;]*/))
        return substr(cell, RSTART, RLENGTH)
    return "the probe did not observe this"
}

FILENAME ~ /expected\.tsv$/ {
    if (/^#/ || NF < 4)
        next
    rows++
    probe[rows] = $1
    observation[rows] = $2
    expected[rows] = $3
    change[rows] = $4
    next
}

/^\| R/ { # | probe | question | observed |
    split($0, part, / \| /)
    name = substr(part[1], 3)
    seen[name] = 1
    question[name] = part[2]
    cell = $0
    sub(/^\| [^|]* \| [^|]* \| /, "", cell)
    sub(/ \|$/, "", cell)
    gsub(/\\\|/, "|", cell)
    observed[name] = cell
}

END {
    print "{"
    print "  \"date\": " quoted(date) ","
    print "  \"device\": " quoted(device) ","
    print "  \"driver\": " quoted(driver) ","
    print "  \"devstream\": " quoted(commit) ","
    print "  \"answers\": ["
    for (i = 1; i <= rows; i++) {
        cell = observed[probe[i]]
        answer = why = ""
        if (match(cell, observation[i]))
            answer = substr(cell, RSTART, RLENGTH)
        else if ((probe[i] in seen) && expected[i] == "none" && cell ~ /copies were right/)
            answer = "none"
        else
            why = gap(probe[i], cell)
        if (answer ~ /contexts .*-1/) {
            answer = ""
            why = "the driver does not say which devices have a context"
        }
        same = answer == "" ? "null" : answer ~ ("^(" expected[i] ")$") ? "true" : "false"
        if (same == "null") skipped++
        else if (same == "true") as_expected++
        else otherwise++
        print "    {"
        print "      \"probe\": " quoted(probe[i]) ","
        print "      \"question\": " quoted(question[probe[i]]) ","
        print "      \"expected\": " quoted(expected[i]) ","
        print "      \"answer\": " (answer == "" ? "null" : quoted(answer)) ","
        print "      \"as_expected\": " same ","
        print "      \"skipped\": " (why == "" ? "null" : quoted(why)) ","
        print "      \"otherwise\": " quoted(change[i])
        print "    }" (i < rows ? "," : "")
    }
    print "  ],"
    printf "  \"as_expected\": %d, \"otherwise\": %d, \"skipped\": %d\n}\n", as_expected, otherwise, skipped
}
