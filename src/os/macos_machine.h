/* os/macos_machine.h - the machine and the process, as macOS shows them.

   Reads the memory, the name of the processor, its largest cache and the number of processors by
   sysctl, and the names of the program and the machine.

   Invariants: macOS binds no thread to processors, and shows no nodes of memory. The affinity mask
   has all processors, and setting it fails. A process with more rights than its caller takes
   nothing from the environment (ds__os_environment).
   Locks: none.
   Threads: any; no function keeps state of its own. The environment must not change at the same
   time (getenv). */
#ifndef DS__OS_MACOS_MACHINE_H
#define DS__OS_MACOS_MACHINE_H

#include "affinity_mask.h"
#include "macos.h"

/* Declarations that a program hides by _POSIX_C_SOURCE. */
extern int sysctlbyname(const char *name, void *out, size_t *size, void *fresh, size_t fresh_size);
extern const char *getprogname(void);
extern int issetugid(void);

/* Returns a number of sysctl, of 4 or 8 bytes; 0: the system does not have it. */
static uint64_t ds__os_sysctl(const char *name) {
    uint64_t number = 0;
    uint32_t small = 0;
    size_t size = sizeof number;
    if (sysctlbyname(name, &number, &size, NULL, 0))
        return 0;
    if (size == sizeof number)
        return number;
    memcpy(&small, &number, sizeof small);
    return size == sizeof small ? small : 0;
}

/* Writes a text of sysctl; returns 0 if the system does not have it. */
static int ds__os_sysctl_text(const char *name, char *out, size_t size) {
    char text[256];
    size_t n = sizeof text - 1;
    *out = 0;
    if (sysctlbyname(name, text, &n, NULL, 0))
        return 0;
    text[n] = 0;
    snprintf(out, size, "%s", text);
    return *out != 0;
}

/* Returns the bytes of memory of the machine. */
DS__SEAM static size_t ds__os_memory(void) {
    uint64_t n = ds__os_sysctl("hw.memsize");
    return n ? (size_t)n : (size_t)1 << 30;
}

/* Writes the system's name of the processor. Returns 0 if there is none. */
DS__SEAM static int ds__os_processor_name(char *out, size_t size) {
    return ds__os_sysctl_text("machdep.cpu.brand_string", out, size);
}

/* Returns the number of processors that this process may use. */
DS__SEAM static int ds__os_processors(void) {
    uint64_t n = ds__os_sysctl("hw.logicalcpu");
    return n && n <= DS__OS_PROCESSORS ? (int)n : 1;
}

DS__SEAM static void ds__os_affinity_get(ds__os_affinity *out) {
    int n = ds__os_processors();
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++)
        ds__os_affinity_add(out, (unsigned)i);
}

DS__SEAM static int ds__os_affinity_set(const ds__os_affinity *mask) {
    (void)mask;
    return ENOTSUP;
}

/* Returns the size of the largest cache of a processor; 0: the system does not tell it. Processors
   of several kinds have one of their own each, and that of the fastest counts. */
DS__SEAM static size_t ds__os_cache_read(void) {
    static const char *const names[] = { "hw.l3cachesize", "hw.perflevel0.l2cachesize",
                                         "hw.l2cachesize" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uint64_t n = ds__os_sysctl(names[i]);
        if (n)
            return (size_t)n;
    }
    return 0;
}

/* Reads the processors of a node. Returns 0: there is no node of this number. */
DS__SEAM static int ds__os_node_read(const char *root, int node, ds__os_affinity *out) {
    (void)root;
    (void)node;
    memset(out, 0, sizeof *out);
    return 0;
}

/* Returns 1 if the system's clock is the processor's. macOS derives its monotonic clock from it on
   both processors. */
DS__SEAM static int ds__os_ticks_are_time(void) {
    return 1;
}

/* Writes the name of the program into a buffer. */
DS__SEAM static void ds__os_program_name(char *out, size_t size) {
    const char *name = getprogname();
    snprintf(out, size, "%s", name ? name : "");
}

/* Writes the name of the machine; "" if the system does not tell it. */
DS__SEAM static void ds__os_host_name(char *out, size_t size) {
    (void)ds__os_sysctl_text("kern.hostname", out, size);
}

/* Returns a variable of the environment that must not come from a caller with fewer rights. NULL:
   it is not set or empty, or the program has more rights than its caller (setuid). */
DS__SEAM static const char *ds__os_environment(const char *name) {
    const char *text = issetugid() ? NULL : getenv(name);
    return text && *text ? text : NULL;
}

#endif
