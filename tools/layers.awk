# Checks which room uses which, from the rooms themselves:
#     awk -f tools/layers.awk src/*/*.h
# Reports include lines and uses of functions that lead to a layer on the right of the list below, and
# forward declarations of functions that another room defines: these belong into types.h of the layer, or
# into its internal.h if other layers use them. From os/ and base/ any function may be used, from other layers
# those that internal.h declares or types.h defines. Outside of os/ it reports processor instructions, calls of the
# system and of the C library that other systems lack, and, except in core/drivers.h and api/, questions for
# macros of the program. Prints the circles of rooms inside of a layer. Relies on the form that clang-format
# gives the rooms: a definition or declaration begins in the first column.
BEGIN {
    layers = split("api os base cpu cuda core alloc tensor topology plan comm ranks", list, " ")
    for (i = 1; i <= layers; i++) may[list[i]] = i
    # What stands on the core, and what does not know its neighbour.
    split("rng kernel check trace", list, " ")
    for (i in list) may[list[i]] = may["core"] + 0.5
    # Layers that have an inside; api, os and base are for all others, and core/drivers.h alone names drivers.
    split("core alloc tensor topology plan comm ranks rng kernel check trace", list, " ")
    for (i in list) inside[list[i]] = 1
    machine = "(^|[^a-z0-9_])(__asm__|__builtin_(ia32|cpu)_[a-z0-9_]+|pthread_[a-z_]+|syscall|mmap|munmap|mprotect|madvise|open|close|" \
        "fcntl|getpid|fork|usleep|nanosleep|clock_gettime|sched_[a-z]+|sysconf|aligned_alloc|posix_memalign|dlopen|dlsym|popen|kill|" \
        "readlink|opendir|pipe|poll|socket|strdup|localtime_r|gmtime_r|strtok_r|strerror_r|rand_r)[ ]*\\("
}
FNR == 1 {
    room = FILENAME
    sub(/^.*src\//, "", room)
    layer = room
    sub(/\/.*/, "", layer)
    rooms[++room_count] = room
    depth = comment = macro = 0
    statement = ""
}
/^#include "/ {
    target = $2
    gsub(/"/, "", target)
    if (sub(/^\.\.\//, "", target)) {
        to = target
        sub(/\/.*/, "", to)
        if (!allowed(layer, to) && room != "core/drivers.h") report("src/" room " includes " target)
        if (to in inside && to != layer && target !~ /\/(types|internal)\.h$/)
            report("src/" room " includes " target "; of other layers only types.h and internal.h are")
    }
}
{
    line = strip($0)
    if (layer != "os" && layer != "api") {
        if (line ~ /^ *#.*DEVSTREAM_/ && room != "core/drivers.h") report("src/" room ":" FNR ": asks for a macro of the program")
        if (line ~ machine) report("src/" room ":" FNR ": is for src/os: " substr($0, 1, 100))
    }
    was_macro = macro
    macro = line ~ /\\$/ && (macro || line ~ /^ *#/)
    note(line)
    if (was_macro || line ~ /^ *#/) next
    read(line)
}
END {
    for (i = 1; i <= room_count; i++)
        for (name in names) if ((rooms[i], name) in seen) use(rooms[i], name)
    for (i = 1; i <= forwards; i++) {
        split(forward[i], part, " ")
        if (part[2] in home && home[part[2]] != part[1] && part[1] !~ /\/(types|internal)\.h$/)
            report("src/" part[1] " declares " part[2] ", which src/" home[part[2]] " defines")
    }
    for (i = 1; i <= room_count; i++) if (!(rooms[i] in order)) walk(rooms[i])
    for (i = 1; i <= circles; i++) print "layers: circle of " circle[i]
    printf "layers: %d rooms, %d circles inside of layers, %d wrong\n", room_count, circles, wrong
    exit wrong > 0
}
function report(text) { print text; wrong++ }
function allowed(from, to) {
    if (from == to) return 1
    if (from == "cuda" && to == "cpu") return 0
    return (to in may) && may[to] < may[from]
}
# The line without comments and strings.
function strip(text,    out, i) {
    out = ""
    while (text != "") {
        if (comment) {
            i = index(text, "*/")
            if (!i) return out
            text = substr(text, i + 2)
            comment = 0
        }
        if (!match(text, /\/\*|\/\/|"|'/)) return out text
        out = out substr(text, 1, RSTART - 1)
        i = substr(text, RSTART, 1)
        text = substr(text, RSTART)
        if (i == "/") {
            if (substr(text, 2, 1) == "/") return out
            text = substr(text, 3)
            comment = 1
        } else {
            if (!(i == "\"" ? match(text, /^"([^"\\]|\\.)*"/) : match(text, /^'([^'\\]|\\.)*'/))) return out
            text = substr(text, RLENGTH + 1)
            out = out i i
        }
    }
    return out
}
# Every private name of the line counts as seen in the room.
function note(text) {
    while (match(text, /ds__[a-z0-9_]+/)) {
        count[room, substr(text, RSTART, RLENGTH)]++
        seen[room, substr(text, RSTART, RLENGTH)] = 1
        names[substr(text, RSTART, RLENGTH)] = 1
        text = substr(text, RSTART + RLENGTH)
    }
}
# Collects the statements outside of braces: what ends with { is a definition, with ; a declaration.
function read(text,    c) {
    while (match(text, /[{};]/)) {
        c = substr(text, RSTART, 1)
        if (depth == 0) statement = statement " " substr(text, 1, RSTART - 1)
        text = substr(text, RSTART + 1)
        if (c == "{") { if (depth++ == 0) ended(1) }
        else if (c == "}") { if (--depth == 0) statement = "" }
        else if (depth == 0) ended(0)
    }
    if (depth == 0) statement = statement " " text
}
function ended(defined,    text, name) {
    text = statement
    statement = ""
    if (text !~ /(^| )static / || text ~ /=/) return
    while (sub(/__attribute__ *\(\([^()]*(\([^()]*\))?[^()]*\)\)/, "", text)) {}
    if (!match(text, /ds__[a-z0-9_]+\(/)) return
    name = substr(text, RSTART, RLENGTH - 1)
    if (defined) home[name] = room
    else { forward[++forwards] = room " " name; only[room, name]++ }
}
function use(from, name,    to, a, b) {
    if (!(name in home) || home[name] == from) return
    if (count[from, name] <= only[from, name]) return
    to = home[name]
    a = from; sub(/\/.*/, "", a)
    b = to; sub(/\/.*/, "", b)
    if (!allowed(a, b)) report("src/" from " uses " name " of src/" to)
    else if (a != b && (b in inside) && to !~ /\/types\.h$/ && !((b "/internal.h", name) in only))
        report("src/" from " uses " name " of src/" to ", which src/" b "/internal.h does not declare")
    if (a == b && !((from, to) in edge)) { edge[from, to] = 1; next_of[from] = next_of[from] " " to }
}
# Tarjan's strongly connected rooms.
function walk(v,    list, n, k, w, text, members) {
    order[v] = low[v] = ++visited
    stack[++top] = v
    on[v] = 1
    n = split(next_of[v], list, " ")
    for (k = 1; k <= n; k++) {
        w = list[k]
        if (!(w in order)) { walk(w); if (low[w] < low[v]) low[v] = low[w] }
        else if (on[w] && order[w] < low[v]) low[v] = order[w]
    }
    if (low[v] != order[v]) return
    do {
        w = stack[top--]
        on[w] = 0
        text = text " " w
        members++
    } while (w != v)
    if (members > 1) circle[++circles] = members ":" text
}
