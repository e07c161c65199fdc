/* os/macos_share.h - shared memory of several processes on macOS.

   Provides the functions of linux_share.h: shared memory that other processes open (ds__os_memfd),
   waits between processes, and random numbers that identify memory (ds__os_cookie).

   Policy:
   1. The memory is an object of shm_open with the cookie in its name. Such an object cannot be
      locked, and others cannot find it by a file descriptor. So there is a file beside it, in the
      user's folder for temporary files, with the cookie in its name too. The file descriptors of
      this room are of that file.
   2. The file names the process, and has the byte locks. One of them, DS__OS_SHARE_OWNER, belongs
      to the process that created the memory. If nobody holds that lock, the process has ended.
   3. ds__os_close removes both names if the calling process created the memory. If a process ends
      without that, the next process that creates memory removes them (ds__os_share_sweep).

   Invariants: an object never changes its size, because macOS allows ftruncate only once.
   ds__os_memfd_open opens only an object with the given cookie and size of the same user. Both
   report the cause of a failure in errno.
   Locks: none inside the process; posix_file.h has the locks of bytes.
   Threads: any. */
#ifndef DS__OS_MACOS_SHARE_H
#define DS__OS_MACOS_SHARE_H

#include "macos.h"

/* Declarations that a program hides by _POSIX_C_SOURCE. */
extern void arc4random_buf(void *out, size_t size);
extern int minherit(void *at, size_t size, int inheritance);

#define DS__OS_SHARE_FOLDER 1024
#define DS__OS_SHARE_OWNER ((uint64_t)1 << 62)
#define DS__OS_SHARE_OLD_S 60 /* a younger file may still be without its lock */

/* The content of the file. */
typedef struct ds__os_share {
    uint64_t cookie;
    uint64_t size;
    int32_t pid;
    int32_t fd; /* in that process */
} ds__os_share;

/* Names of an object: at most 31 characters for shm_open. */
typedef struct ds__os_share_names {
    char memory[32];
    char file[DS__OS_SHARE_FOLDER + 48];
} ds__os_share_names;

/* Writes the user's folder for temporary files, with a slash at its end. */
static void ds__os_share_folder(char *out) {
    size_t n = confstr(65537 /* _CS_DARWIN_USER_TEMP_DIR */, out, DS__OS_SHARE_FOLDER);
    if (n == 0 || n > DS__OS_SHARE_FOLDER)
        strcpy(out, "/tmp/");
}

static void ds__os_share_name(uint64_t cookie, ds__os_share_names *out) {
    char folder[DS__OS_SHARE_FOLDER];
    ds__os_share_folder(folder);
    snprintf(out->memory, sizeof out->memory, "/devstream-%016llx", (unsigned long long)cookie);
    snprintf(out->file, sizeof out->file, "%s%s.lock", folder, out->memory + 1);
}

static int ds__os_share_read(int fd, ds__os_share *out) {
    return pread(fd, out, sizeof *out, 0) == (ssize_t)sizeof *out;
}

static void ds__os_share_remove(uint64_t cookie) {
    ds__os_share_names names;
    ds__os_share_name(cookie, &names);
    shm_unlink(names.memory);
    unlink(names.file);
}

/* Removes the names of an object whose process has ended. Called for each name in the folder;
   returns 0, so that the next one is looked at. */
static int ds__os_share_sweep_one(const char *name) {
    unsigned long long cookie;
    ds__os_share_names names;
    struct stat info;
    if (sscanf(name, "devstream-%16llx.lock", &cookie) != 1)
        return 0;
    ds__os_share_name(cookie, &names);
    int fd = open(names.file, O_RDWR | DS__O_CLOEXEC | DS__O_NOFOLLOW);
    if (fd < 0)
        return 0;
    if (fstat(fd, &info) == 0 && time(NULL) - info.st_mtime > DS__OS_SHARE_OLD_S &&
        ds__os_lock_byte(fd, DS__OS_SHARE_OWNER, DS__F_OFD_GETLK) == 0)
        ds__os_share_remove(cookie);
    close(fd);
    return 0;
}

static void ds__os_share_sweep(void) {
    char folder[DS__OS_SHARE_FOLDER];
    ds__os_share_folder(folder);
    (void)ds__os_any(folder, ds__os_share_sweep_one);
}

/* Creates memory that other processes can open by its cookie. Its size is fixed, and no pages are
   allocated yet. Returns -1 if the system refuses (errno). */
DS__SEAM static int ds__os_memfd(size_t size, uint64_t cookie) {
    static pthread_once_t swept = PTHREAD_ONCE_INIT;
    ds__os_share_names names;
    pthread_once(&swept, ds__os_share_sweep);
    ds__os_share_name(cookie, &names);
    int fd = open(names.file, O_RDWR | O_CREAT | O_EXCL | DS__O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;

    ds__os_share share = { cookie, size, (int32_t)getpid(), fd };
    int memory = -1;
    int made = 0;
    if (ds__os_hold_byte(fd, cookie, DS__OS_SHARE_OWNER) >= 0)
        memory = shm_open(names.memory, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (memory >= 0)
        made = !ftruncate(memory, (off_t)size) &&
               pwrite(fd, &share, sizeof share, 0) == (ssize_t)sizeof share;
    int error = errno;
    if (memory >= 0)
        close(memory);
    if (made)
        return fd;
    ds__os_share_remove(cookie);
    close(fd);
    errno = error;
    return -1;
}

/* Opens the memory of another process. Returns -1 with errno; ENOENT: the process has ended or has
   closed the memory. */
DS__SEAM static int ds__os_memfd_open(int pid, int fd, uint64_t cookie, size_t size) {
    ds__os_share_names names;
    ds__os_share share;
    struct stat info;
    ds__os_share_name(cookie, &names);
    int got = open(names.file, O_RDWR | DS__O_CLOEXEC | DS__O_NOFOLLOW);
    if (got < 0)
        return -1;
    if (fstat(got, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
        ds__os_share_read(got, &share) && share.cookie == cookie && share.size == size &&
        share.pid == pid && share.fd == fd && ds__os_byte_held(got, cookie, DS__OS_SHARE_OWNER))
        return got;
    close(got);
    errno = ENOENT;
    return -1;
}

/* Closes the file. The names of the memory end if this process created it; a forked child has
   another number. */
DS__SEAM static void ds__os_close(int fd) {
    ds__os_share share;
    if (ds__os_share_read(fd, &share) && share.pid == (int32_t)getpid())
        ds__os_share_remove(share.cookie);
    close(fd);
}

/* Allocates the pages of these bytes. Pages of such memory are the system's, as those of any other
   memory, and need nothing here. */
DS__SEAM static int ds__os_memfd_reserve(int fd, size_t at, size_t size) {
    (void)fd;
    (void)at;
    (void)size;
    return 1;
}

DS__SEAM static void *ds__os_memfd_map(int fd, size_t size) {
    ds__os_share share;
    ds__os_share_names names;
    if (!ds__os_share_read(fd, &share) || share.size < size)
        return NULL;
    ds__os_share_name(share.cookie, &names);
    int memory = shm_open(names.memory, O_RDWR, 0);
    if (memory < 0)
        return NULL;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    close(memory);
    return at == MAP_FAILED ? NULL : at;
}

/* Keeps the mapping from forked children. */
DS__SEAM static int ds__os_keep_from_child(void *at, size_t size) {
    return minherit(at, size, 2 /* VM_INHERIT_NONE */) == 0;
}

/* Returns a random number that is unlikely to repeat. */
DS__SEAM static uint64_t ds__os_cookie(void) {
    uint64_t n = 0;
    arc4random_buf(&n, sizeof n);
    return n ? n : 1;
}

/* Like ds__futex_wake, between processes. */
DS__SEAM static void ds__futex_wake_shared(_Atomic uint32_t *word) {
    ds__os_wake(word, 1, 1);
}

typedef struct ds__sleep {
    const _Atomic uint32_t *word;
    uint32_t value;
} ds__sleep;

/* Returns an entry for ds__futex_wait_any: a word and the value that it has while the caller
   sleeps. shared: other processes change the word. */
DS__SEAM static ds__sleep ds__sleep_on(_Atomic uint32_t *word, uint32_t value, int shared) {
    (void)shared;
    return (ds__sleep){ word, value };
}

/* Sleeps while all words have these values. There is no wait for several words; it sleeps for half
   a millisecond at most. */
DS__SEAM static void ds__futex_wait_any(ds__sleep *list, unsigned count, uint64_t timeout_ns) {
    for (unsigned i = 0; i < count; i++)
        if (atomic_load(list[i].word) != list[i].value)
            return;
    ds__os_sleep(timeout_ns < 500000 ? timeout_ns : 500000);
}

#endif
