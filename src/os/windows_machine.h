/* os/windows_machine.h - the machine and the process, as Windows shows them.

   Reads the memory, the name of the processor, its largest cache, the processors and the nodes of
   memory, and gets and sets the affinity mask of the calling thread. linux_machine.h has the
   contract.

   Policy: Windows puts processors into groups of at most 64. The functions see the group of the
   calling thread, which is all of the machine on most of them. A new thread has the mask of the
   process, and not that of the thread that starts it.

   Invariants: the quotas of job objects are not read.
   Locks: none.
   Threads: any; no function keeps state of its own. The environment must not change at the same
   time (getenv). */
#ifndef DS__OS_WINDOWS_MACHINE_H
#define DS__OS_WINDOWS_MACHINE_H

#include "affinity_mask.h"
#include "windows.h"

#include <cpuid.h>

DS__SEAM static size_t ds__os_memory(void) {
    ds__win_memory memory;
    memset(&memory, 0, sizeof memory);
    memory.size = sizeof memory;
    if (!GlobalMemoryStatusEx((struct _MEMORYSTATUSEX *)(void *)&memory))
        return (size_t)1 << 30;
    return (size_t)memory.physical;
}

DS__SEAM static int ds__os_processor_name(char *out, size_t size) {
    unsigned word[13] = { 0 };
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, word + 4 * i, word + 4 * i + 1, word + 4 * i + 2,
                         word + 4 * i + 3))
            return 0;
    const char *name = (const char *)word;
    snprintf(out, size, "%s", name + strspn(name, " "));
    size_t n = strlen(out);
    while (n && out[n - 1] == ' ')
        out[--n] = 0;
    return n > 0;
}

DS__SEAM static void ds__os_affinity_get(ds__os_affinity *out) {
    ds__win_affinity mask;
    memset(out, 0, sizeof *out);
    memset(&mask, 0, sizeof mask);
    GetThreadGroupAffinity(GetCurrentThread(), (struct _GROUP_AFFINITY *)(void *)&mask);
    out->word[0] = mask.mask ? mask.mask : 1;
}

DS__SEAM static int ds__os_affinity_set(const ds__os_affinity *mask) {
    unsigned long long process = 0;
    unsigned long long all = 0;
    GetProcessAffinityMask(GetCurrentProcess(), &process, &all);
    /* Linux leaves out processors that the thread may not use */
    uint64_t wanted = mask->word[0] & (process ? process : ~0ull);
    return wanted && SetThreadAffinityMask(GetCurrentThread(), wanted) ? 0 : EINVAL;
}

DS__SEAM static int ds__os_processors(void) {
    ds__os_affinity mask;
    ds__os_affinity_get(&mask);
    return ds__os_affinity_count(&mask);
}

DS__SEAM static size_t ds__os_cache_read(void) {
    size_t most = 0;
    unsigned long size = 0;
    GetLogicalProcessorInformation(NULL, &size);
    ds__win_processor *list = malloc(size ? size : 1);
    if (!list || !GetLogicalProcessorInformation(
                     (struct _SYSTEM_LOGICAL_PROCESSOR_INFORMATION *)(void *)list, &size))
        size = 0;
    for (size_t i = 0; i < size / sizeof *list; i++)
        if (list[i].relationship == 2 && list[i].bytes > most)
            most = list[i].bytes;
    free(list);
    return most;
}

/* root is not used. */
DS__SEAM static int ds__os_node_read(const char *root, int node, ds__os_affinity *out) {
    unsigned long last = 0;
    unsigned long long mask = 0;
    (void)root;
    memset(out, 0, sizeof *out);
    if (!GetNumaHighestNodeNumber(&last) || (unsigned long)node > last || node > 63 ||
        !GetNumaNodeProcessorMask((unsigned char)node, &mask))
        return 0;
    out->word[0] = mask;
    return 1;
}

/* Windows does not tell whether its counter is the processor's. */
DS__SEAM static int ds__os_ticks_are_time(void) {
    return 0;
}

DS__SEAM static void ds__os_program_name(char *out, size_t size) {
    char path[1024];
    unsigned long n = GetModuleFileNameA(NULL, path, sizeof path);
    const char *name = path;
    if (n >= sizeof path)
        n = 0;
    path[n] = 0;
    for (const char *p = path; *p; p++)
        if (*p == '\\' || *p == '/')
            name = p + 1;
    snprintf(out, size, "%s", name);
}

DS__SEAM static void ds__os_host_name(char *out, size_t size) {
    char name[256];
    unsigned long n = sizeof name;
    snprintf(out, size, "%s", GetComputerNameA(name, &n) ? name : "");
}

DS__SEAM static const char *ds__os_environment(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

#endif
