/* alloc/ipc_lease.h - export slots and leases.

   Manages export slots (ds__export_slot) in the shared-memory registry (ds__registry) and leases of
   slots. A slot stands for one exported block or segment, a lease for one process that uses it.
   The exporter calls ds__export_slot_create, ds__export_slot_close, ds__export_slot_leased and
   ds__export_slot_end; importers call ds__lease_ref and ds__lease_unref.

   Invariants: The word of a slot is its generation and one bit for open. A slot is reused only
   after it was closed and had no lease, and then has a new generation. An importer enters its
   lease before it checks the word; the exporter closes the slot before it looks at leases. A
   lease of an ended process may be removed or replaced by any process.
   Locks: ds__export_slot_create and ds__export_slot_end expect the registries' mutex
   (ds__registries.mutex). The other functions use atomic operations only and may run under
   spinlocks, with two exceptions. ds__lease_ref, and ds__export_slot_leased with `look`, ask the
   kernel for file locks.
   Threads: any thread. Other processes change leases at the same time. ds__lease_unref also runs
   on driver threads. */
#ifndef DS__ALLOC_IPC_LEASE_H
#define DS__ALLOC_IPC_LEASE_H

#include "../base/ipc_registry.h"

/* Takes an export slot of the process's registry, with its content for importers. The registries'
   mutex is held. */
static ds_result ds__export_slot_create(ds__registry *b, const ds__export_slot_facts *facts,
                                        uint32_t *out, uint32_t *out_generation) {
    uint32_t i = b->free_slot ? b->free_slot - 1 : atomic_load(&b->page->slots);
    if (i >= DS__EXPORT_SLOTS)
        return ds__fail(DS_ERR_LIMIT_EXCEEDED,
                        "the process has exported %d blocks and segments, the maximum",
                        DS__EXPORT_SLOTS);
    ds__export_slot *s = &b->page->slot[i];
    if (b->free_slot)
        b->free_slot = (uint32_t)s->next;
    else if (ds__os_memfd_reserve(b->fd, offsetof(ds__registry_page, slot) + i * sizeof *s,
                                  sizeof *s))
        atomic_fetch_add(&b->page->slots, 1);
    else
        return ds__registry_short();
    memcpy(&s->facts, facts, sizeof s->facts);
    uint64_t generation = (atomic_load(&s->word) >> 1) + 1;
    atomic_store(&s->word, generation << 1 | 1);
    *out = i;
    *out_generation = (uint32_t)generation;
    return DS_OK;
}

/* Gives an export slot without leases back. The registries' mutex is held. */
static void ds__export_slot_end(ds__registry *b, uint32_t i) {
    ds__export_slot *s = &b->page->slot[i];
    atomic_fetch_and(&s->word, ~(uint64_t)1);
    s->next = b->free_slot;
    b->free_slot = i + 1;
}

/* Closes an export slot: no process can take a lease from now on. */
static void ds__export_slot_close(uint32_t i) {
    atomic_fetch_and(&ds__registries.own->page->slot[i].word, ~(uint64_t)1);
}

/* Returns the number of the process that has a lease. A lease is number << 24 | process id, as in a
   lane of the registry. */
static uint64_t ds__lease_number(uint64_t lease) {
    return lease >> 24;
}

/* Returns whether a process has a lease of an own export slot. With `look`, first ends the leases
   of processes that have ended. */
static int ds__export_slot_leased(uint32_t i, int look) {
    ds__registry *b = ds__registries.own;
    ds__export_slot *s = &b->page->slot[i];
    int leased = 0;
    for (int k = 0; k < DS__LEASES; k++) {
        uint64_t who = atomic_load(&s->lease[k]);
        if (who && look && !ds__registry_alive(b, ds__lease_number(who)) &&
            atomic_compare_exchange_strong(&s->lease[k], &who, 0))
            continue;
        leased |= who != 0;
    }
    return leased;
}

/* Takes a lease of another process's export slot; if none is free, takes over the lease of an ended
   process. The content of the slot stays until ds__lease_unref. No slot has generation 0. */
static ds_result ds__lease_ref(ds__registry *b, uint32_t slot, uint32_t generation, uint32_t *out) {
    DS__REQUIRE(slot < DS__EXPORT_SLOTS && slot < atomic_load(&b->page->slots),
                "the handle names export slot %u, and process %d has %u", slot, b->pid,
                atomic_load(&b->page->slots));
    ds__export_slot *s = &b->page->slot[slot];
    for (uint32_t k = 0; k < 2 * DS__LEASES; k++) {
        _Atomic uint64_t *lease = &s->lease[k % DS__LEASES];
        uint64_t who = k < DS__LEASES ? 0 : atomic_load(lease);
        if (who && ds__registry_alive(b, ds__lease_number(who)))
            continue;
        if (!atomic_compare_exchange_strong(
                lease, &who, b->me << 24 | ((uint64_t)ds__os_process_id() & 0xffffff)))
            continue;
        if (atomic_load(&s->word) == ((uint64_t)generation << 1 | 1)) {
            *out = k % DS__LEASES;
            return DS_OK;
        }
        atomic_store(lease, 0);
        return ds__fail(DS_ERR_INVALID_HANDLE, "process %d has freed the block", b->pid);
    }
    return ds__fail(DS_ERR_LIMIT_EXCEEDED, "%d processes use the block, the maximum", DS__LEASES);
}

static void ds__lease_unref(const ds__registry *b, uint32_t slot, uint32_t lease) {
    atomic_store(&b->page->slot[slot].lease[lease], 0);
}

#endif
