/* ranks/mpi.h - the engine "mpi".

   Initializes MPI or joins the program's, compares it with the launcher, and defines the engine's
   table (ds__mpi_engine).

   Policy:
   1. devstream initializes MPI only if the program has not, and finalizes it only then, in
      ds_shutdown. If an operation was abandoned, MPI_Finalize might wait for it for ever, so MPI is
      not finalized. MPI_Finalize waits for all processes, so one that does not finalize tells the
      others, which then do not finalize either (Note [End of MPI]).
   2. devstream calls MPI from several threads. MPI_THREAD_MULTIPLE is required, unless the program
      promises that it makes no calls itself (DS_RANKS_NO_OTHER_MPI).
   3. If the launcher started another number of processes than MPI_COMM_WORLD has, MPI is not
      connected with the launcher, and each process would be a group of its own. The call is refused
      unless the program gives a communicator.

   Invariants: after MPI is finalized, no group can be created, since MPI cannot be initialized
   twice.
   Locks: ds__mpi_state.mutex is held while MPI is loaded, initialized or finalized.
   Threads: as ranks/engine.h says. MPI_Init_thread has no time limit: it returns when all processes
   of the launcher have called it. */
#ifndef DS__RANKS_MPI_H
#define DS__RANKS_MPI_H

#include "mpi_op.h"

static const char *ds__mpi_level_name(int level) {
    switch (level) {
    case DS__MPI_THREAD_SINGLE:
        return "MPI_THREAD_SINGLE";
    case DS__MPI_THREAD_FUNNELED:
        return "MPI_THREAD_FUNNELED";
    case DS__MPI_THREAD_SERIALIZED:
        return "MPI_THREAD_SERIALIZED";
    case DS__MPI_THREAD_MULTIPLE:
        return "MPI_THREAD_MULTIPLE";
    default:
        return "an unknown thread level";
    }
}

/* Accepts the thread level of MPI, or refuses it. */
static ds_result ds__mpi_level_check(int level, unsigned flags) {
    if (level != DS__MPI_THREAD_MULTIPLE && !(flags & DS_RANKS_NO_OTHER_MPI))
        return ds__fail(
            DS_ERR_UNSUPPORTED,
            "MPI was initialized with %s, and devstream calls MPI from several threads: "
            "initialize MPI with MPI_THREAD_MULTIPLE, or, if the program makes no MPI "
            "call while the group exists, pass DS_RANKS_NO_OTHER_MPI",
            ds__mpi_level_name(level));
    if (level != DS__MPI_THREAD_MULTIPLE)
        atomic_store_explicit(&ds__mpi_state.serialized, 1, memory_order_relaxed);
    return DS_OK;
}

/* Initializes MPI, or asks for the level with which the program has. */
static ds_result ds__mpi_join(int *out_level) {
    int initialized = 0;
    int finalized = 0;
    ds_result r = DS__MPI_CALL(Initialized, &initialized);
    if (r == DS_OK)
        r = DS__MPI_CALL(Finalized, &finalized);
    if (r < 0)
        return r;
    if (finalized)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "MPI was finalized%s, and cannot be initialized twice",
                        ds__mpi_state.owned ? " by ds_shutdown" : "");
    if (initialized)
        return DS__MPI_CALL(Query_thread, out_level);

    r = DS__MPI_CALL(Init_thread, NULL, NULL, DS__MPI_THREAD_MULTIPLE, out_level);
    /* for errors that MPI does not assign to a communicator */
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_set_errhandler, DS__MPI_COMM_SELF, DS__MPI_ERRORS_RETURN);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_set_errhandler, DS__MPI_COMM_WORLD, DS__MPI_ERRORS_RETURN);
    ds__mpi_state.copying = DS__MPI_REQUEST_NULL;
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_idup, DS__MPI_COMM_WORLD, &ds__mpi_state.last,
                         &ds__mpi_state.copying);
    ds__mpi_state.owned = r == DS_OK; /* MPI is not finalized without this copy */
    return r;
}

/* Loads MPI and makes it ready for calls. */
static ds_result ds__mpi_prepare(unsigned flags) {
    int level = DS__MPI_THREAD_SINGLE;
    ds__mutex_lock(&ds__mpi_state.mutex);
    ds_result r = ds__mpi_load();
    if (r == DS_OK)
        r = ds__mpi_join(&level);
    if (r == DS_OK)
        r = ds__mpi_level_check(level, flags);
    ds__mpi_state.reaches_gpus = r == DS_OK && ds__mpi_asks_cuda();
    ds__mutex_unlock(&ds__mpi_state.mutex);
    return r;
}

/* Compares MPI_COMM_WORLD with the launcher. */
static ds_result ds__mpi_launch_check(void) {
    int size = 0;
    ds_ranks_launch launch;
    ds_ranks_launch_get(&launch);
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_size, DS__MPI_COMM_WORLD, &size);
    ds__mpi_end();
    if (r < 0)
        return r;
    DS__REQUIRE(
        launch.size < 1 || launch.size == size,
        "%s started %d processes, but MPI_COMM_WORLD has %d: start the program with mpiexec "
        "of the same MPI library, or with srun --mpi=pmi2 or --mpi=pmix",
        launch.launcher, launch.size, size);
    return DS_OK;
}

/* Compares the communicator with the rank and size of the program, if it gives them. */
static ds_result ds__mpi_numbers_check(ds__mpi_comm comm, const ds_ranks_desc *desc) {
    int rank = 0;
    int size = 0;
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_rank, comm, &rank);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_size, comm, &size);
    ds__mpi_end();
    if (r < 0 || (desc->rank == 0 && desc->size == 0))
        return r;
    DS__REQUIRE(desc->rank == rank && desc->size == size,
                "desc.rank is %d and desc.size is %d, but MPI has rank %d of %d: pass these "
                "numbers, or 0 for both",
                desc->rank, desc->size, rank, size);
    return DS_OK;
}

static ds_result ds__mpi_init(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out) {
    ds__mpi_comm comm = DS__MPI_COMM_WORLD;
    *out = (ds__net_comm){ NULL, 0, 0 };
    ds_result r = ds__mpi_prepare(desc->flags);
    if (r == DS_OK && !desc->mpi_comm)
        r = ds__mpi_launch_check();
    if (r < 0)
        return r;

    /* an integer in MPICH's own mpi.h */
    if (desc->mpi_comm)
        memcpy(&comm, &desc->mpi_comm, sizeof comm);
    r = ds__mpi_numbers_check(comm, desc);
    return r < 0 ? r : ds__mpi_link_copy(comm, deadline, out);
}

/* Writes the first line of the library's version. */
static void ds__mpi_library(char *out, size_t size) {
    char text[DS__MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    if (ds__mpi.Get_library_version(text, &length) != 0)
        length = 0;
    text[length] = 0;
    text[strcspn(text, "\n")] = 0;
    for (char *at = text; *at; at++)
        if (*at == '\t')
            *at = ' ';
    snprintf(out, size, "%.100s%s", text, DS__MPI_LOADED ? " (ABI 1)" : "");
}

/* Note [End of MPI]: a rank whose group has failed must not call MPI_Finalize, and without it
   MPI_Finalize of the others does not return. Among them may be ranks that know nothing of the
   failure, since they have left out a call and then ended. So each process that ends MPI either
   enters a barrier that does not block, or sends a byte to all others. Processes that receive it do
   not finalize. */

/* Tells the other processes that this one does not finalize MPI. */
static void ds__mpi_end_tell(void) {
    static char gone; /* of requests that may be pending */
    int rank = 0;
    int size = 0;
    if (ds__mpi_wait(&ds__mpi_state.copying, 1, ds__now_ns() + 100000000u, "end of MPI") < 0 ||
        ds__mpi.Comm_rank(ds__mpi_state.last, &rank) != 0 ||
        ds__mpi.Comm_size(ds__mpi_state.last, &size) != 0)
        return;
    (void)ds__mpi.Comm_set_errhandler(ds__mpi_state.last, DS__MPI_ERRORS_RETURN);
    for (int to = 0; to < size; to++) {
        ds__mpi_request sending = DS__MPI_REQUEST_NULL;
        int flag = 0;
        if (to == rank || ds__mpi.Isend(&gone, 1, DS__MPI_BYTE, to, DS__MPI_TAG_END,
                                        ds__mpi_state.last, &sending) != 0)
            continue;
        for (int round = 0; round < DS__MPI_TELL_ROUNDS && !flag; round++)
            if (ds__mpi.Test(&sending, &flag, DS__MPI_STATUS_IGNORE) != 0)
                break;
    }
}

/* Returns 1 when all processes finalize MPI, and 0 if one does not, or does not answer. */
static int ds__mpi_end_agree(void) {
    enum { PATIENCE_S = 600 };

    uint64_t deadline = ds__now_ns() + PATIENCE_S * 1000000000ull;
    ds__mpi_request listening = DS__MPI_REQUEST_NULL;
    ds__mpi_request barrier = DS__MPI_REQUEST_NULL;
    int agreed = 0;
    int told = 0;
    if (ds__mpi_wait(&ds__mpi_state.copying, 1, deadline, "end of MPI") < 0)
        return 0;
    (void)ds__mpi.Comm_set_errhandler(ds__mpi_state.last, DS__MPI_ERRORS_RETURN);
    int failed = ds__mpi.Irecv(&ds__mpi_state.told, 1, DS__MPI_BYTE, DS__MPI_ANY_SOURCE,
                               DS__MPI_TAG_END, ds__mpi_state.last, &listening) != 0 ||
                 ds__mpi.Ibarrier(ds__mpi_state.last, &barrier) != 0;
    while (!failed && !agreed && !told && ds__now_ns() < deadline) {
        failed = ds__mpi.Test(&barrier, &agreed, DS__MPI_STATUS_IGNORE) != 0;
        if (!failed && !agreed)
            failed = ds__mpi.Test(&listening, &told, DS__MPI_STATUS_IGNORE) != 0;
        if (!agreed)
            ds__os_sleep(100000);
    }
    if (failed || !agreed)
        return 0;
    if (ds__mpi.Cancel(&listening) == 0)
        (void)ds__mpi_wait(&listening, 1, ds__now_ns() + 100000000u, "end of MPI");
    return ds__mpi.Comm_free(&ds__mpi_state.last) == 0;
}

static void ds__mpi_shutdown(void) {
    int finalized = 0;
    ds__mutex_lock(&ds__mpi_state.mutex);
    if (ds__mpi_state.owned && ds__mpi.Finalized(&finalized) == 0 && !finalized) {
        if (atomic_load(&ds__mpi_state.unfinished))
            ds__mpi_end_tell();
        else if (ds__mpi_end_agree())
            (void)ds__mpi.Finalize();
    }
    ds__mutex_unlock(&ds__mpi_state.mutex);
}

static const ds__ranks_engine ds__mpi_engine = {
    .name = "mpi",
    .captures = 0,
    .reduces = ds__mpi_reduces,
    .reaches = ds__mpi_reaches,
    .init = ds__mpi_init,
    .split = ds__mpi_split,
    .shrink = ds__mpi_shrink,
    .start = ds__mpi_start,
    .test = ds__mpi_test,
    .abandon = ds__mpi_abandon,
    .tell = ds__mpi_tell,
    .hear = ds__mpi_hear,
    .destroy = ds__mpi_destroy,
    .library = ds__mpi_library,
    .shutdown = ds__mpi_shutdown,
};

#endif
