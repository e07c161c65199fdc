/* ranks/nccl_id.h - the id by which the ranks of NCCL find each other.

   Reads and writes ids (ds__nccl_id_find, ds__nccl_id_format). An id of NCCL has 128 bytes; its
   text has two hexadecimal digits for each. The text of an id by which a rank joins a communicator
   that grows begins with "grow:".

   Policy: ds_ranks_desc.id or, without it, the environment variable DEVSTREAM_RANKS_ID has the
   text, or "file:PATH". Rank 0 writes the text to a file, for which the others wait, and removes
   the file when all have joined. If NCCL_COMM_ID is set and no id is given, NCCL makes the same id
   on each rank.

   Invariants: a file appears with its whole text.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_NCCL_ID_H
#define DS__RANKS_NCCL_ID_H

#include "../api/ranks.h"
#include "../base/bookkeeping.h"
#include "nccl_load.h"

/* An id as the ranks pass it. */
typedef struct ds__nccl_ticket {
    ds__nccl_id id;
    int grows; /* 1: for ncclCommGrow */
} ds__nccl_ticket;

#define DS__NCCL_GROW "grow:"

/* Writes the text of an id, of at most DS_RANKS_ID_SIZE bytes. */
static void ds__nccl_id_format(const ds__nccl_ticket *ticket, char *out) {
    static const char digits[] = "0123456789abcdef";
    const ds__nccl_id *id = &ticket->id;
    if (ticket->grows) {
        strcpy(out, DS__NCCL_GROW);
        out += strlen(out);
    }
    for (size_t i = 0; i < sizeof id->bytes; i++) {
        *out++ = digits[(unsigned char)id->bytes[i] >> 4];
        *out++ = digits[(unsigned char)id->bytes[i] & 15];
    }
    *out = '\0';
}

/* Returns the value of a digit, or -1. */
static int ds__nccl_id_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads the text of an id. Returns 0 if it is not one. */
static int ds__nccl_id_parse(const char *text, ds__nccl_ticket *out_ticket) {
    size_t prefix = strlen(DS__NCCL_GROW);
    ds__nccl_id *out = &out_ticket->id;
    out_ticket->grows = strncmp(text, DS__NCCL_GROW, prefix) == 0;
    if (out_ticket->grows)
        text += prefix;
    for (size_t i = 0; i < sizeof out->bytes; i++) {
        int high = ds__nccl_id_digit(text[2 * i]);
        int low = high < 0 ? -1 : ds__nccl_id_digit(text[2 * i + 1]);
        if (low < 0)
            return 0;
        out->bytes[i] = (char)(high << 4 | low);
    }
    return text[2 * sizeof out->bytes] == '\0';
}

static ds_result ds__nccl_id_create(ds__nccl_ticket *out) {
    out->grows = 0;
    ds__nccl_result code = ds__nccl.GetUniqueId(&out->id);
    if (code == DS__NCCL_SUCCESS)
        return DS_OK;
    return ds__fail(DS_ERR_FAILED, "ncclGetUniqueId: %s", ds__nccl.GetErrorString(code));
}

/* Writes an id to a file that does not exist. */
static ds_result ds__nccl_id_write(const char *path, const ds__nccl_ticket *id) {
    char part[1024];
    char text[DS_RANKS_ID_SIZE];
    int n = snprintf(part, sizeof part, "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof part)
        return ds__fail(DS_ERR_INVALID_VALUE, "the path of the id has more than 1000 characters");
    FILE *file = fopen(path, "r");
    if (file) {
        (void)fclose(file);
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "%.300s exists, from another program or an earlier run; remove it", path);
    }
    ds__nccl_id_format(id, text);
    file = fopen(part, "w");
    int written = file && fputs(text, file) >= 0;
    if (file)
        written &= fclose(file) == 0;
    if (!written || rename(part, path) != 0)
        return ds__fail(DS_ERR_SYSTEM, "%.300s cannot be written", path);
    return DS_OK;
}

/* Waits for the file of another rank, and reads the id. */
static ds_result ds__nccl_id_read(const char *path, uint64_t deadline, ds__nccl_ticket *out) {
    char text[DS_RANKS_ID_SIZE + 1];
    FILE *file;
    while (!(file = fopen(path, "r"))) {
        if (ds__now_ns() > deadline)
            return ds__fail(DS_ERR_TIMEOUT, "rank 0 has not written %.300s within the time limit",
                            path);
        ds__os_sleep(1000000);
    }
    size_t n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    return ds__nccl_id_parse(text, out)
               ? DS_OK
               : ds__fail(DS_ERR_INVALID_VALUE, "%.300s does not have an id of NCCL", path);
}

/* Returns the text of an id, or of the environment, or NULL. */
static const char *ds__nccl_id_text(const char *text) {
    return text ? text : ds__os_environment("DEVSTREAM_RANKS_ID");
}

/* Returns the path of "file:PATH", or NULL. */
static const char *ds__nccl_id_path(const char *text) {
    return text && strncmp(text, "file:", 5) == 0 ? text + 5 : NULL;
}

/* Finds the id of the ranks. text: ds_ranks_desc.id. */
static ds_result ds__nccl_id_find(const char *text, int rank, uint64_t deadline,
                                  ds__nccl_ticket *out) {
    text = ds__nccl_id_text(text);
    const char *path = ds__nccl_id_path(text);
    if (!text && !ds__os_environment("NCCL_COMM_ID"))
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "id is NULL: pass the text of ds_ranks_id_create or \"file:PATH\", or set "
                        "DEVSTREAM_RANKS_ID or NCCL_COMM_ID");
    if (path && rank > 0)
        return ds__nccl_id_read(path, deadline, out);
    if (!path && text)
        return ds__nccl_id_parse(text, out)
                   ? DS_OK
                   : ds__fail(DS_ERR_INVALID_VALUE,
                              "id \"%.20s...\" is not of ds_ranks_id_create, and does not begin "
                              "with \"file:\"",
                              text);
    ds_result r = ds__nccl_id_create(out);
    return r == DS_OK && path ? ds__nccl_id_write(path, out) : r;
}

/* Removes the file of rank 0: all ranks have joined, or this one has failed. */
static void ds__nccl_id_done(const char *text, int rank) {
    const char *path = ds__nccl_id_path(ds__nccl_id_text(text));
    if (path && rank == 0)
        (void)remove(path);
}

#endif
