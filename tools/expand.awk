# Writes C from a template, for code that is the same for several types or sizes:
#     awk -f expand.awk path=src/comm/kernel_vector.tmpl
# Lines of a template that begin with //! are directives, which may be nested:
#     //! for KIND TYPE in u8 uint8_t, u16 uint16_t     repeats the lines up to its end, once for each
#                                                       group of words; $(KIND) and $(TYPE) are the words
#     //! end
# All other lines are C.
BEGIN {
    for (i = 1; i < ARGC; i++) if (ARGV[i] ~ /^path=/) path = substr(ARGV[i], 6)
    while ((getline line < path) > 0) text[++lines] = line
    if (!lines) fail(path " is missing or empty")
    room = path
    sub(/^.*src\//, "", room)
    guard = room
    sub(/\.tmpl$/, ".gen.h", guard)
    generated = guard
    guard = "DS__" toupper(guard)
    gsub(/[^A-Z0-9]/, "_", guard)
    print "/* " generated " - generated from " room " by `make headers`. Edit that file. */"
    print "#ifndef " guard
    print "#define " guard
    print ""
    expand(1, lines)
    print ""
    print "#endif"
    exit
}
function fail(sentence) {
    print "expand: " sentence > "/dev/stderr"
    exit 1
}
# The line of the end of the loop that begins in line `at`.
function end_of(at,    i, depth) {
    for (i = at; i <= lines; i++) {
        if (text[i] ~ /^\/\/! for /) depth++
        if (text[i] ~ /^\/\/! end/ && --depth == 0) return i
    }
    fail(path ":" at ": the loop has no end")
}
function substituted(line,    name, at, out) {
    while ((at = index(line, "$("))) {
        name = substr(line, at + 2)
        sub(/\).*/, "", name)
        if (!(name in value)) fail(path ": $(" name ") is in no loop of that name")
        out = out substr(line, 1, at - 1) value[name]
        line = substr(line, at + length(name) + 3)
    }
    return out line
}
function expand(first, last,    i, j, k, end, head, names, count, groups, group, words, word) {
    for (i = first; i <= last; i++) {
        if (text[i] !~ /^\/\/! /) { print substituted(text[i]); continue }
        if (text[i] !~ /^\/\/! for .* in /) fail(path ":" i ": expected for NAMES in WORDS")
        end = end_of(i)
        head = substituted(text[i])
        sub(/^\/\/! for /, "", head)
        groups = split(substr(head, index(head, " in ") + 4), group, /, */)
        count = split(substr(head, 1, index(head, " in ") - 1), names, " ")
        for (j = 1; j <= groups; j++) {
            words = split(group[j], word, " ")
            if (words != count) fail(path ":" i ": " group[j] ": " words " words for " count " names")
            for (k = 1; k <= count; k++) value[names[k]] = word[k]
            expand(i + 1, end - 1)
        }
        for (k = 1; k <= count; k++) delete value[names[k]]
        i = end
    }
}
