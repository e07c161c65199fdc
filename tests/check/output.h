/* output.h - files of reports, and their lines of JSON. */
#ifndef OUTPUT_H
#define OUTPUT_H
#include "json.h"
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

/* Returns the number of lines, each of which is an object of JSON; -1: one is not. */
static inline int json_lines(const char *text) {
    int lines = 0;
    for (; *text; lines++) {
        const char *end = strchr(text, '\n');
        json value;
        if (!end || json_parse(text, (size_t)(end - text), &value) || value.kind != JSON_OBJECT)
            return -1;
        text = end + 1;
    }
    return lines;
}

#endif
