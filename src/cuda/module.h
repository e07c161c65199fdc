/* cuda/module.h - kernel images and functions.

   Loads the image of a kernel on a device and finds its function (ds__cuda_ready), and unloads
   images without users. ds__cuda_loaded gives the function of a kernel on a device without a lock.
   Implements the entries kernel_load and kernel_destroy.

   Invariants: Kernels with the same device and image address share a module, which counts its
   users; the address of an image in pieces is that of the array. A module without users is never
   used again, because its address may belong to another image by then. It is unloaded after a wait
   for the device, or at once if no function was found in it. `function` is stored last, with
   release order.
   Locks: ds__cuda.mutex guards the list of modules and the publication of functions. No lock is
   held while the driver loads or compiles an image: threads that need the same image on the same
   device wait for ds__cuda.module_loaded, other threads do not wait. ds__cuda_unload takes none.
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

/* Returns 1 for PTX without the terminating zero that the driver needs. Cubins begin with the four
   bytes of ELF, fatbins with one of two other words. */
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

/* Reports that the driver has refused the image of a kernel, with the driver's log. */
static ds_result ds__cuda_image_refused(const ds__cuda_scope *scope, const ds__kernel *k, int code,
                                        char *log) {
    ds_result r = ds__cuda_fail(scope, "cuModuleLoadDataEx", code);
    for (char *c = log; *c; c++)
        if (*c == '\n')
            *c = ' ';
    return ds__fail_append(r, "; kernel %s could not be loaded%s%s", k->name, *log ? ": " : "",
                           log);
}

/* Loads the image of a kernel as a native module. The device is current. */
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
    log[sizeof log - 1] = 0;
    return code ? ds__cuda_image_refused(scope, k, code, log) : DS_OK;
}

/* Takes a module without users out of the list. The mutex is held. */
static void ds__cuda_remove_module(ds__cuda_module *m) {
    ds__cuda_module **p = &ds__cuda.modules;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    m->next = NULL;
}

/* Finds the module of an image on a device, waits while another thread loads it, and adds a user.
   If there is none, adds one that the caller must load; NULL: no memory for it. The mutex is
   held. */
static ds__cuda_module *ds__cuda_find_module(int device, const void *image) {
    for (;;) {
        ds__cuda_module *m = ds__cuda.modules;
        /* a module without users may be that of a former image at the same address */
        while (m && (!m->users || m->image != image || m->device != device))
            m = m->next;
        if (m && m->loading) {
            ds__condition_wait(&ds__cuda.module_loaded, &ds__cuda.mutex);
            continue;
        }
        if (!m) {
            m = ds__host_alloc(sizeof *m);
            if (!m)
                return NULL;
            *m = (ds__cuda_module){
                .next = ds__cuda.modules, .image = image, .device = device, .loading = 1
            };
            ds__cuda.modules = m;
        }
        m->users++;
        return m;
    }
}

/* Gives the module of a kernel's image on the scope's device, with one user more. */
static ds_result ds__cuda_load_module(const ds__cuda_scope *scope, const ds__kernel *k,
                                      ds__cuda_module **out) {
    ds__mutex_lock(&ds__cuda.mutex);
    ds__cuda_module *m = ds__cuda_find_module(scope->device, ds__cuda_image_key(k));
    ds__mutex_unlock(&ds__cuda.mutex);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
    *out = m;
    if (!m->loading)
        return DS_OK;
    ds_result r = ds__cuda_load_native(scope, k, &m->module);
    ds__mutex_lock(&ds__cuda.mutex);
    m->loading = 0;
    if (r < 0)
        ds__cuda_remove_module(m);
    ds__condition_broadcast(&ds__cuda.module_loaded);
    ds__mutex_unlock(&ds__cuda.mutex);
    if (r < 0)
        ds__host_free(m);
    return r;
}

/* Drops a user of a module. Without users it is unloaded at once: none of its functions was
   launched. */
static void ds__cuda_drop_module(const ds__cuda_scope *scope, ds__cuda_module *m) {
    ds__mutex_lock(&ds__cuda.mutex);
    int left = --m->users;
    if (!left)
        ds__cuda_remove_module(m);
    ds__mutex_unlock(&ds__cuda.mutex);
    if (!left)
        ds__cuda_unload(scope, m);
}

/* Gives the function of a kernel's image with its module, and the dynamic shared memory that a
   launch may have without a new limit. */
static ds_result ds__cuda_load_function(const ds__cuda_scope *scope, const ds__kernel *k,
                                        ds__cuda_module **out_module, void **out, int *out_shared) {
    ds_result r = ds__cuda_load_module(scope, k, out_module);
    if (r < 0)
        return r;
    DS__DR(*scope, r, cuModuleGetFunction, (out, (*out_module)->module, k->cuda.entry));
    if (r == DS_OK)
        DS__DR(*scope, r, cuFuncGetAttribute, (out_shared, DS__CUDA_MAX_SHARED, *out));
    if (r == DS_OK)
        return DS_OK;
    r = ds__fail_append(r, "; function \"%s\" of the image of kernel %s", k->cuda.entry, k->name);
    ds__cuda_drop_module(scope, *out_module);
    return r;
}

/* Finds the limit of the dynamic shared memory of a function that is linked into the program. A
   cudart knows only the functions that nvcc has registered with it, and a program may contain
   several, such as a static and a shared one. */
static ds_result ds__cuda_linked_shared(const ds__cuda_scope *scope, const ds__kernel *k,
                                        int *out) {
    struct cudaFuncAttributes a;
    cudaError_t code = DS__RT_CODE(*scope, cudaFuncGetAttributes, (&a, k->cuda.native_fn));
    if (code == cudaErrorInvalidDeviceFunction)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "kernel %s: native_fn %p is not a kernel that nvcc has registered with the "
                        "cudart of devstream (cudaFuncGetAttributes returned %d); link both with "
                        "the same cudart",
                        k->name, k->cuda.native_fn, (int)code);
    if (code != cudaSuccess)
        return ds__name_object(ds__cuda_fail(scope, "cudaFuncGetAttributes", (int)code), "kernel",
                               k->name);
    *out = a.maxDynamicSharedSizeBytes;
    return DS_OK;
}

/* Gives the table of a kernel's functions, one for each device; NULL: no memory. */
static ds__cuda_function *ds__cuda_functions(ds__kernel *k) {
    void *known = atomic_load(&k->native);
    if (known)
        return known;
    ds__cuda_function *made = ds__host_alloc((size_t)ds__cuda.devices * sizeof *made);
    if (!made || atomic_compare_exchange_strong(&k->native, &known, made))
        return made;
    ds__host_free(made);
    return known;
}

/* Finds the function of a kernel on the scope's device. */
static ds_result ds__cuda_load(const ds__cuda_scope *scope, ds__kernel *k) {
    ds__cuda_function *f = ds__cuda_functions(k);
    if (!f)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
    f += scope->device;
    void *function = (void *)(uintptr_t)k->cuda.native_fn;
    ds__cuda_module *module = NULL;
    int shared = 0;
    ds_result r = function ? ds__cuda_linked_shared(scope, k, &shared)
                           : ds__cuda_load_function(scope, k, &module, &function, &shared);
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__cuda.mutex);
    int published = atomic_load(&f->function) != NULL; /* by another thread */
    if (published && module) {
        module->users--; /* the other thread's user is left */
    } else if (!published) {
        f->module = module;
        atomic_store(&f->shared, (unsigned)shared);
        atomic_store_explicit(&f->function, function, memory_order_release);
    }
    ds__mutex_unlock(&ds__cuda.mutex);
    return DS_OK;
}

/* Returns the function of a kernel on a device, or NULL if the kernel is not loaded there. */
static inline ds__cuda_function *ds__cuda_loaded(ds__kernel *k, int device) {
    ds__cuda_function *f = atomic_load_explicit(&k->native, memory_order_acquire);
    return DS__LIKELY(f && atomic_load_explicit(&f[device].function, memory_order_acquire))
               ? &f[device]
               : NULL;
}

/* Loads a kernel on the scope's device, which is current. */
__attribute__((noinline)) static ds_result ds__cuda_ready(const ds__cuda_scope *scope,
                                                          ds__kernel *k) {
    if (!ds__cuda_image_key(k) && !k->cuda.native_fn)
        return ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CUDA form", k->name);
    if (ds__cuda_loaded(k, scope->device))
        return DS_OK;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    ds_result r = ds__cuda_load(scope, k);
    ds__cuda_unrelax(scope, relaxed, mode);
    return r;
}

static ds_result ds__cuda_kernel_load(int device, ds__kernel *kernel) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    r = ds__cuda_ready(&scope, kernel);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Frees the functions of a kernel. Their modules stay loaded for pending launches, until the device
   has been waited for. */
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

/* Takes the device's modules without users out of the list; all: those with users too. */
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

/* Unloads modules that no pending work needs. Their device is current. */
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
        (void)code; /* on a failed device no module can be unloaded */
        ds__host_free(m);
    }
    ds__cuda_unrelax(scope, relaxed, mode);
}

#endif
