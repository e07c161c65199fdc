/* os/posix_file.h - files of POSIX systems.

   Looks for files (ds__os_any, ds__os_last_match), holds locks of bytes (ds__os_hold_byte), and
   creates a file of a fixed size as shared memory (ds__os_file_map). The system writes the contents
   to the file, even if the process is killed at any moment.

   Invariants: the file is new: a process that has an older file of this name mapped keeps that one.
   All blocks of the file are allocated, so an access to the mapping cannot fail for lack of space.
   Locks: none inside the process. A lock of a byte belongs to an open file and is requested without
   waiting.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_POSIX_FILE_H
#define DS__OS_POSIX_FILE_H

#include "posix.h"

#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>

/* Declaration that strict -std=c11 hides. */
extern int lstat(const char *path, struct stat *out);

/* Returns 1 if is_fn returns 1 for a name in the folder. */
DS__SEAM static int ds__os_any(const char *path, int (*is_fn)(const char *name)) {
    DIR *folder = opendir(path);
    int is = 0;
    for (struct dirent *one; folder && !is && (one = readdir(folder)) != NULL;)
        is = is_fn(one->d_name);
    if (folder)
        closedir(folder);
    return is;
}

/* Gives the last file, in the order of names, that matches a pattern of glob(). Returns 0 if there
   is none, or if its path is too long. */
DS__SEAM static int ds__os_last_match(const char *pattern, char *out, size_t size) {
    glob_t found;
    int is = 0;
    if (glob(pattern, 0, NULL, &found) != 0)
        return 0;
    if (found.gl_pathc > 0) {
        int n = snprintf(out, size, "%s", found.gl_pathv[found.gl_pathc - 1]);
        is = n > 0 && (size_t)n < size;
    }
    globfree(&found);
    return is;
}

/* Takes the lock of a byte for the open file, or finds out whether another one has it. The kernel
   ends the lock when the file is closed, at the latest when the process ends. */
static int ds__os_lock_byte(int fd, uint64_t byte, int command) {
    struct flock f;
    memset(&f, 0, sizeof f);
    f.l_type = F_WRLCK;
    f.l_whence = SEEK_SET;
    f.l_start = (off_t)byte;
    f.l_len = 1;
    if (fcntl(fd, command, &f))
        return -1;
    return f.l_type != F_UNLCK;
}

/* Takes the lock of a byte of the memory with this cookie. Returns a number for
   ds__os_release_byte, or -1 with errno. */
DS__SEAM static int ds__os_hold_byte(int fd, uint64_t cookie, uint64_t byte) {
    (void)cookie;
    return ds__os_lock_byte(fd, byte, DS__F_OFD_SETLK) >= 0 ? 0 : -1;
}

/* Gives up what ds__os_hold_byte returned, before the memory is closed. The lock ends when the file
   is closed. */
DS__SEAM static void ds__os_release_byte(int held) {
    (void)held;
}

/* Returns 1 if another process holds the lock of the byte. */
DS__SEAM static int ds__os_byte_held(int fd, uint64_t cookie, uint64_t byte) {
    (void)cookie;
    return ds__os_lock_byte(fd, byte, DS__F_OFD_GETLK) != 0;
}

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
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | DS__O_CLOEXEC, 0644);
    if (fd < 0)
        return NULL;

    void *at = MAP_FAILED;
    if (ds__os_write_zeros(fd, size))
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | DS__MAP_POPULATE, fd, 0);
    int error = errno;
    close(fd);
    if (at != MAP_FAILED)
        return at;
    unlink(path);
    errno = error;
    return NULL;
}

#endif
