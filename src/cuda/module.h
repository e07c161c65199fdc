/* cuda/module.h - kernel images and functions.

   Loads the image of a kernel on a device and finds its function (ds__cuda_ready), and unloads
   images without users. ds__cuda_loaded gives the function of a kernel on a device without a lock.
   Implements the entries kernel_load and kernel_destroy.

   Invariants: Kernels with the same device and image address share a module, which counts its
   users; the address of an image in pieces is that of the array. A module without users is never
   used again, because its address may belong to another image by then. It is unloaded after a wait
   for the device, or at once if no function was found in it. `function` is stored last, with
   release order.
   Locks: ds__cuda_ready, ds__cuda_kernel_destroy and ds__cuda_take_modules take ds__cuda.mutex;
   ds__cuda_load_module, ds__cuda_load_function and ds__cuda_load expect it. It is held while the
   driver compiles PTX, so other loads wait. ds__cuda_unload needs no lock.
   Threads: any. Loading and unloading run in relaxed capture mode. ds__cuda_kernel_destroy runs
   when nothing can launch the kernel any more; the module stays loaded for pending launches until
   the device has been waited for. */
#ifndef DS__CUDA_MODULE_H
#define DS__CUDA_MODULE_H

#include "../base/error.h"
#include "../base/ptx_text.h"
#include "types.h"
#include "call.h"
#include "device.h"

/* PTX without its terminating zero, which the driver needs; cubins begin with ELF's four bytes,
   fatbins with one of two others. */
static int ds__cuda_is_unended_text(const char *image, size_t size) {
    return size > 4 && image[size - 1] != 0 && memcmp(image, "\177ELF", 4) != 0 &&
           memcmp(image, "\x50\xed\x55\xba", 4) != 0 && memcmp(image, "\xb1\x43\x62\x46", 4) != 0;
}

/* Gives an image to the driver, which writes the reason of a refusal to `log`. The driver also
   overwrites the size of the log, even if the thread has no context yet, so each call needs the
   options anew. */
static int ds__cuda_load_image(const void *image, char *log, size_t log_size, void **out) {
    int options[] = { 5 /* CU_JIT_ERROR_LOG_BUFFER */, 6 /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */ };
    void *values[] = { log, (void *)(uintptr_t)log_size };
    return ds__cuda.cuModuleLoadDataEx(out, image, 2, options, values);
}

/* The address that stands for the image of a kernel. */
static const void *ds__cuda_image_key(const ds__kernel *k) {
    return k->cuda.image_pieces ? (const void *)k->cuda.image_pieces : k->cuda.image;
}

/* Makes a copy of an image that the driver cannot take as it is: pieces, or text without an end.
   *out is NULL if it can. Returns 0 if there is no memory. */
static int ds__cuda_copy_image(const ds_kernel_cuda *c, char **out) {
    *out = NULL;
    if (c->image_pieces) {
        *out = ds__ptx_join(c->image_pieces);
        return *out != NULL;
    }
    if (!ds__cuda_is_unended_text(c->image, c->image_size))
        return 1;
    *out = ds__host_alloc(c->image_size + 1);
    if (*out)
        memcpy(*out, c->image, c->image_size);
    return *out != NULL;
}

/* Loads the image of a kernel. The mutex is held and the device current. */
static ds_result ds__cuda_load_native(const ds__cuda_scope *scope, const ds__kernel *k,
                                      void **out) {
    char log[300] = "";
    char *copy;
    if (!ds__cuda_copy_image(&k->cuda, &copy))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
    const void *image = copy ? copy : k->cuda.image;
    int code = ds__cuda_load_image(image, log, sizeof log, out);
    if (code == DS__CUDA_NO_CONTEXT && ds__cuda_bind(scope))
        code = ds__cuda_load_image(image, log, sizeof log, out);
    ds__host_free(copy);
    if (!code)
        return DS_OK;
    ds_result r = ds__cuda_fail(scope, "cuModuleLoadDataEx", code);
    log[sizeof log - 1] = 0;
    for (char *c = log; *c; c++)
        if (*c == '\n')
            *c = ' ';
    return ds__fail_append(r, "; kernel %s could not be loaded%s%s", k->name, *log ? ": " : "",
                           log);
}

/* Returns the module of a kernel's image on the device, with one more user. The mutex is held and
   the device current. */
static ds_result ds__cuda_load_module(const ds__cuda_scope *scope, const ds__kernel *k,
                                      ds__cuda_module **out) {
    const void *key = ds__cuda_image_key(k);
    ds__cuda_module *m = ds__cuda.modules;
    /* one without users may be of an image that is gone, whose address another one has now */
    while (m && (!m->users || m->image != key || m->device != scope->device))
        m = m->next;
    if (!m) {
        m = ds__host_alloc(sizeof *m);
        if (!m)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
        ds_result r = ds__cuda_load_native(scope, k, &m->module);
        if (r < 0) {
            ds__host_free(m);
            return r;
        }
        m->image = key;
        m->device = scope->device;
        m->next = ds__cuda.modules;
        ds__cuda.modules = m;
    }
    m->users++;
    *out = m;
    return DS_OK;
}

/* The function of an image, and how much dynamic shared memory it may have without asking for
   more. */
static ds_result ds__cuda_load_function(const ds__cuda_scope *scope, const ds__kernel *k,
                                        ds__cuda_function *f, void **out, int *out_shared) {
    int code;
    ds_result r = ds__cuda_load_module(scope, k, &f->module);
    if (r < 0)
        return r;
    const char *call = "cuModuleGetFunction";
    DS__DR_CODE(*scope, code, cuModuleGetFunction, (out, f->module->module, k->cuda.entry));
    if (!code) {
        call = "cuFuncGetAttribute";
        DS__DR_CODE(*scope, code, cuFuncGetAttribute, (out_shared, DS__CUDA_MAX_SHARED, *out));
    }
    if (!code)
        return DS_OK;
    r = ds__fail_append(ds__cuda_fail(scope, call, code),
                        "; function \"%s\" of the image of kernel %s", k->cuda.entry, k->name);
    if (--f->module->users == 0) { /* nothing can run it */
        ds__cuda_module **p = &ds__cuda.modules;
        while (*p != f->module)
            p = &(*p)->next;
        *p = f->module->next;
        f->module->next = NULL;
        ds__cuda_unload(scope, f->module);
    }
    f->module = NULL;
    return r;
}

static ds_result ds__cuda_load(const ds__cuda_scope *scope, ds__kernel *k) {
    ds__cuda_function *f = atomic_load(&k->native);
    if (!f && !(f = ds__host_alloc((size_t)ds__cuda.devices * sizeof *f)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
    atomic_store(&k->native, f);
    f += scope->device;
    /* by another thread */
    if (atomic_load(&f->function))
        return DS_OK;
    void *function = (void *)(uintptr_t)k->cuda.native_fn;
    int shared = 0;
    ds_result r;
    if (function) {
        struct cudaFuncAttributes a;
        r = ds__name_object(DS__RT(*scope, cudaFuncGetAttributes, (&a, function)), "kernel",
                            k->name);
        if (r == DS_OK)
            shared = a.maxDynamicSharedSizeBytes;
    } else {
        r = ds__cuda_load_function(scope, k, f, &function, &shared);
    }
    if (r < 0)
        return r;
    atomic_store(&f->shared, (unsigned)shared);
    atomic_store_explicit(&f->function, function, memory_order_release);
    return DS_OK;
}

/* The kernel on a device; NULL: not ready there. */
static inline ds__cuda_function *ds__cuda_loaded(ds__kernel *k, int device) {
    ds__cuda_function *f = atomic_load_explicit(&k->native, memory_order_acquire);
    return DS__LIKELY(f && atomic_load_explicit(&f[device].function, memory_order_acquire))
               ? &f[device]
               : NULL;
}

/* Inside of a scope with the device current. */
__attribute__((noinline)) static ds_result ds__cuda_ready(const ds__cuda_scope *scope,
                                                          ds__kernel *k) {
    if (!ds__cuda_image_key(k) && !k->cuda.native_fn)
        return ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CUDA form", k->name);
    if (ds__cuda_loaded(k, scope->device))
        return DS_OK;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    ds__mutex_lock(&ds__cuda.mutex);
    ds_result r = ds__cuda_load(scope, k);
    ds__mutex_unlock(&ds__cuda.mutex);
    ds__cuda_unrelax(scope, relaxed, mode);
    return r;
}

static ds_result ds__cuda_kernel_load(int device, ds__kernel *kernel) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    r = ds__cuda_ready(&scope, kernel);
    ds__cuda_leave(&scope);
    return r;
}

/* Pending launches may still need the module: it goes when the device has been waited for. */
static void ds__cuda_kernel_destroy(ds__kernel *kernel) {
    ds__cuda_function *f = atomic_load(&kernel->native);
    if (!f)
        return;
    ds__mutex_lock(&ds__cuda.mutex);
    for (int i = 0; i < ds__cuda.devices; i++)
        if (f[i].module)
            f[i].module->users--;
    ds__mutex_unlock(&ds__cuda.mutex);
    atomic_store(&kernel->native, NULL);
    ds__host_free(f);
}

/* Takes the device's modules that no kernel has any more out of the list; all: the others too. */
static ds__cuda_module *ds__cuda_take_modules(int device, int all) {
    ds__cuda_module *list = NULL;
    ds__mutex_lock(&ds__cuda.mutex);
    for (ds__cuda_module **p = &ds__cuda.modules; *p;) {
        ds__cuda_module *m = *p;
        if (m->device != device || (m->users && !all)) {
            p = &m->next;
            continue;
        }
        *p = m->next;
        m->next = list;
        list = m;
    }
    ds__mutex_unlock(&ds__cuda.mutex);
    return list;
}

/* The device is current, and nothing that is pending can run them. */
static void ds__cuda_unload(const ds__cuda_scope *scope, ds__cuda_module *list) {
    enum cudaStreamCaptureMode mode;
    if (!list)
        return;
    int relaxed = ds__cuda_relax(scope, &mode);
    while (list) {
        ds__cuda_module *m = list;
        int code;
        list = m->next;
        DS__DR_CODE(*scope, code, cuModuleUnload, (m->module));
        (void)code; /* after a failure of the device nothing can be unloaded */
        ds__host_free(m);
    }
    ds__cuda_unrelax(scope, relaxed, mode);
}

#endif
