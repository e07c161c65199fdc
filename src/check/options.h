/* check/options.h - options of the layer.

   ds__race_configure reads the list of ds_init_desc.check or DEVSTREAM_CHECK.

   Invariants: outside of a start, the options are those of the running layer, or the defaults.
   Locks: ds__g.mutex is held.
   Threads: the one that starts devstream. */
#ifndef DS__CHECK_OPTIONS_H
#define DS__CHECK_OPTIONS_H

#include "table.h"

static void ds__race_patterns_deinit(void) {
    for (size_t i = 0; i < ds__race.patterns; i++)
        ds__host_free(ds__race.pattern[i]);
    ds__race_release(ds__race.pattern, ds__race.pattern_room * sizeof *ds__race.pattern);
    ds__race.pattern = NULL;
    ds__race.patterns = ds__race.pattern_room = 0;
}

/* Adds the patterns of a file, one in a line. */
static ds_result ds__race_patterns_read(const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file)
        return ds__fail(DS_ERR_INVALID_VALUE, "check: the file of suppressions %.200s: %s", path,
                        strerror(errno));
    ds_result r = DS_OK;
    while (r == DS_OK && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!*line || *line == '#')
            continue;
        char *copy = ds__copy_text(line, sizeof line);
        if (!copy || !ds__race_array_reserve(&ds__race.pattern, sizeof copy, ds__race.patterns,
                                             &ds__race.pattern_room)) {
            ds__host_free(copy);
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the suppressions");
            continue;
        }
        ds__race.pattern[ds__race.patterns++] = copy;
    }
    fclose(file);
    return r;
}

/* Reads a number from 1 to `most`. Returns 0 if the text is none. */
static unsigned long ds__race_number(const char *text, unsigned long most) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && n <= most ? n : 0;
}

/* Takes one option. */
static ds_result ds__race_option(const char *o) {
    static const struct {
        const char *name;
        int *flag;
    } flags[] = { { "threads", &ds__race.threads },
                  { "possible", &ds__race.possible },
                  { "abort", &ds__race.aborts },
                  { "json", &ds__race.json },
                  { "quiet", &ds__race.quiet } };

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (strcmp(o, flags[i].name) == 0) {
            *flags[i].flag = 1;
            return DS_OK;
        }
    if (strncmp(o, "suppress=", 9) == 0)
        return ds__race_patterns_read(o + 9);
    if (strncmp(o, "output=", 7) == 0) {
        ds__race.output = fopen(o + 7, "w");
        return ds__race.output ? DS_OK
                               : ds__fail(DS_ERR_INVALID_VALUE, "check: the file %.200s: %s", o + 7,
                                          strerror(errno));
    }
    if (strncmp(o, "exit=", 5) == 0) {
        ds__race.exit_code = (int)ds__race_number(o + 5, 125);
        DS__REQUIRE(ds__race.exit_code, "check: \"%.40s\"; use exit=1 to exit=125", o);
        return DS_OK;
    }
    if (strncmp(o, "memory=", 7) == 0) {
        unsigned long mib = ds__race_number(o + 7, 1 << 20);
        DS__REQUIRE(mib >= DS__RACE_MEMORY_LEAST,
                    "check: \"%.40s\"; use memory=%d to memory=1048576", o, DS__RACE_MEMORY_LEAST);
        ds__race.most = (size_t)mib << 20;
        return DS_OK;
    }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "check: unknown option \"%.40s\"; use threads, possible, abort, exit=N, json, "
                    "quiet, output=FILE, suppress=FILE or memory=N",
                    o);
}

/* Sets the defaults. */
static void ds__race_options_init(void) {
    ds__race.threads = ds__race.possible = ds__race.aborts = 0;
    ds__race.json = ds__race.quiet = ds__race.exit_code = 0;
    ds__race.most = DS__RACE_MEMORY;
    ds__race_patterns_deinit();
    if (ds__race.output)
        fclose(ds__race.output);
    ds__race.output = NULL;
}

/* Reads a list of options; "1" or "" stands for the defaults. NULL: forgets them. On failure they
   are forgotten, too, since the program's allocator may be another one at the next start. */
static ds_result ds__race_configure(const char *list) {
    char option[DS__LAYER_OPTIONS];
    ds__race_options_init();
    while (list && *list) {
        size_t n = strcspn(list, ",");
        memcpy(option, list, n);
        option[n] = 0;
        list += n + (list[n] == ',');
        if (!n || strcmp(option, "1") == 0)
            continue;
        ds_result r = ds__race_option(option);
        if (r < 0) {
            ds__race_options_init();
            return r;
        }
    }
    return DS_OK;
}

#endif
