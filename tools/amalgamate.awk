# Writes the headers that users get from the source tree:
#     awk -f tools/amalgamate.awk src=src out=DIR devstream devstream_alloc ...
# Each name is an entry file src/NAME.h and becomes DIR/NAME.h. All together become the single file,
# DIR/single/devstream.h, in which the declarations of all stand before the implementations.
#
# An entry file has an opening comment, includes of other entry files, the declarations under
# NAME_H_INCLUDED, the implementation under DEVSTREAM_IMPLEMENTATION, and a closing comment. Every other file of the tree is a room: an
# opening comment, an include guard, includes, code. The include of a room is replaced by the room
# where it is met first, and goes elsewhere; guards go. These rules hold, else the run ends with a
# sentence:
# - A room has the guard DS__PATH_H, and its includes stand in front of its code.
# - Only entry files, os/os.h, os/system.h and core/drivers.h have conditionals around includes. What is met first
#   inside of a conditional may be needed only inside of the same one.
# - A room of api/ is met in the declarations, every other one in the implementation.
# - A room does not include an entry file, nor itself by way of others.
# - An include of another entry file stays as it is, and what that one has counts as written. A room
#   that two entry files would write must be listed in one that both include.
# The opening comment of a room of api/ is for developers and is left out of the headers.

BEGIN {
    for (i = 1; i < ARGC; i++) {
        if (ARGV[i] ~ /^src=/) src = substr(ARGV[i], 5)
        else if (ARGV[i] ~ /^out=/) out = substr(ARGV[i], 5)
        else { entries[++count] = ARGV[i]; is_entry[ARGV[i] ".h"] = 1 }
    }
    for (i = 1; i <= count; i++) write_entry(entries[i])
    write_single()
    exit
}

function fail(sentence) {
    print "amalgamate: " sentence > "/dev/stderr"
    exit 1
}

# ---- files and lines ----

function load(path, by,    line, n, status) {
    if (path in lines) return
    while ((status = (getline line < (src "/" path))) > 0) text[path, ++n] = line
    close(src "/" path)
    if (n == 0) fail(src "/" path " is missing or empty" (by == "" ? "" : "; " path " is included by " by))
    lines[path] = n
}

# The name in an include of a file of the tree, else "".
function included(line) {
    if (line !~ /^#[ \t]*include[ \t]*"/) return ""
    sub(/^[^"]*"/, "", line)
    sub(/".*/, "", line)
    return line
}

# The path from src/ of a file that `by` includes as `name`.
function resolved(by, name,    part, n, i, path) {
    path = by
    if (!sub(/\/[^\/]*$/, "", path)) path = ""
    n = split(name, part, "/")
    for (i = 1; i <= n; i++) {
        if (part[i] == ".") continue
        if (part[i] == "..") { if (!sub(/\/[^\/]*$/, "", path)) path = "" }
        else path = path == "" ? part[i] : path "/" part[i]
    }
    return path
}

function put(line) { body[entry, part, ++length_of[entry, part]] = line }

# ---- conditionals ----

# Follows #if, #else and #endif; 1: the line is one of them.
function condition(line) {
    if (line !~ /^#[ \t]*(if|el|endif)/) return 0
    sub(/[ \t]*\/\*.*/, "", line)
    if (line ~ /^#[ \t]*if/) stack[++depth] = line
    else if (line ~ /^#[ \t]*endif/) depth--
    else stack[depth] = stack[depth] "; " line
    return 1
}
# The conditions around the present line. The two parts of an entry file, the language, and the pass for device code are none.
function inside(    i, all) {
    for (i = 1; i <= depth; i++)
        if (stack[i] !~ /__cplusplus|DEVSTREAM_[A-Z_]*INCLUDED|DEVSTREAM_IMPLEMENTATION|DEVSTREAM_KERNEL_DEVICE/) all = all stack[i] "\n"
    return all
}

# ---- rooms ----

function chooses(path) { return path == "os/os.h" || path == "os/system.h" || path == "core/drivers.h" }

# Whether the room is in what the present entry file has, or in what it includes.
function is_there(path) { return (path in owner) && (owner[path] == entry || ((entry, owner[path]) in reaches)) }

function write_room(path, by,    top, last, i, line, name, code, guard) {
    if (path in is_entry) fail(by " includes the entry file " path)
    if (path in unfinished) fail("circle: " path " is included by " by ", which it includes by way of others")
    if (is_there(path)) {
        if (index(inside(), around[path]) != 1)
            fail(by " needs " path ", which is met first inside of " around[path] "list it before that")
        return
    }
    if (path in owner)
        fail(path " would be written by " owner[path] ".h and " entry ".h: list it in one that both include")
    if (part == 1 && path !~ /^api\//) fail(by " needs " path " in the declarations, which have rooms of api/ only")
    if (part == 2 && path ~ /^api\//) fail(by " needs " path " in the implementation: list it in the declarations")
    load(path, by)
    owner[path] = entry
    around[path] = inside()
    unfinished[path] = 1

    top = 1
    if (text[path, 1] ~ /^\/\*/) {
        while (top <= lines[path] && text[path, top] !~ /\*\/[ \t]*$/) top++
        top++
    }
    guard = "DS__" toupper(path)
    gsub(/[^A-Z0-9]/, "_", guard)
    if (text[path, top] != "#ifndef " guard || text[path, top + 1] != "#define " guard)
        fail(path ":" top ": expected the guard " guard)
    for (last = lines[path]; last > top && text[path, last] ~ /^[ \t]*$/;) last--
    if (text[path, last] !~ /^#[ \t]*endif/) fail(path ":" last ": expected the #endif of the guard")

    if (chooses(path)) {
        for (i = 1; i < top; i++) put(text[path, i])
        for (i = top + 2; i < last; i++) {
            line = text[path, i]
            if ((name = included(line)) != "") { put(""); write_room(resolved(path, name), path) }
            else { condition(line); put(line) }
        }
    } else {
        for (i = top + 2; i < last; i++) {
            line = text[path, i]
            name = included(line)
            if (name != "" && code) fail(path ":" i ": an include behind code or inside of a conditional")
            if (name != "") write_room(resolved(path, name), path)
            else if (line !~ /^[ \t]*$/) code = 1
        }
        for (i = path ~ /^api\// ? top : 1; i < last; i++)
            if ((i < top || i > top + 1) && included(text[path, i]) == "") put(text[path, i])
    }
    put("")
    delete unfinished[path]
}

# ---- entry files ----

# Parts: 0 the opening comment and includes of other entry files, 1 the declarations, 2 the implementation, 3 the closing comment.
function write_entry(name,    path, i, line, other, key) {
    entry = name
    path = name ".h"
    load(path)
    part = depth = 0
    for (i = 1; i <= lines[path]; i++) {
        line = text[path, i]
        if (part == 0 && line ~ /^#ifndef DEVSTREAM_[A-Z_]*INCLUDED/) part = 1
        if (part == 1 && line ~ /^#if defined\(DEVSTREAM_IMPLEMENTATION\)/) part = 2
        other = included(line)
        if (other in is_entry) {
            sub(/\.h$/, "", other)
            if (!(other in written)) fail(path " includes " other ".h, which must be named before it")
            reaches[entry, other] = 1
            for (key in written) if ((other, key) in reaches) reaches[entry, key] = 1
            put(line)
        } else if (other != "") {
            if (part != 1 && part != 2) fail(path ":" i ": an include of a room outside of both parts")
            write_room(resolved(path, other), path)
        } else {
            condition(line)
            put(line)
            if (part == 2 && depth == 0 && line ~ /^#endif/) part = 3
        }
    }
    if (part != 3) fail(path " has no implementation under #if defined(DEVSTREAM_IMPLEMENTATION)")
    written[name] = 1
    begin(name ".h", "src/" path)
    for (i = 0; i <= 3; i++) print_part(name, i)
    close(target)
}

function write_single(    i) {
    single = 1
    begin("single/devstream.h", "src/, all headers in one file,")
    for (i = 1; i <= count; i++) { print_part(entries[i], 0); print_part(entries[i], 1) }
    for (i = 1; i <= count; i++) print_part(entries[i], 2)
    print_part(entries[1], 3)
    close(target)
}

# ---- output ----

function begin(file, from) {
    target = out "/" file
    blank = 0
    print "/* Generated from " from " by `make headers`. Edit the files in src/, not this one. */" > target
}
# One blank line in place of several; in the single file nothing is included.
function print_part(name, which,    i, line) {
    for (i = 1; i <= length_of[name, which]; i++) {
        line = body[name, which, i]
        if (line ~ /^[ \t]*$/) { blank = 1; continue }
        if (single && which <= 1 && line ~ /^#include "devstream/) continue
        if (blank) print "" > target
        blank = 0
        print line > target
    }
}
