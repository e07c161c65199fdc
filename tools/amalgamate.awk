# Writes the single file: devstream.h with devstream_cpu.h in the places where it is included, and the other headers behind it.
#     awk -f tools/amalgamate.awk devstream.h devstream_cpu.h devstream_alloc.h devstream_comm.h devstream_rng.h > single/devstream.h
# devstream.h includes it twice: the first place gets the declarations, the second what follows the cut line.

FNR == 1 { file++ }
{ line[file, FNR] = $0; lines[file] = FNR }

# What devstream_cpu.h needs only as a file of its own: its include of devstream.h with the #if around it, and the
# licence behind its last #endif.
function paste_cpu(part,    i, cut, last) {
    for (i = 1; i <= lines[2]; i++) {
        if (line[2, i] ~ /^\/\* >>cpu-implementation \*\//) cut = i
        if (line[2, i] ~ /^#[ \t]*endif/) last = i
    }
    if (!cut) fail("devstream_cpu.h has no line /* >>cpu-implementation */")
    if (part == 1) { i = 1; last = cut - 1 } else i = cut
    for (; i <= last; i++) {
        if (line[2, i] ~ /^#[ \t]*if/ && line[2, i + 1] ~ /^#[ \t]*include "devstream.h"/) { i += 2; continue }
        print line[2, i]
    }
}

# The last line of the #if that begins at line i, if that block only checks that the file is there; else 0.
function check_ends_at(i,    depth, about) {
    if (line[1, i] !~ /^#[ \t]*if.*__has_include/) return 0
    for (; i <= lines[1]; i++) {
        if (line[1, i] ~ /__has_include\("devstream_cpu\.h"\)/) about = 1
        if (line[1, i] ~ /^#[ \t]*if/) depth++
        if (line[1, i] ~ /^#[ \t]*endif/ && --depth == 0) return about ? i : 0
    }
    return 0
}

function fail(why) { print "amalgamate: " why > "/dev/stderr"; failed = 1; exit 1 }

END {
    if (failed) exit 1
    for (i = 1; i <= lines[1]; i++) {
        if ((end = check_ends_at(i))) { i = end; continue }
        if (line[1, i] ~ /^#[ \t]*include "devstream_cpu\.h"/) {
            if (++places > 2) fail("devstream.h includes devstream_cpu.h more than twice")
            paste_cpu(places)
            continue
        }
        sub(/ devstream_cpu\.h must lie beside it\./, "", line[1, i])
        print line[1, i]
        if (i == 1) print "\n   This is the single file, made of devstream.h, devstream_cpu.h, devstream_alloc.h, devstream_comm.h and devstream_rng.h by `make amalgamate`."
    }
    for (f = 3; f <= file; f++)
        for (i = 1; i <= lines[f]; i++)
            if (line[f, i] !~ /^#[ \t]*include "devstream[a-z_]*\.h"/) print line[f, i]
    if (places != 2) fail("devstream.h includes devstream_cpu.h " places + 0 " times instead of twice")
}
