/* output.h - files of reports, and a reader of JSON for their lines. */
#ifndef OUTPUT_H
#define OUTPUT_H
#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the name of a new file. The name is valid until the next call. */
static inline const char *output_new(void) {
    static char name[40];
    snprintf(name, sizeof name, "%s", "/tmp/devstream-check-XXXXXX");
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    close(fd);
    return name;
}

/* Removes a file and returns its text, which is valid until the next call. */
static inline const char *output_read(const char *name) {
    static char text[1 << 16];
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    unlink(name);
    text[n] = 0;
    return text;
}

/* Returns the number of bytes of a character of UTF-8, or 0. */
static inline size_t json_character(const unsigned char *p) {
    static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t n = 1;
    unsigned value = *p;
    if (*p >= 0x80)
        n = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    if (*p < 0x20 || (*p >= 0x80 && *p < 0xc0) || *p >= 0xf8)
        return 0;
    if (n > 1)
        value &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        value = value << 6 | (p[i] & 0x3f);
    }
    int valid = value >= least[n] && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    return valid ? n : 0;
}

/* Returns the end of a string that begins behind a quotation mark, or NULL. */
static inline const char *json_string(const char *p) {
    while (*p != '"') {
        size_t n = json_character((const unsigned char *)p);
        if (*p == '\\')
            n = p[1] == 'u' ? 6 * (strspn(p + 2, "0123456789abcdef") >= 4)
                            : 2 * !!strchr("\"\\n", p[1]);
        if (!n)
            return NULL;
        p += n;
    }
    return p + 1;
}

/* Returns the end of an object that begins behind a brace, or NULL. Values are numbers, strings and
   objects. */
static inline const char *json_object(const char *p) {
    for (;;) {
        if (*p++ != '"' || !(p = json_string(p)) || *p++ != ':')
            return NULL;
        if (*p == '"')
            p = json_string(p + 1);
        else if (*p == '{')
            p = json_object(p + 1);
        else
            p += strspn(p, "0123456789");
        if (!p || (*p != ',' && *p != '}'))
            return NULL;
        if (*p++ == '}')
            return p;
    }
}

/* Returns the number of lines, each of which is an object of JSON; -1: one is not. */
static inline int json_lines(const char *text) {
    int lines = 0;
    for (; *text; lines++) {
        const char *end = *text == '{' ? json_object(text + 1) : NULL;
        if (!end || *end != '\n')
            return -1;
        text = end + 1;
    }
    return lines;
}

#endif
