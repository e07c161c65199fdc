/* os/file_map.h - a file as shared memory, and the name of the machine.

   Creates a file of a fixed size and maps it (ds__os_file_map). The system writes the contents to
   the file, even if the process is killed at any moment.

   Invariants: the file is new: a process that has an older file of this name mapped keeps that one.
   All blocks of the file are allocated, so an access to the mapping cannot fail for lack of space.
   Locks: none.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_FILE_MAP_H
#define DS__OS_FILE_MAP_H

#include "linux.h"

#include <sys/stat.h>

/* Declaration that strict -std=c11 hides. */
extern int lstat(const char *path, struct stat *out);

/* Writes `size` zeros. Returns 0 after a failure; errno has it. */
static int ds__os_write_zeros(int fd, size_t size) {
    static const char zeros[1 << 16];
    while (size) {
        ssize_t n = write(fd, zeros, size < sizeof zeros ? size : sizeof zeros);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        size -= (size_t)n;
    }
    return 1;
}

/* Creates a file of zeros and maps it. A regular file of this name is replaced; anything else is
   left alone, for instance a device. Returns NULL after a failure, and errno has it. */
DS__SEAM static void *ds__os_file_map(const char *path, size_t size) {
    struct stat info;
    if (lstat(path, &info) == 0) {
        if (!S_ISREG(info.st_mode)) {
            errno = EEXIST;
            return NULL;
        }
        if (unlink(path))
            return NULL;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | 0x80000 /* O_CLOEXEC */, 0644);
    if (fd < 0)
        return NULL;

    void *at = MAP_FAILED;
    if (ds__os_write_zeros(fd, size))
        at =
            mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | 0x8000 /* MAP_POPULATE */, fd, 0);
    int error = errno;
    close(fd);
    if (at != MAP_FAILED)
        return at;
    unlink(path);
    errno = error;
    return NULL;
}

/* Writes the name of the machine; "" if the system does not tell it. */
DS__SEAM static void ds__os_host_name(char *out, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/hostname", "re");
    *out = 0;
    if (file && !fgets(out, (int)size, file))
        *out = 0;
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = 0;
}

#endif
