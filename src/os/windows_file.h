/* os/windows_file.h - files of Windows.

   Looks for files (ds__os_any, ds__os_last_match) and creates a file of a fixed size as shared
   memory (ds__os_file_map). posix_file.h has the contract.

   Invariants: as for POSIX. A pattern may have wildcards in the last part of its path only. There
   are no symbolic links (ds__os_link).
   Locks: none.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_WINDOWS_FILE_H
#define DS__OS_WINDOWS_FILE_H

#include "windows.h"

enum { DS__WIN_PATH = 1024 };

DS__SEAM static int ds__os_link(const char *path, char *out, size_t size) {
    (void)path;
    (void)out;
    (void)size;
    return 0;
}

/* Begins a search. NULL: nothing matches. */
static void *ds__win_search(const char *pattern, ds__win_found *out) {
    void *search = FindFirstFileA(pattern, (struct _WIN32_FIND_DATAA *)(void *)out);
    return search == (void *)(intptr_t)-1 ? NULL : search;
}

static int ds__win_search_next(void *search, ds__win_found *out) {
    return FindNextFileA(search, (struct _WIN32_FIND_DATAA *)(void *)out);
}

DS__SEAM static int ds__os_any(const char *path, int (*is_fn)(const char *name)) {
    char pattern[DS__WIN_PATH];
    ds__win_found one;
    int is = 0;
    int n = snprintf(pattern, sizeof pattern, "%s/*", path);
    void *search = n > 0 && n < DS__WIN_PATH ? ds__win_search(pattern, &one) : NULL;
    if (!search)
        return 0;
    do
        is = is_fn(one.name);
    while (!is && ds__win_search_next(search, &one));
    FindClose(search);
    return is;
}

/* Returns the length of the folder of a path, with its separator. */
static size_t ds__win_folder(const char *path) {
    size_t n = strlen(path);
    while (n && path[n - 1] != '/' && path[n - 1] != '\\')
        n--;
    return n;
}

DS__SEAM static int ds__os_last_match(const char *pattern, char *out, size_t size) {
    ds__win_found one;
    char last[sizeof one.name] = "";
    void *search = ds__win_search(pattern, &one);
    if (!search)
        return 0;
    do
        if (strcmp(one.name, last) > 0)
            memcpy(last, one.name, sizeof last);
    while (ds__win_search_next(search, &one));
    FindClose(search);
    int n = snprintf(out, size, "%.*s%s", (int)ds__win_folder(pattern), pattern, last);
    return n > 0 && (size_t)n < size;
}

/* Maps an open file with the size. NULL: failed, with errno. */
static void *ds__win_file_map(void *file, size_t size) {
    if (GetFileType(file) != 1 /* a file on a disk */) {
        errno = EEXIST;
        return NULL;
    }
    void *mapping =
        CreateFileMappingA(file, NULL, DS__WIN_READ_WRITE, (unsigned long)((uint64_t)size >> 32),
                           (unsigned long)(size & 0xffffffffu), NULL);
    void *at = mapping ? MapViewOfFile(mapping, DS__WIN_MAP_READ_WRITE, 0, 0, size) : NULL;
    if (!at)
        ds__win_set_errno();
    if (mapping)
        CloseHandle(mapping);
    return at;
}

DS__SEAM static void *ds__os_file_map(const char *path, size_t size) {
    const unsigned long share = 7; /* read, write, delete */
    unsigned long attributes = GetFileAttributesA(path);
    if (attributes != (unsigned long)-1) {
        if (attributes & 0x50 /* a folder or a device */) {
            errno = EEXIST;
            return NULL;
        }
        DeleteFileA(path);
    }
    void *file = CreateFileA(path, 0xc0000000 /* read and write */, share, NULL, 1 /* a new one */,
                             0x80, NULL);
    if (file == (void *)(intptr_t)-1) {
        ds__win_set_errno();
        return NULL;
    }
    void *at = ds__win_file_map(file, size);
    int error = errno;
    CloseHandle(file);
    if (!at)
        DeleteFileA(path);
    errno = error;
    return at;
}

#endif
