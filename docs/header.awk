# What doxygen wants of a header and its reader does not: awk -v here=(this folder) -f names.awk -f header.awk x.h
# - the opening comment becomes the page's text, a "---- section ----" a heading over what is declared in it, and a plain comment that
#   stands by itself the text under that heading, or a heading of its own with its first words;
# - lists of X(...) become the names that they make; macros that end with _, which are nobody's business, go.
# Only the declarations: the rest is not looked at. The first line says that the header is generated.

# Prose as it is, with what doxygen would take for its own escaped; what is indented deeper is a table or code, and stays as it is.
function prose(line,    deep, apart) {
    deep = line ~ /^       / && !item && (verbatim || before ~ /(:|^ *)$/)
    if (line ~ /^   - /) item = 1
    else if (line ~ /^(   [^ -]|$)/) item = 0
    apart = (line ~ /^   [A-Z][a-z ]*(\([^)]*\))?: / || line ~ /^   [A-Z].*:$/) && before !~ /^ *$/ ? "\n" : "" # what has a title begins a paragraph
    before = line
    if (deep || verbatim) apart = ""
    if (deep) sub(/^       /, "", line)
    if (deep == verbatim) return deep ? line : apart plain(line)
    verbatim = deep
    return deep ? "@verbatim\n" line : "@endverbatim\n" plain(line)
}
function plain(line) { sub(/^   /, "", line); gsub(/[\\<>@#*]/, "\\\\&", line); return linked(line) }
function over(    s) { s = verbatim ? "\n@endverbatim" : ""; verbatim = item = 0; return s }

BEGIN { verbatim = item = 0 }
FNR == 1 && /Generated from/ { next }
!begun { begun = 1; n = split(FILENAME, part, "/"); sub(/^\/\* [a-z_.]* - /, ""); print "/** @file " part[n] "\n@brief " plain($0) "\n"; text = 1; next }
text && /\*\/$/ { sub(/ *\*\/$/, ""); $0 = prose($0); print $0 over() (group ? "\n@{" : "") "\n*/"; text = 0; next }
text { print prose($0); next }

/^#endif \/\* DEVSTREAM_[A-Z_]*INCLUDED/ { if (open) print "/** @} */"; print; exit }

/^\/\* ---- [a-z ]* -*( \*\/)?/ {
    title = $0
    gsub(/^\/\* -* | -* \*\/$/, "", title)
    if (open) print "/** @} */"
    open = 1
    while ((more = (getline line)) > 0 && line ~ /^ *$/) {}
    printf "/** @name %s\n", toupper(substr(title, 1, 1)) substr(title, 2)
    if (line ~ /^\/\* [^-X]/) { concept(line); next }
    print "@{ */"
    $0 = line
}
/^\/\* [A-Z][a-z ]/ && !/^\/\* X\(/ && before == "" {
    title = substr($0, 4)
    sub(/[.:,] .*/, "", title)
    if (open) print "/** @} */"
    open = 1
    printf "/** @name %s\n", title
    concept($0)
    next
}
function concept(line) {
    group = text = 1
    line = substr(line, 4)
    if (line ~ /\*\/$/) { sub(/ *\*\/$/, "", line); print plain("   " line) "\n@{\n*/"; text = 0; return }
    print plain("   " line)
}

/^#define [A-Z_]*\(X\)/ { list = $2; sub(/\(X\)/, "", list); items[list] = "" }
list { items[list] = items[list] $0; if (!/\\$/) { each = list; list = "" } }
/^ *[A-Z_]*\([A-Z_]*_\)$/ {
    name = $0
    gsub(/^ *|\(.*/, "", name)
    rest = items[name]
    while (match(rest, /X\([a-zA-Z][^()]*("[^"]*")?[^()]*\)/)) {
        one = substr(rest, RSTART + 2, RLENGTH - 3)
        rest = substr(rest, RSTART + RLENGTH)
        word = one; sub(/,.*/, "", word)
        about = one; sub(/^[^,]*, /, "", about)
        if (name == "DS_DTYPES") print "/** " about " */ ds_dtype ds_" word "(void);"
        else if (name == "DS_LINK_KINDS") print "DS_LINK_" word ", /**< " about " */"
        else { number = about; sub(/,.*/, "", number); gsub(/^[^"]*"|"$/, "", about); print word " = " number ", /**< " about " */" }
    }
    next
}
/^#include "devstream/ { next } # two of them include each other, and one would be seen as empty
/^#define ([A-Z0-9_]*_[( ]|DSDEF|DSINLINE)/ { skip = /\\$/; next }
skip { skip = /\\$/; next }
{
    before = $0
    if (documented = (documented || /\/\*\*/)) { # a comment of this line or of lines before
        at = index($0, "/**") ? index($0, "/**") : 1
        code = substr($0, 1, at - 1)
        $0 = substr($0, at)
        documented = !/\*\//
        gsub(/__[a-z_]+__/, "`&`")
        $0 = code linked($0)
    }
    print
}
