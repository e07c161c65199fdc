/* cpu/reach.h - device memory that the host cannot reach (DS_CPU_UNREACHABLE).

   Keeps the memory of CPU devices in pages that no thread may read or write, except while an
   access is open. ds__cpu_reach_begin opens an access, ds__cpu_reach_end closes it.
   ds__cpu_reach_map adds memory, ds__cpu_reach_unmap takes it out, and ds__cpu_reach_alloc
   allocates memory of this kind. Without the option, no other room calls these functions, but for
   ds__cpu_reach_begin_op and ds__cpu_reach_begin_at, which test ds__cpu.modes.

   Policy: an operation opens an access for its own time and closes it before the stream passes
   it. A thread that has waited for the operation therefore finds the memory closed, unless another
   operation runs. Host functions, callbacks, records and waits open none. Pages are open or closed
   for all threads of the process: per thread, only protection keys could do this, which few
   processors have.

   Invariants: `range` is sorted by address, and no two ranges overlap. All ranges are readable and
   writable while `open` is not 0, and inaccessible otherwise. A range of mapped memory is one page
   of ds__cpu_space_map, so an unmap takes whole ranges. If the system refuses to open a range,
   because the process has too many mappings, the operation that touches the range is a fault.
   Locks: the mutex guards all fields, and is held during the system calls; memory that is given
   out while another thread opens an access is thus open, too. The program's allocator may run
   under the mutex. `value_lock` may be held before it.
   Threads: any. */
#ifndef DS__CPU_REACH_H
#define DS__CPU_REACH_H

#include "types.h"

typedef struct ds__cpu_range {
    char *at;
    size_t size;
} ds__cpu_range;

static struct {
    ds__mutex lock;
    ds__cpu_range *range;
    size_t count;
    size_t room;
    uint64_t open; /* accesses that are open */
} ds__cpu_reach_state = { .lock = DS__MUTEX_INIT };

/* Returns the index of the first range that ends after the address. The mutex is held. */
static size_t ds__cpu_reach_after(const char *address) {
    size_t low = 0;
    size_t high = ds__cpu_reach_state.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const ds__cpu_range *r = &ds__cpu_reach_state.range[middle];
        if (r->at + r->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Allows or forbids accesses to all ranges, with one call for neighbours. The mutex is held. */
static void ds__cpu_reach_protect(int allow) {
    const ds__cpu_range *range = ds__cpu_reach_state.range;
    for (size_t i = 0; i < ds__cpu_reach_state.count;) {
        char *at = range[i].at;
        size_t size = 0;
        for (; i < ds__cpu_reach_state.count && range[i].at == at + size; i++)
            size += range[i].size;
        (void)ds__os_protect(at, size, allow);
    }
}

static void ds__cpu_reach_begin(void) {
    ds__mutex_lock(&ds__cpu_reach_state.lock);
    if (ds__cpu_reach_state.open++ == 0)
        ds__cpu_reach_protect(1);
    ds__mutex_unlock(&ds__cpu_reach_state.lock);
}

static void ds__cpu_reach_end(void) {
    ds__mutex_lock(&ds__cpu_reach_state.lock);
    if (--ds__cpu_reach_state.open == 0)
        ds__cpu_reach_protect(0);
    ds__mutex_unlock(&ds__cpu_reach_state.lock);
}

/* Opens an access for an operation that may touch device memory. Returns 0 if it needs none. Words
   of memory (DS__OP_VALUES) open their own access, since their operation may park the stream. */
__attribute__((noinline)) static int ds__cpu_reach_begin_op(const ds__op *op) {
    if (!ds__cpu_modes(DS__CPU_UNREACHABLE) ||
        (op->kind != DS__OP_KERNEL && op->kind != DS__OP_COPY && op->kind != DS__OP_FILL &&
         op->kind != DS__OP_CLOSURE))
        return 0;
    ds__cpu_reach_begin();
    return 1;
}

/* Opens an access for a word, if the word is in device memory. Returns 0 if it is not. */
static int ds__cpu_reach_begin_at(const void *address) {
    if (DS__LIKELY(!ds__cpu_modes(DS__CPU_UNREACHABLE)))
        return 0;
    const char *at = address;
    ds__mutex_lock(&ds__cpu_reach_state.lock);
    size_t i = ds__cpu_reach_after(at);
    int found = i < ds__cpu_reach_state.count && at >= ds__cpu_reach_state.range[i].at;
    if (found && ds__cpu_reach_state.open++ == 0)
        ds__cpu_reach_protect(1);
    ds__mutex_unlock(&ds__cpu_reach_state.lock);
    return found;
}

/* Maps memory at reserved addresses, in ranges of `piece` bytes. Returns 0 if there is no memory; a
   part may be mapped then. */
static int ds__cpu_reach_map(void *at, size_t size, size_t piece) {
    size_t more = size / piece;
    ds__mutex_lock(&ds__cpu_reach_state.lock);
    int mapped = ds__array_reserve(&ds__cpu_reach_state.range, sizeof(ds__cpu_range),
                                   ds__cpu_reach_state.count, more, &ds__cpu_reach_state.room) &&
                 ds__os_commit(at, size);
    if (mapped) {
        size_t i = ds__cpu_reach_after(at);
        ds__cpu_range *first = ds__cpu_reach_state.range + i;
        memmove(first + more, first, (ds__cpu_reach_state.count - i) * sizeof *first);
        ds__cpu_reach_state.count += more;
        for (size_t k = 0; k < more; k++)
            first[k] = (ds__cpu_range){ (char *)at + k * piece, piece };
    }
    if (mapped && ds__cpu_reach_state.open == 0)
        (void)ds__os_protect(at, size, 0);
    ds__mutex_unlock(&ds__cpu_reach_state.lock);
    return mapped;
}

/* Takes the ranges out. The caller gives their memory back afterwards. */
static void ds__cpu_reach_unmap(void *at, size_t size) {
    const char *end = (const char *)at + size;
    ds__mutex_lock(&ds__cpu_reach_state.lock);
    ds__cpu_range *range = ds__cpu_reach_state.range;
    size_t first = ds__cpu_reach_after(at);
    size_t last = first;
    while (last < ds__cpu_reach_state.count && range[last].at < end)
        last++;
    if (last > first)
        memmove(range + first, range + last, (ds__cpu_reach_state.count - last) * sizeof *range);
    ds__cpu_reach_state.count -= last - first;
    ds__mutex_unlock(&ds__cpu_reach_state.lock);
}

/* Returns the bytes of the whole pages that hold `size` bytes; 0: too many. */
static size_t ds__cpu_reach_round(size_t size) {
    size_t page = ds__os_page();
    return size > SIZE_MAX - 2 * page ? 0 : (size + (size == 0) + page - 1) & ~(page - 1);
}

/* Allocates memory in pages of its own. NULL: no memory. */
static void *ds__cpu_reach_alloc(size_t size) {
    size_t whole = ds__cpu_reach_round(size);
    void *at = whole ? ds__os_reserve(whole, ds__os_page()) : NULL;
    if (!at || ds__cpu_reach_map(at, whole, whole))
        return at;
    ds__os_unreserve(at, whole);
    return NULL;
}

/* Returns memory of ds__cpu_reach_alloc to the system. */
static void ds__cpu_reach_free(void *at, size_t size) {
    size_t whole = ds__cpu_reach_round(size);
    ds__cpu_reach_unmap(at, whole);
    ds__os_unreserve(at, whole);
}

/* Forgets all ranges, at the stop of the driver. */
static void ds__cpu_reach_deinit(void) {
    ds__host_free(ds__cpu_reach_state.range);
    ds__cpu_reach_state.range = NULL;
    ds__cpu_reach_state.count = ds__cpu_reach_state.room = 0;
    ds__cpu_reach_state.open = 0;
}

#endif
