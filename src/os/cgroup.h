/* os/cgroup.h - limits of control groups.

   Reads how many processors and how much memory the control groups of this process allow
   (ds__cgroup_limits). linux.h has the limits of the machine and of the affinity mask, and takes
   the smaller ones.

   Policy:
   1. /proc/self/cgroup has the process's group in each hierarchy, and /proc/self/mountinfo where a
      hierarchy is mounted and which group is on top there. In a container that is often the
      container's own group.
   2. A group has the limits of the groups above it too. So the smallest limit on the path from the
      process's group to the top counts.
   3. Version 2 has cpu.max and memory.max. Version 1 has cpu.cfs_quota_us with cpu.cfs_period_us,
      and memory.limit_in_bytes. A machine may have both.

   Invariants: a file that is missing or unreadable is no limit. A limit of processors is rounded
   up, so it is at least 1. Paths longer than DS__CGROUP_PATH and paths with escaped characters
   are not followed.
   Locks: none.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_CGROUP_H
#define DS__OS_CGROUP_H

#include "../api/base.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DS__CGROUP_PATH = 1024 };

typedef struct ds__cgroup_limit {
    uint64_t processors; /* UINT64_MAX: no limit */
    uint64_t memory;     /* bytes; UINT64_MAX: no limit */
} ds__cgroup_limit;

/* Reads a line and drops the part that does not fit. Returns 0 at the end of the file. */
static int ds__cgroup_line(FILE *f, char *line, int size) {
    if (!fgets(line, size, f))
        return 0;
    size_t n = strlen(line);
    if (n && line[n - 1] == '\n')
        line[n - 1] = 0;
    else
        for (int c = 0; c != '\n' && c != EOF;)
            c = fgetc(f);
    return 1;
}

/* Returns 1 if the name is in a list with commas. */
static int ds__cgroup_lists(const char *list, const char *name) {
    size_t n = strlen(name);
    for (;;) {
        size_t one = strcspn(list, ",");
        if (one == n && strncmp(list, name, n) == 0)
            return 1;
        if (!list[one])
            return 0;
        list += one + 1;
    }
}

/* Finds the process's group in the hierarchy of a controller of version 1, or in that of version 2
   (""), as a path from the top of the hierarchy. Returns 0 if there is none. */
static int ds__cgroup_of_process(const char *root, const char *controller, char *out) {
    char line[DS__CGROUP_PATH];
    int found = 0;
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f && !found && ds__cgroup_line(f, line, sizeof line)) {
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        found = *controller ? ds__cgroup_lists(list + 1, controller) : !list[1];
        if (found)
            memcpy(out, path, strlen(path) + 1);
    }
    if (f)
        fclose(f);
    return found;
}

/* Reads one or two numbers from a file. The first one is UINT64_MAX if there is no limit. */
static void ds__cgroup_numbers(const char *folder, const char *name, uint64_t out[2]) {
    char text[2 * DS__CGROUP_PATH];
    char *end = text;
    out[0] = UINT64_MAX;
    out[1] = 0;
    int n = snprintf(text, sizeof text, "%s/%s", folder, name);
    FILE *f = n > 0 && (size_t)n < sizeof text ? fopen(text, "re") : NULL;
    if (f && ds__cgroup_line(f, text, 64) && *text >= '0' && *text <= '9') {
        out[0] = strtoull(text, &end, 10);
        out[1] = strtoull(end, NULL, 10);
    }
    if (f)
        fclose(f);
}

/* Lowers *limit to the limits of one group. */
static void ds__cgroup_look(const char *folder, int version, ds__cgroup_limit *limit) {
    uint64_t cpu[2];
    uint64_t memory[2];
    uint64_t period[2];
    ds__cgroup_numbers(folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us", cpu);
    ds__cgroup_numbers(folder, version == 2 ? "memory.max" : "memory.limit_in_bytes", memory);
    if (version == 1) {
        ds__cgroup_numbers(folder, "cpu.cfs_period_us", period);
        cpu[1] = period[0] == UINT64_MAX ? 0 : period[0];
    }
    if (cpu[0] != UINT64_MAX && cpu[1]) {
        uint64_t processors = cpu[0] / cpu[1] + (cpu[0] % cpu[1] != 0);
        if (processors && processors < limit->processors)
            limit->processors = processors;
    }
    if (memory[0] && memory[0] < limit->memory)
        limit->memory = memory[0];
}

/* Lowers *limit to the limits of a group and of all groups above it. `top` is the group at the
   mount point. */
static void ds__cgroup_climb(const char *root, const char *point, const char *top,
                             const char *group, int version, ds__cgroup_limit *limit) {
    char folder[2 * DS__CGROUP_PATH];
    size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
    if (strncmp(group, top, n) == 0 && (group[n] == '/' || !group[n]))
        group += n;
    else
        group = ""; /* the process's own group is not visible here */
    int base = snprintf(folder, sizeof folder, "%s%s", root, point);
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, point, group);
    if (base < 0 || length < 0 || (size_t)length >= sizeof folder)
        return;
    ds__cgroup_look(folder, version, limit);
    while (length > base) {
        if (folder[--length] != '/')
            continue;
        folder[length] = 0;
        ds__cgroup_look(folder, version, limit);
    }
}

/* Returns the smallest limits of all groups of the process. `root` is a prefix of the paths of all
   files, "" except in tests. */
static ds__cgroup_limit ds__cgroup_limits(const char *root) {
    static const char *const controllers[] = { "cpu", "memory" };
    ds__cgroup_limit limit = { UINT64_MAX, UINT64_MAX };
    char line[4 * DS__CGROUP_PATH];
    char top[DS__CGROUP_PATH];
    char point[DS__CGROUP_PATH];
    char group[DS__CGROUP_PATH];
    char type[32];
    char options[256];
    snprintf(line, sizeof line, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(line, "re");
    while (f && ds__cgroup_line(f, line, sizeof line)) {
        /* 36 35 98:0 /top /point options [fields] - type source options */
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %1023s %1023s", top, point) != 2 ||
            sscanf(rest, " - %31s %*s %255s", type, options) != 2)
            continue;
        if (strcmp(type, "cgroup2") == 0 && ds__cgroup_of_process(root, "", group))
            ds__cgroup_climb(root, point, top, group, 2, &limit);
        for (int i = 0; i < 2 && strcmp(type, "cgroup") == 0; i++)
            if (ds__cgroup_lists(options, controllers[i]) &&
                ds__cgroup_of_process(root, controllers[i], group))
                ds__cgroup_climb(root, point, top, group, 1, &limit);
    }
    if (f)
        fclose(f);
    return limit;
}

#endif
