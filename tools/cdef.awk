# Writes the declarations for binding generators that have no preprocessor, as cffi:
#     cc -E ... single/devstream.h without its includes | awk -f tools/cdef.awk source=single/devstream.h
# The input is preprocessed C without attributes. Inline functions become declarations, since the libraries have them as symbols. Static
# functions, assertions and private names are left out: only compilers of C can use them. Constants of one number, which the preprocessor
# does not show, come from the lines #define of `source`.
BEGIN {
    for (i = 1; i < ARGC; i++) if (ARGV[i] ~ /^source=/) { source = substr(ARGV[i], 8); ARGV[i] = "" }
    print "/* Declarations of devstream without macros, attributes and bodies, for cffi and other generators of"
    print "   bindings. In C, #include <stddef.h> and <stdint.h> first. Call ds_ functions in a shared library:"
    print "   each declared function is a symbol of it."
    print "   Generated from single/devstream.h by `make headers`. Edit the files in src/, not this one. */"
    while ((getline line < source) > 0) {
        if (line ~ /^#ifdef DEVSTREAM_IMPLEMENTATION/) break
        if (line !~ /^#define (DS_|DEVSTREAM_VERSION_)[A-Z0-9_]+ (0x[0-9a-fA-F]+|[0-9]+)( |$)/) continue
        split(line, word, " ")
        if (word[2] !~ /^DS__/ && !(word[2] in seen)) { seen[word[2]]; print "#define " word[2] " " word[3] }
    }
}

/^#/ { next }
{
    while (length($0) > 0) {
        if (match($0, /^[ \t]+/)) { $0 = substr($0, RLENGTH + 1); continue }
        if (!match($0, /^([A-Za-z_][A-Za-z_0-9]*|[0-9][0-9A-Za-z.]*|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|<<|>>|->|\.\.\.|==|!=|<=|>=|&&|\|\|)/))
            RLENGTH = 1
        take(substr($0, 1, RLENGTH))
        $0 = substr($0, RLENGTH + 1)
    }
}

function take(token) {
    if (token == "{" && depth == 0 && count > 0 && item[count] == ")") body = 1
    if (!body) item[++count] = token
    if (token ~ /^[({]$/) depth++
    if (token ~ /^[)}]$/) depth--
    if (depth > 0 || (token != ";" && !(body && token == "}"))) return
    if (body) item[++count] = ";"
    write()
    count = body = 0
}

# Whether the item is public. The name of a typedef stands before its semicolon, unless it is one of a function.
function public(    i) {
    if (count < 2 || item[1] == "static" || item[1] == "_Static_assert") return 0
    for (i = 1; i <= count; i++) if (item[i] ~ /^dsk?__/) return 0
    return 1
}

function write(    i, first, kind, level, text, before, token, parens) {
    if (!public()) return
    first = 1
    while (item[first] ~ /^(extern|inline)$/) first++
    for (i = first; i <= count; i++) {
        token = item[i]
        if (token == "enum") kind = "enum"
        if (token ~ /^(struct|union)$/) kind = ""
        if (token == "}") level--
        if (text == "") text = sprintf("%" (4 * level) "s", "")
        else if (spaced(before, token, item[i + 1])) text = text " "
        text = text token
        if (token == "{") level++
        if (token == "(") parens++
        if (token == ")") parens--
        if (token == "{" || (token == ";" && level > 0) || (token == "," && kind == "enum" && level > 0 && !parens) ||
            (level > 0 && item[i + 1] == "}" && token != ";")) {
            print text
            text = ""
        }
        before = token
    }
    print text
}

function spaced(before, token, after) {
    if (before == "" || before ~ /^[({\[]$/ || token ~ /^[,;)\]]$/ || token == "[") return 0
    if (token == "(") return (before ~ /^[A-Za-z_0-9]/ && after == "*") || before ~ /^[,=|<>+]/
    if (before == "*") return 0
    if (before ~ /^[-~]$/ && !binary) return 0
    binary = before ~ /^[A-Za-z_0-9)]/
    return 1
}
