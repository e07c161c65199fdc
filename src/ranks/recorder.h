/* ranks/recorder.h - flight recorder: the operations of a rank in a file.

   Writes each operation of a rank to a file that is mapped as shared memory. The file outlives
   kill -9. tools/devstream-ranks compares the files of all ranks.

   Policy:
   1. The file has a fixed size: a header, notes (groups and failures), and a ring of entries.
   2. An entry that is pending is never overwritten. If the ring is full of pending entries, a new
      operation is not recorded, but counted: the oldest pending ones explain a hang.
   3. A note that has no room is counted.
   4. Two groups with the same path share a recorder, if they have the same rank.

   File, little-endian; tools/devstream-ranks reads these offsets:

       header  0 "DSRANKS" and a zero     8 u32 version       12 u32 bytes of an entry
              16 u32 offset of the notes 20 u32 their bytes   24 u32 offset of the entries
              28 u32 number of entries   32 i32 rank          36 i32 size
              40 u32 process             44 u32 1: closed     48 u64 monotonic time at creation
              56 u64 wall time, in ns    64 host name, 64 B  128 u64 number of the last entry
             136 u64 operations not recorded                 144 u64 bytes of notes that were taken
             152 u64 notes without room
       note    0 u32 kind, 0: not complete 4 u32 bytes         8 u64 group
         group   16 i32 rank             20 i32 size          24 u32 devices
                 28 u32 first device     32 u32 own devices   36 u32 number of world ranks
                 40 engine, 16 B         56 label, 64 B      120 i32 world ranks
         failure 16 i32 result           20 u32 0             24 u64 time       32 text, 384 B
       entry   0 u64 number * 256 + status                     8 u64 group
              16 u64 sequence            24 u64 collective    32 u64 count      40 u64 stream
              48 u64 enqueued, ns        56 u64 started       64 u64 ended
              72 i32 root or peer        76 i32 device        80 u32 line
              84 u8 verb  85 u8 reduction, 255: none  86 u8 flags  87 u8 0
              88 ds_dtype                92 u32 0             96 function, 32 B
             128 source file, 64 B

   Invariants: the first word of an entry and of a note is written last, with release order. An
   entry whose status is DS__RECORDER_WRITING, and a note of kind 0, are not complete. Numbers begin
   at 1; entry n is at (n - 1) modulo the number of entries. Texts end with a zero.
   Locks: ds__recorders.lock for open and close. The other functions take none, make no system call
   and allocate nothing; the caller makes calls for one entry one after the other.
   Threads: any. */
#ifndef DS__RANKS_RECORDER_H
#define DS__RANKS_RECORDER_H

#include "../api/ranks.h"
#include "../base/bookkeeping.h"
#include "../base/error.h"
#include "../os/os.h"

typedef enum ds__recorder_verb {
    DS__RECORDER_INIT = 1,
    DS__RECORDER_SPLIT,
    DS__RECORDER_SHRINK,
    DS__RECORDER_FINALIZE,
    DS__RECORDER_ALL_REDUCE,
    DS__RECORDER_REDUCE,
    DS__RECORDER_BROADCAST,
    DS__RECORDER_ALL_GATHER,
    DS__RECORDER_GATHER,
    DS__RECORDER_REDUCE_SCATTER,
    DS__RECORDER_SCATTER,
    DS__RECORDER_ALL_TO_ALL,
    DS__RECORDER_SEND,
    DS__RECORDER_RECEIVE,
    DS__RECORDER_BARRIER
} ds__recorder_verb;

/* The last three are final. */
typedef enum ds__recorder_status {
    DS__RECORDER_WRITING,
    DS__RECORDER_ENQUEUED,
    DS__RECORDER_STARTED,
    DS__RECORDER_COMPLETE,
    DS__RECORDER_FAILED,
    DS__RECORDER_ABANDONED
} ds__recorder_status;

enum {
    DS__RECORDER_VERSION = 1,
    DS__RECORDER_ENTRIES = 4096, /* a power of two */
    DS__RECORDER_NOTES = 1 << 18,
    DS__RECORDER_TRIES = 64, /* pending entries that a new one passes over */
    DS__RECORDER_NO_REDUCE = 255,
    DS__RECORDER_COUNTS_VARY = 1, /* flag: each rank has a count of its own */
    DS__RECORDER_NOTE_GROUP = 1,
    DS__RECORDER_NOTE_FAILURE = 2
};

/* An operation. An exchange is recorded as one operation per transfer, all with the same sequence
   number. */
typedef struct ds__recorder_call {
    uint64_t group;
    uint64_t sequence;   /* number among all operations of this rank in the group, from 1 */
    uint64_t collective; /* number among those that all ranks call, from 1; 0: not one of these */
    ds__recorder_verb verb;
    unsigned flags;  /* DS__RECORDER_COUNTS_VARY */
    ds_dtype dtype;  /* lanes 0: none */
    int reduce;      /* ds_reduce_op, or DS__RECORDER_NO_REDUCE */
    int root;        /* device of the group: root, or peer of a transfer; -1: none */
    int device;      /* device of the group that sends or receives; else -1 */
    uint64_t count;  /* elements */
    uint64_t stream; /* of the first device */
    const char *fn;  /* function of the program's call */
    ds_site site;
    uint64_t now; /* of ds__now_ns */
} ds__recorder_call;

/* A group that this process has joined. */
typedef struct ds__recorder_group {
    uint64_t group; /* the same on all ranks, and of no other group */
    int rank;
    int size;
    uint32_t devices; /* of the group */
    uint32_t first_device;
    uint32_t own_devices;
    const char *engine;
    const char *label;      /* NULL: none */
    const int *world_ranks; /* of the members, in the first group's numbers; NULL: the same */
} ds__recorder_group;

typedef struct ds__recorder_header {
    char magic[8];
    uint32_t version;
    uint32_t entry_bytes;
    uint32_t notes_at;
    uint32_t notes_bytes;
    uint32_t entries_at;
    uint32_t entry_count;
    int32_t rank;
    int32_t size;
    uint32_t process;
    _Atomic uint32_t closed;
    uint64_t monotonic_ns;
    int64_t wall_ns;
    char host[64];
    _Atomic uint64_t last;
    _Atomic uint64_t not_recorded;
    _Atomic uint64_t notes_taken;
    _Atomic uint64_t notes_lost;
} ds__recorder_header;

typedef struct ds__recorder_note {
    _Atomic uint32_t kind;
    uint32_t bytes;
    uint64_t group;
} ds__recorder_note;

typedef struct ds__recorder_group_note {
    ds__recorder_note note;
    int32_t rank;
    int32_t size;
    uint32_t devices;
    uint32_t first_device;
    uint32_t own_devices;
    uint32_t world_count;
    char engine[16];
    char label[64];
    int32_t world_ranks[];
} ds__recorder_group_note;

typedef struct ds__recorder_failure_note {
    ds__recorder_note note;
    int32_t result;
    uint32_t zero;
    uint64_t time_ns;
    char text[384];
} ds__recorder_failure_note;

typedef struct ds__recorder_entry {
    _Atomic uint64_t word;
    uint64_t group;
    uint64_t sequence;
    uint64_t collective;
    uint64_t count;
    uint64_t stream;
    uint64_t enqueued_ns;
    uint64_t started_ns;
    uint64_t ended_ns;
    int32_t root;
    int32_t device;
    uint32_t line;
    uint8_t verb;
    uint8_t reduce;
    uint8_t flags;
    uint8_t zero;
    ds_dtype dtype;
    uint32_t zero_word;
    char fn[32];
    char file[64];
} ds__recorder_entry;

/* tools/devstream-ranks reads these offsets: a change needs another version. */
_Static_assert(offsetof(ds__recorder_header, monotonic_ns) == 48, "layout of the file");
_Static_assert(offsetof(ds__recorder_header, last) == 128, "layout of the file");
_Static_assert(sizeof(ds__recorder_header) == 160, "layout of the file");
_Static_assert(offsetof(ds__recorder_group_note, world_ranks) == 120, "layout of the file");
_Static_assert(sizeof(ds__recorder_failure_note) == 416, "layout of the file");
_Static_assert(offsetof(ds__recorder_entry, root) == 72, "layout of the file");
_Static_assert(offsetof(ds__recorder_entry, dtype) == 88, "layout of the file");
_Static_assert(sizeof(ds__recorder_entry) == 192, "layout of the file");

enum {
    DS__RECORDER_NOTES_AT = 4096,
    DS__RECORDER_ENTRIES_AT = DS__RECORDER_NOTES_AT + DS__RECORDER_NOTES,
    DS__RECORDER_BYTES =
        DS__RECORDER_ENTRIES_AT + DS__RECORDER_ENTRIES * (int)sizeof(ds__recorder_entry)
};

typedef struct ds__recorder {
    ds__recorder_header *header;
    char *notes;
    ds__recorder_entry *entries;
    struct ds__recorder *next;
    int users;
    char path[512];
} ds__recorder;

static struct {
    ds__mutex lock;
    ds__recorder *first;
} ds__recorders = { .lock = DS__MUTEX_INIT };

/* Copies a text without its end, if it is too long. */
static void ds__recorder_put(char *to, size_t room, const char *from) {
    size_t n = from ? strlen(from) : 0;
    if (n >= room)
        n = room - 1;
    if (n)
        memcpy(to, from, n);
    to[n] = 0;
}

/* Copies a text without its beginning, if it is too long. */
static void ds__recorder_put_end(char *to, size_t room, const char *from) {
    size_t n = from ? strlen(from) : 0;
    if (n >= room)
        from += n - (room - 1);
    ds__recorder_put(to, room, from);
}

/* Writes the path of a rank. Returns 0 if there is no room. */
static int ds__recorder_path(char *to, size_t room, const char *pattern, int rank) {
    size_t n = 0;
    while (*pattern && n < room) {
        if (strncmp(pattern, "%r", 2) == 0) {
            n += (size_t)snprintf(to + n, room - n, "%d", rank);
            pattern += 2;
        } else if (strncmp(pattern, "%p", 2) == 0) {
            n += (size_t)snprintf(to + n, room - n, "%u", ds__os_process_id());
            pattern += 2;
        } else {
            to[n++] = *pattern++;
        }
    }
    if (n >= room)
        return 0;
    to[n] = 0;
    return 1;
}

static void ds__recorder_header_init(ds__recorder_header *header, int rank, int size) {
    memcpy(header->magic, "DSRANKS", 8);
    header->version = DS__RECORDER_VERSION;
    header->entry_bytes = sizeof(ds__recorder_entry);
    header->notes_at = DS__RECORDER_NOTES_AT;
    header->notes_bytes = DS__RECORDER_NOTES;
    header->entries_at = DS__RECORDER_ENTRIES_AT;
    header->entry_count = DS__RECORDER_ENTRIES;
    header->rank = rank;
    header->size = size;
    header->process = ds__os_process_id();
    header->monotonic_ns = ds__now_ns();
    header->wall_ns = ds__os_wall_ns();
    ds__os_host_name(header->host, sizeof header->host);
}

/* Finds the recorder of a path, or creates one. ds__recorders.lock is held. */
static ds_result ds__recorder_find(const char *path, int rank, int size, ds__recorder **out) {
    ds__recorder *r = ds__recorders.first;
    while (r && strcmp(r->path, path) != 0)
        r = r->next;
    if (r) {
        DS__REQUIRE(r->header->rank == rank,
                    "recorder: the file \"%.200s\" is that of rank %d, and was named for rank %d, "
                    "too: put %%r (the rank) into the path",
                    path, (int)r->header->rank, rank);
        r->users++;
        *out = r;
        return DS_OK;
    }

    r = ds__host_alloc(sizeof *r);
    if (!r)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for the flight recorder");
    char *at = ds__os_file_map(path, DS__RECORDER_BYTES);
    if (!at) {
        ds__host_free(r);
        return ds__fail(DS_ERR_SYSTEM, "recorder: the file \"%.200s\" cannot be created: %s", path,
                        strerror(errno));
    }
    r->header = (ds__recorder_header *)(void *)at;
    r->notes = at + DS__RECORDER_NOTES_AT;
    r->entries = (ds__recorder_entry *)(void *)(at + DS__RECORDER_ENTRIES_AT);
    r->users = 1;
    strcpy(r->path, path);
    ds__recorder_header_init(r->header, rank, size);
    r->next = ds__recorders.first;
    ds__recorders.first = r;
    *out = r;
    return DS_OK;
}

/* Creates the file of a rank, or shares the recorder that writes it already. In the pattern, %r is
   replaced by the rank, and %p by the number of the process. */
static ds_result ds__recorder_open(const char *pattern, int rank, int size, ds__recorder **out) {
    char path[sizeof(*out)->path];
    *out = NULL;
    DS__REQUIRE(size == 1 || strstr(pattern, "%r") || strstr(pattern, "%p"),
                "recorder: all %d ranks would write the file \"%.200s\": put %%r (the rank) into "
                "the path",
                size, pattern);
    DS__REQUIRE(ds__recorder_path(path, sizeof path, pattern, rank),
                "recorder: the path \"%.60s...\" is too long; at most %zu characters are allowed",
                pattern, sizeof path - 1);
    ds__mutex_lock(&ds__recorders.lock);
    ds_result r = ds__recorder_find(path, rank, size, out);
    ds__mutex_unlock(&ds__recorders.lock);
    return r;
}

/* Adds a use of a recorder; NULL is allowed. */
static ds__recorder *ds__recorder_ref(ds__recorder *r) {
    ds__mutex_lock(&ds__recorders.lock);
    if (r)
        r->users++;
    ds__mutex_unlock(&ds__recorders.lock);
    return r;
}

/* Marks the file as complete and unmaps it, if no other group uses it. NULL is allowed. In a forked
   child, the file stays that of the parent. */
static void ds__recorder_close(ds__recorder *r) {
    if (!r)
        return;
    ds__mutex_lock(&ds__recorders.lock);
    int users = --r->users;
    ds__recorder **link = &ds__recorders.first;
    while (*link != r)
        link = &(*link)->next;
    if (users == 0)
        *link = r->next;
    ds__mutex_unlock(&ds__recorders.lock);
    if (users)
        return;

    if (r->header->process == ds__os_process_id())
        atomic_store_explicit(&r->header->closed, 1, memory_order_release);
    ds__os_unmap(r->header, DS__RECORDER_BYTES);
    ds__host_free(r);
}

/* Returns room for a note, or NULL. Its kind must be written last. */
static void *ds__recorder_note_begin(ds__recorder *r, size_t bytes, uint64_t group) {
    bytes = (bytes + 7) & ~(size_t)7;
    uint64_t at = atomic_load(&r->header->notes_taken);
    do {
        if (at + bytes > DS__RECORDER_NOTES) {
            atomic_fetch_add(&r->header->notes_lost, 1);
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&r->header->notes_taken, &at, at + bytes));
    ds__recorder_note *note = (ds__recorder_note *)(void *)(r->notes + at);
    note->bytes = (uint32_t)bytes;
    note->group = group;
    return note;
}

/* Records a group that this process has joined. r: NULL is allowed. */
static void ds__recorder_group_add(ds__recorder *r, const ds__recorder_group *group) {
    uint32_t count = group->world_ranks ? (uint32_t)group->size : 0;
    size_t bytes = sizeof(ds__recorder_group_note) + count * sizeof(int32_t);
    ds__recorder_group_note *to = r ? ds__recorder_note_begin(r, bytes, group->group) : NULL;
    if (!to)
        return;
    to->rank = group->rank;
    to->size = group->size;
    to->devices = group->devices;
    to->first_device = group->first_device;
    to->own_devices = group->own_devices;
    to->world_count = count;
    ds__recorder_put(to->engine, sizeof to->engine, group->engine);
    ds__recorder_put(to->label, sizeof to->label, group->label);
    for (uint32_t i = 0; i < count; i++)
        to->world_ranks[i] = group->world_ranks[i];
    atomic_store_explicit(&to->note.kind, DS__RECORDER_NOTE_GROUP, memory_order_release);
}

/* Records the failure of a group. r: NULL is allowed. */
static void ds__recorder_failure_add(ds__recorder *r, uint64_t group, ds_result code,
                                     const char *text) {
    ds__recorder_failure_note *to = r ? ds__recorder_note_begin(r, sizeof *to, group) : NULL;
    if (!to)
        return;
    to->result = code;
    to->time_ns = ds__now_ns();
    ds__recorder_put(to->text, sizeof to->text, text);
    atomic_store_explicit(&to->note.kind, DS__RECORDER_NOTE_FAILURE, memory_order_release);
}

/* Returns the next entry that is not pending, which belongs to the caller then, and its number.
   NULL: there is none near. */
static ds__recorder_entry *ds__recorder_claim(ds__recorder *r, uint64_t *out_number) {
    for (int i = 0; i < DS__RECORDER_TRIES; i++) {
        uint64_t number = atomic_fetch_add_explicit(&r->header->last, 1, memory_order_relaxed) + 1;
        ds__recorder_entry *e = &r->entries[(number - 1) & (DS__RECORDER_ENTRIES - 1)];
        uint64_t word = atomic_load_explicit(&e->word, memory_order_relaxed);
        if (word && (word & 255) < DS__RECORDER_COMPLETE)
            continue;
        *out_number = number;
        if (atomic_compare_exchange_strong_explicit(&e->word, &word,
                                                    number << 8 | DS__RECORDER_WRITING,
                                                    memory_order_acquire, memory_order_relaxed))
            return e;
    }
    atomic_fetch_add_explicit(&r->header->not_recorded, 1, memory_order_relaxed);
    return NULL;
}

/* Records an operation that was enqueued. Returns its number, or 0 if it is not recorded. r: NULL
   is allowed. */
static uint64_t ds__recorder_begin(ds__recorder *r, const ds__recorder_call *call) {
    uint64_t number = 0;
    ds__recorder_entry *e = r ? ds__recorder_claim(r, &number) : NULL;
    if (!e)
        return 0;
    e->group = call->group;
    e->sequence = call->sequence;
    e->collective = call->collective;
    e->count = call->count;
    e->stream = call->stream;
    e->enqueued_ns = call->now;
    e->started_ns = 0;
    e->ended_ns = 0;
    e->root = call->root;
    e->device = call->device;
    e->line = (uint32_t)call->site.line;
    e->verb = (uint8_t)call->verb;
    e->reduce = (uint8_t)call->reduce;
    e->flags = (uint8_t)call->flags;
    e->dtype = call->dtype;
    ds__recorder_put(e->fn, sizeof e->fn, call->fn);
    ds__recorder_put_end(e->file, sizeof e->file, call->site.file);
    atomic_store_explicit(&e->word, number << 8 | DS__RECORDER_ENQUEUED, memory_order_release);
    ds__recorder_entry *next = &r->entries[number & (DS__RECORDER_ENTRIES - 1)];
    for (size_t i = 0; i < sizeof *next; i += 64)
        __builtin_prefetch((char *)next + i, 1);
    return number;
}

/* Changes the status of an entry by its number. A final status stays. r NULL and number 0 are
   allowed. */
static void ds__recorder_set(ds__recorder *r, uint64_t number, ds__recorder_status status,
                             uint64_t now) {
    if (!r || !number)
        return;
    ds__recorder_entry *e = &r->entries[(number - 1) & (DS__RECORDER_ENTRIES - 1)];
    uint64_t word = atomic_load_explicit(&e->word, memory_order_relaxed);
    if (word >> 8 != number || (word & 255) >= DS__RECORDER_COMPLETE)
        return;
    if (status == DS__RECORDER_STARTED)
        e->started_ns = now;
    else
        e->ended_ns = now;
    atomic_store_explicit(&e->word, number << 8 | (uint64_t)status, memory_order_release);
}

#endif
