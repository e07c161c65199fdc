/* cuda/condition.h - the kernel that sets the conditions of conditional nodes.

   Finds the functions for conditional nodes in the driver library (ds__cuda_find_conditions), and
   gives the kernel that copies a word into a condition (ds__cuda_condition_setter). Only code of a
   device can set a condition, by cudaGraphSetConditional, which ptxas of CUDA 13 knows by itself. A
   driver that does not know it gets the kernel linked with libcudadevrt.a of the machine.

   Invariants: each device has its own kernel, which stays loaded until shutdown.
   Locks: ds__cuda.mutex for the table of kernels only; a kernel is linked and loaded without a
   lock. If two threads do so at once, one of the modules is unloaded.
   Threads: any. ds__cuda_find_conditions runs during initialisation, ds__cuda_end_conditions during
   shutdown. */
#ifndef DS__CUDA_CONDITION_H
#define DS__CUDA_CONDITION_H

#include "types.h"
#include "call.h"

static const char ds__cuda_setter_ptx[] =
    ".version 6.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);\n"
    ".visible .entry ds_condition (.param .u64 handle, .param .u64 word) {\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [handle];\n"
    "    ld.param.u64 %rd2, [word];\n"
    "    cvta.to.global.u64 %rd3, %rd2;\n"
    "    ld.volatile.global.u32 %r1, [%rd3];\n"
    "    {\n"
    "    .param .b64 a0;\n"
    "    .param .b32 a1;\n"
    "    st.param.b64 [a0+0], %rd1;\n"
    "    st.param.b32 [a1+0], %r1;\n"
    "    call.uni cudaGraphSetConditional, (a0, a1);\n"
    "    }\n"
    "    ret;\n"
    "}\n";

/* Finds the functions; condition_node stays NULL if one is missing. driver: the version of the
   driver library. From 12.8 on, an if has an else, and there is a switch. */
static void ds__cuda_find_conditions(const ds__cuda_scope *scope, int driver) {
    static const ds__cuda_optional list[] = {
        { "cuGraphConditionalHandleCreate", 12030, &ds__cuda.condition_handle },
        { "cuLinkCreate", 11080, &ds__cuda.link_create },
        { "cuLinkAddData", 11080, &ds__cuda.link_data },
        { "cuLinkAddFile", 11080, &ds__cuda.link_file },
        { "cuLinkComplete", 11080, &ds__cuda.link_complete },
        { "cuLinkDestroy", 11080, &ds__cuda.link_destroy },
        { "cuGraphAddNode", 12020, &ds__cuda.condition_node }, /* without data of edges */
    };

    ds__cuda.condition_node = NULL;
    if (driver >= 12080)
        (void)ds__cuda_find_optional(scope, list, sizeof list / sizeof list[0]);
}

/* Returns 1 if base/folder/libcudadevrt.a exists, and writes its path. */
static int ds__cuda_devrt_at(const char *base, const char *folder, char *out, size_t size) {
    int n = snprintf(out, size, "%s/%s/libcudadevrt.a", base, folder);
    FILE *f = n > 0 && (size_t)n < size ? fopen(out, "rb") : NULL;
    if (f)
        fclose(f);
    return f != NULL;
}

/* Writes the path of libcudadevrt.a: the file that DEVSTREAM_CUDADEVRT names, else that of the
   toolkit. Returns 0 if there is none. */
static int ds__cuda_find_devrt(char *out, size_t size) {
    const char *const homes[] = { ds__os_environment("CUDA_HOME"), ds__os_environment("CUDA_PATH"),
                                  "/usr/local/cuda" };
    const char *file = ds__os_environment("DEVSTREAM_CUDADEVRT");
    if (file)
        return snprintf(out, size, "%s", file) < (int)size;
    for (size_t i = 0; i < sizeof homes / sizeof homes[0]; i++)
        if (homes[i] && (ds__cuda_devrt_at(homes[i], "lib64", out, size) ||
                         ds__cuda_devrt_at(homes[i], "lib", out, size)))
            return 1;
    return 0;
}

/* Links the kernel with the library, and loads it on the current device. Returns the code of the
   failed call, whose name is *call, or 0. */
static int ds__cuda_setter_load(const char *library, char *log, size_t log_size, void **out,
                                const char **call) {
    int options[] = { 5 /* CU_JIT_ERROR_LOG_BUFFER */, 6 /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */ };
    void *values[] = { log, (void *)(uintptr_t)log_size };
    void *link = NULL;
    void *image = NULL;
    size_t size = 0;
    *call = "cuLinkCreate";
    int code = ds__cuda.link_create(2, options, values, &link);
    if (code)
        return code;
    *call = "cuLinkAddData";
    code =
        ds__cuda.link_data(link, 1 /* CU_JIT_INPUT_PTX */, (void *)(uintptr_t)ds__cuda_setter_ptx,
                           sizeof ds__cuda_setter_ptx, "ds_condition", 0, NULL, NULL);
    if (!code) {
        *call = "cuLinkAddFile";
        code = ds__cuda.link_file(link, 4 /* CU_JIT_INPUT_LIBRARY */, library, 0, NULL, NULL);
    }
    if (!code) {
        *call = "cuLinkComplete";
        code = ds__cuda.link_complete(link, &image, &size);
    }
    if (!code) {
        *call = "cuModuleLoadDataEx";
        code = ds__cuda.cuModuleLoadDataEx(out, image, 0, NULL, NULL);
    }
    (void)ds__cuda.link_destroy(link);
    return code;
}

/* Loads the kernel without the library. Returns the code of CUDA. */
static int ds__cuda_setter_load_plain(const ds__cuda_scope *scope, void **out) {
    int code = ds__cuda.cuModuleLoadDataEx(out, ds__cuda_setter_ptx, 0, NULL, NULL);
    if (code == DS__CUDA_NO_CONTEXT && ds__cuda_bind(scope))
        code = ds__cuda.cuModuleLoadDataEx(out, ds__cuda_setter_ptx, 0, NULL, NULL);
    return code;
}

/* Loads the kernel on the scope's device: as it is, or linked with the library if the driver
   refuses the text. */
static ds_result ds__cuda_setter_create(const ds__cuda_scope *scope, void **out) {
    char path[1024];
    char log[300] = "";
    const char *call = "cuModuleLoadDataEx";
    int code = ds__cuda_setter_load_plain(scope, out);
    if (code != DS__CUDA_INVALID_PTX && code != DS__CUDA_INVALID_IMAGE)
        return code ? ds__cuda_fail(scope, call, code) : DS_OK;
    if (!ds__cuda_find_devrt(path, sizeof path))
        return ds__fail(
            DS_ERR_UNSUPPORTED,
            "the driver needs libcudadevrt.a of the CUDA toolkit for conditional nodes, "
            "which was not found; set DEVSTREAM_CUDADEVRT to its path");
    code = ds__cuda_setter_load(path, log, sizeof log, out, &call);
    log[sizeof log - 1] = 0;
    if (!code)
        return DS_OK;
    ds_result r = ds__cuda_fail(scope, call, code);
    return ds__fail_append(r, "; the kernel for conditional nodes could not be linked with %s%s%s",
                           path, *log ? ": " : "", log);
}

/* Gives the kernel of the scope's device: arguments are the handle of the condition and the address
   of the word. */
static ds_result ds__cuda_condition_setter(const ds__cuda_scope *scope, void **out) {
    void *module = NULL;
    void *function = NULL;
    int device = scope->device;
    if (!ds__cuda.condition_node)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "conditional nodes need a driver of CUDA 12.8 or newer");
    *out = atomic_load(&ds__cuda.setter[device]);
    if (*out)
        return DS_OK;
    enum cudaStreamCaptureMode mode;
    /* an open capture must not forbid the load */
    int relaxed = ds__cuda_relax(scope, &mode);
    ds_result r = ds__cuda_setter_create(scope, &module);
    if (r == DS_OK)
        DS__DR(*scope, r, cuModuleGetFunction, (&function, module, "ds_condition"));
    ds__cuda_unrelax(scope, relaxed, mode);
    if (r == DS_OK) {
        ds__mutex_lock(&ds__cuda.mutex);
        *out = atomic_load(&ds__cuda.setter[device]);
        if (!*out) {
            ds__cuda.setter_module[device] = module;
            atomic_store(&ds__cuda.setter[device], function);
            *out = function;
            module = NULL;
        }
        ds__mutex_unlock(&ds__cuda.mutex);
    }
    if (module)
        (void)ds__cuda.cuModuleUnload(module);
    return r;
}

static ds_result ds__cuda_condition_load(int device) {
    ds__cuda_scope scope;
    void *function;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    r = ds__cuda_condition_setter(&scope, &function);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Unloads the kernel of a device. Inside of a scope of the device. */
static void ds__cuda_end_conditions(int device) {
    if (ds__cuda.setter_module[device])
        (void)ds__cuda.cuModuleUnload(ds__cuda.setter_module[device]);
    ds__cuda.setter_module[device] = NULL;
    atomic_store(&ds__cuda.setter[device], (void *)NULL);
}

#endif
