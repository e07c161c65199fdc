/* A stand-in for an MPI library with the standard ABI (mpi.c): how a test steers it.

   The process is rank 0. All other ranks of MPI_COMM_WORLD are mirrors of it: they make the same
   calls with the same data at the same moment, and return messages to their sender. Collectives
   move only the data of rank 0, and reductions give its input. */
#ifndef SUPPORT_MPI_H
#define SUPPORT_MPI_H

#include <stddef.h>

typedef struct mpi_standin {
    int fail_at;           /* the nth call from now fails; 0: none */
    const char *fail_name; /* NULL, or only calls of this function count, such as "Isend" */
    int failed;            /* 1: that call has come */
    int nameless;          /* 1: there is no text of an error */
    int abi;               /* version of the ABI */
    int level;             /* thread level that it has, or gets at its initialization */
    int initialized;
    int finalized;
    int size;    /* of MPI_COMM_WORLD */
    int pending; /* this many tests, or with -1 all, find that a request is not complete */
    int gpus;    /* 1: messages may be in memory of a GPU */
    int lost;    /* bytes that are missing at the end of each message */
    /* NULL: memmove; a program whose messages may be in memory of a GPU has this function */
    void (*copy_fn)(void *to, const void *from, size_t bytes);
} mpi_standin;

#endif
