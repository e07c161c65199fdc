/* os/linux_machine.h - the machine and the process, as Linux shows them.

   Reads the memory, the name of the processor, its largest cache, the processors and the nodes of
   memory from system calls and from files in /proc and /sys, and gets and sets the affinity mask of
   the calling thread.

   Invariants: a process with more rights than its caller takes nothing from the environment
   (ds__os_environment). A node's file is /sys/devices/system/node/nodeN/cpulist, with the
   processors as numbers and ranges ("Documentation/ABI/stable/sysfs-devices-node" of the kernel).
   Locks: none.
   Threads: any; no function keeps state of its own. The affinity mask is that of the calling
   thread. The environment must not change at the same time (getenv). */
#ifndef DS__OS_LINUX_MACHINE_H
#define DS__OS_LINUX_MACHINE_H

#include "affinity_mask.h"
#include "cgroup.h"
#include "linux.h"

#include <sys/auxv.h>

/* Reads the first line of a file without its end. Returns 0, and "" as the line, if there is no
   such file. */
static int ds__os_first_line(const char *path, char *out, size_t size) {
    FILE *file = fopen(path, "re");
    *out = 0;
    if (file && !fgets(out, (int)size, file))
        *out = 0;
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = 0;
    return file != NULL;
}

/* Returns the bytes of memory that this process may use: the machine's, or fewer by its control
   groups. */
DS__SEAM static size_t ds__os_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    size_t all = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : (size_t)1 << 30;
    uint64_t limit = ds__cgroup_limits("").memory;
    return all > limit ? (size_t)limit : all;
}

/* Writes the system's name of the processor. Returns 0 if there is none, as on many systems with
   aarch64. */
DS__SEAM static int ds__os_processor_name(char *out, size_t size) {
    char line[256];
    int found = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon || !colon[1])
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, size, "%s", colon + 2);
        found = 1;
    }
    if (f)
        fclose(f);
    return found;
}

/* Reads the mask of the calling thread. If the system refuses, the mask has processor 0 only. */
DS__SEAM static void ds__os_affinity_get(ds__os_affinity *out) {
    memset(out, 0, sizeof *out);
    if (syscall(SYS_sched_getaffinity, 0, sizeof out->word, out->word) <= 0)
        ds__os_affinity_add(out, 0);
}

/* Binds the calling thread to the processors. Returns 0, or the system's error number if it may use
   none of them. */
DS__SEAM static int ds__os_affinity_set(const ds__os_affinity *mask) {
    return syscall(SYS_sched_setaffinity, 0, sizeof mask->word, mask->word) ? errno : 0;
}

/* Returns the number of processors that this process may use, by the calling thread's affinity mask
   and by the quota of its control groups. */
DS__SEAM static int ds__os_processors(void) {
    ds__os_affinity mask;
    ds__os_affinity_get(&mask);
    int n = ds__os_affinity_count(&mask);
    uint64_t quota = ds__cgroup_limits("").processors;
    if ((uint64_t)n > quota)
        n = (int)quota;
    return n > 0 ? n : 1;
}

/* Returns the bytes of a size in the form of /sys, as "1024K"; 0: not such a text. */
DS__SEAM static size_t ds__os_cache_parse(const char *text) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*end == 'K')
        return (size_t)n << 10;
    return *end == 'M' ? (size_t)n << 20 : 0;
}

/* Returns the size of the largest cache of the first processor; 0: /sys does not show any. */
DS__SEAM static size_t ds__os_cache_read(void) {
    size_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[64];
        char line[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!ds__os_first_line(path, line, sizeof line))
            break;
        size_t n = ds__os_cache_parse(line);
        most = n > most ? n : most;
    }
    return most;
}

/* Reads a list of processors such as "0-3,8", as far as it is one. */
static void ds__os_cpulist_read(const char *text, ds__os_affinity *out) {
    memset(out, 0, sizeof *out);
    while (*text >= '0' && *text <= '9') {
        char *end;
        unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < DS__OS_PROCESSORS; i++)
            ds__os_affinity_add(out, (unsigned)i);
        text = *end == ',' ? end + 1 : end;
    }
}

/* Reads the processors of a node. Returns 0 if there is no node of this number. root: "" for the
   machine; tests pass the root of a tree of files. */
DS__SEAM static int ds__os_node_read(const char *root, int node, ds__os_affinity *out) {
    char path[256];
    char text[4096];
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node);
    int found = ds__os_first_line(path, text, sizeof text);
    ds__os_cpulist_read(text, out);
    return found;
}

/* Returns 1 if the system's clock is the processor's: the system has found it to run evenly and to
   be the same on all processors. That of aarch64 is by its architecture. */
DS__SEAM static int ds__os_ticks_are_time(void) {
#if defined(__x86_64__)
    char name[32];
    return ds__os_first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                             name, sizeof name) &&
           strcmp(name, "tsc") == 0;
#else
    return 1;
#endif
}

/* Writes the name of the program into a buffer, as far as the system tells it. */
DS__SEAM static void ds__os_program_name(char *out, size_t size) {
    (void)ds__os_first_line("/proc/self/comm", out, size);
}

/* Writes the name of the machine; "" if the system does not tell it. */
DS__SEAM static void ds__os_host_name(char *out, size_t size) {
    (void)ds__os_first_line("/proc/sys/kernel/hostname", out, size);
}

/* Returns a variable of the environment that must not come from a caller with fewer rights. NULL:
   it is not set or empty, or the program has more rights than its caller (setuid). */
DS__SEAM static const char *ds__os_environment(const char *name) {
    const char *text = getauxval(23 /* AT_SECURE */) ? NULL : getenv(name);
    return text && *text ? text : NULL;
}

#endif
