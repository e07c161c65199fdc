# Writes a C program from src/cuda/cudart_types.h. The program prints assertions of all values, sizes and offsets that the file declares,
# for a comparison with CUDA's headers (prototypes.c):
#     awk -f layout.awk src/cuda/cudart_types.h
BEGIN {
    print "#define DEVSTREAM_CUDA_DLOPEN\n#include \"cuda/version.h\"\n"
    print "#define VALUE(name) printf(\"_Static_assert((int)%s == %d, \\\"%s\\\");\\n\", #name, (int)name, #name);"
    print "#define SIZE(type, is) printf(\"_Static_assert(sizeof(%s) %s %zu, \\\"%s\\\");\\n\", #type, is, sizeof(type), #type);"
    print "#define FIELD(type, name) printf(\"_Static_assert(offsetof(%s, %s) == %zu && sizeof(((%s *)0)->%s) == %zu, \\\"%s.%s\\\");\\n\", " \
        "#type, #name, offsetof(type, name), #type, #name, sizeof(((type *)0)->name), #type, #name);"
    print "int main(void) {"
}
# Types that older headers lack.
/^#if .*CUDART_VERSION < [0-9]+\)/ {
    version = $0
    gsub(/.*CUDART_VERSION < |\).*/, "", version)
    print "    puts(\"#if CUDART_VERSION >= " version "\");"
    guarded = 1
}
/^#endif/ && guarded { print "    puts(\"#endif\");"; guarded = 0 }
# A macro that the header defines in another way is a warning there.
/^#define cuda/ { print "    puts(\"" $0 "\");" }
# Enumerators, also several in a line.
/^ *cuda[A-Za-z0-9]+ = |^(typedef )?enum .*\{ *cuda/ {
    text = $0
    while (match(text, /cuda[A-Za-z0-9]+ = /)) {
        print "    VALUE(" substr(text, RSTART, RLENGTH - 3) ")"
        values++
        text = substr(text, RSTART + RLENGTH)
    }
}
# Structs and unions: one member in a line. A struct that cudart writes may be longer than in some versions.
/^(typedef )?(struct|union) [A-Za-z0-9_]+ \{$/ { inside = 1; fields = ""; type = $(NF - 2) " " $(NF - 1); tagged = /^typedef/; next }
inside && /^\}/ {
    if (tagged) { type = $2; sub(/;.*/, "", type) }
    written = type ~ /cuda(Pointer|Func)Attributes$/
    print "    SIZE(" type ", \"" (written ? "<=" : "==") "\")"
    count = split(fields, list, " ")
    for (i = 1; i <= count; i++)
        if (!(written && list[i] == "reserved")) print "    FIELD(" type ", " list[i] ")"
    structs++
    inside = 0
}
# Of a struct inside only the name counts; the comparison has its size.
inside && /^    struct \{$/ { nested = 1; next }
nested && /^    \}/ { nested = 0 }
nested { next }
inside { name = $0; sub(/;.*/, "", name); sub(/\[.*/, "", name); sub(/.*[ *]/, "", name); fields = fields " " name }
END {
    print "    return sizeof ds__cudart == 0 || sizeof ds__cudart_forms == 0;\n}"
    # a pattern that does not fit the form of the file any more must not pass
    if (values < 100 || structs < 15) { print "layout.awk: only " values " values and " structs " structs" >"/dev/stderr"; exit 1 }
}
