/* The linker of the driver: PTX whose .extern functions a library resolves.

   A state takes one text of PTX and libraries. The content of a library is not read: every library
   has all functions that the interpreter knows (ptx_external). The linked image begins with the
   magic number of an ELF file, as a cubin does, and a mark for cuModuleLoadData; the text follows.
   Where CUDA's documentation leaves a code open, it is that of the loader: CUDA_ERROR_INVALID_PTX
   for a text that does not compile, and for a symbol that no library resolves. This is stricter
   than ptxas and nvlink of 13.0, which leave cudaGraphSetConditional undefined for the driver. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char si_link_mark[] = "\177ELF linked by the stand-in\n";

/* Where a caller wants the text of errors; the length of the text comes back in `values`. */
typedef struct error_log {
    char *buffer;
    void **values;
    size_t size, at; /* at: the option with the size */
} error_log;

typedef struct link_state {
    error_log log;
    char *text, *image;
    int has_library;
} link_state;

static size_t live_links;

size_t si_link_count(void) {
    return live_links;
}

static int check_options(unsigned count, CUjit_option *options, void **values, error_log *log) {
    *log = (error_log){ NULL, values, 0, count };
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
            log->buffer = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            log->size = (size_t)(uintptr_t)values[i], log->at = i;
    }
    return 0;
}

static void write_error(const error_log *log, const char *error) {
    if (!log->buffer || !log->size)
        return;
    size_t length = (size_t)snprintf(log->buffer, log->size, "%s", error);
    log->values[log->at] = (void *)(uintptr_t)(length < log->size ? length : log->size);
}

static CUresult finish(int code) {
    unlock();
    return (CUresult)code;
}

/* Begins a call with the lock held; NULL: *code says why not. */
static link_state *state_of(const char *call, CUlinkState handle, int entered, int *code) {
    *code = entered;
    if (!*code && !si_current_context())
        *code = CUDA_ERROR_INVALID_CONTEXT;
    if (!*code)
        *code = sticky(si_me.current);
    lock();
    return *code ? NULL : si_object_of(call, H_LINK, handle);
}

CUresult si_cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *out) {
    error_log log;
    ENTER_DRIVER(cuLinkCreate);
    if (!si_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!out || check_options(count, options, values, &log))
        return CUDA_ERROR_INVALID_VALUE;
    int code = sticky(si_me.current);
    lock();
    if (code)
        return finish(code);
    link_state *l = si_allocate(sizeof *l);
    l->log = log;
    live_links++;
    *out = si_new_handle(H_LINK, l);
    return finish(0);
}

static int add_text(link_state *l, const char *data, size_t size) {
    char error[256] = "";
    if (l->text)
        return CUDA_ERROR_NOT_SUPPORTED; /* CUDA links several; the interpreter runs one */
    char *text = si_allocate(size + 1);
    memcpy(text, data, size);
    ptx_module *m = ptx_load(text, error, sizeof error);
    if (!m) {
        free(text);
        write_error(&l->log, error);
        return CUDA_ERROR_INVALID_PTX;
    }
    ptx_unload(m);
    l->text = text;
    return 0;
}

CUresult si_cuLinkAddData(CUlinkState handle, CUjitInputType type, void *data, size_t size,
                          const char *name, unsigned count, CUjit_option *options, void **values) {
    error_log own;
    int code;
    link_state *l = state_of("cuLinkAddData", handle, enter(F_cuLinkAddData), &code);
    (void)name;
    if (!l)
        return finish(code);
    if (!data || !size || l->image || check_options(count, options, values, &own))
        return finish(CUDA_ERROR_INVALID_VALUE);
    if (type == CU_JIT_INPUT_PTX)
        return finish(add_text(l, data, size));
    if (type != CU_JIT_INPUT_LIBRARY)
        return finish(CUDA_ERROR_NOT_SUPPORTED);
    l->has_library = 1;
    return finish(0);
}

CUresult si_cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char *path, unsigned count,
                          CUjit_option *options, void **values) {
    error_log own;
    char first;
    int code;
    link_state *l = state_of("cuLinkAddFile", handle, enter(F_cuLinkAddFile), &code);
    if (!l)
        return finish(code);
    if (!path || l->image || check_options(count, options, values, &own))
        return finish(CUDA_ERROR_INVALID_VALUE);
    if (type != CU_JIT_INPUT_LIBRARY)
        return finish(CUDA_ERROR_NOT_SUPPORTED);
    FILE *f = fopen(path, "rb");
    if (!f)
        return finish(CUDA_ERROR_FILE_NOT_FOUND);
    int has_content = fread(&first, 1, 1, f) == 1; /* a folder has none either */
    fclose(f);
    l->has_library |= has_content;
    return finish(has_content ? 0 : CUDA_ERROR_INVALID_IMAGE);
}

CUresult si_cuLinkComplete(CUlinkState handle, void **image, size_t *size) {
    char error[256] = "";
    int code;
    link_state *l = state_of("cuLinkComplete", handle, enter(F_cuLinkComplete), &code);
    if (!l)
        return finish(code);
    if (!image || l->image || !l->text)
        return finish(CUDA_ERROR_INVALID_VALUE);
    ptx_module *m = ptx_load(l->text, error, sizeof error);
    if (ptx_external(m) && !l->has_library) {
        snprintf(error, sizeof error, "error   : Undefined reference to '%s'", ptx_external(m));
        ptx_unload(m);
        write_error(&l->log, error);
        return finish(CUDA_ERROR_INVALID_PTX);
    }
    ptx_unload(m);
    size_t head = strlen(si_link_mark), length = strlen(l->text);
    l->image = si_allocate(head + length + 1);
    memcpy(l->image, si_link_mark, head);
    memcpy(l->image + head, l->text, length);
    *image = l->image;
    if (size)
        *size = head + length + 1;
    return finish(0);
}

/* The image is overwritten: nobody may load it from now on. */
CUresult si_cuLinkDestroy(CUlinkState handle) {
    int code = enter(F_cuLinkDestroy);
    if (refused(code))
        return (CUresult)code;
    lock();
    link_state *l = si_object_of("cuLinkDestroy", H_LINK, handle);
    si_drop_handle("cuLinkDestroy", H_LINK, handle);
    live_links--;
    if (l->image)
        memset(l->image, 0xa5, strlen(l->image));
    free(l->image);
    free(l->text);
    free(l);
    return finish(code);
}
