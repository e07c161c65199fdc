/* alloc/report_processes.h - report of the processes that use a device.

   Implements ds_mem_list_processes, the counterpart of torch.cuda.list_gpu_processes: one line
   for each process and its memory. For a GPU, NVML is asked (ds__nvml_write). For a CPU device,
   the report has this process and the processes with shared memory (ds__share_list).

   Invariants: ds__nvml_process and ds__nvml_process_v1 have the layout of nvml.h. If NVML is
   missing or fails, the report says so and the call still succeeds.
   Locks: none of its own. core/nvml.h takes a lock to load NVML, and ds__share_list takes those
   of the exports. The user's writer is called after they are released.
   Threads: any caller's thread. devstream refuses calls from inside the writer. */
#ifndef DS__ALLOC_REPORT_PROCESSES_H
#define DS__ALLOC_REPORT_PROCESSES_H

#include "../core/init.h"
#include "../core/thread.h"
#include "../core/device.h"
#include "../core/nvml.h"
#include "../core/graph_dot.h"
#include "ipc_sharers.h"

/* As in nvml.h. */
typedef struct ds__nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
} ds__nvml_process;

typedef struct ds__nvml_process_v1 {
    unsigned pid;
    unsigned long long bytes;
} ds__nvml_process_v1;

static int ds__nvml_write(const ds__nvml *n, void *device, ds__pen *p) {
    unsigned room = 64;
    unsigned count = 0;
    int code = DS__NVML_TOO_SMALL;
    for (int i = 0; i < 8 && code == DS__NVML_TOO_SMALL; i++) { /* more may start meanwhile */
        ds__nvml_process *list = ds__alloc(room * sizeof *list);
        if (!list)
            return DS__NVML_TOO_SMALL;
        count = room;
        code = n->processes(device, &count, list);
        if (code == 0 && count == 0)
            ds__pen_print(p, "no processes are running\n");
        for (unsigned k = 0; code == 0 && k < count && k < room; k++) {
            const ds__nvml_process_v1 *old = (const ds__nvml_process_v1 *)list + k;
            ds__mprocess(p, n->old ? old->pid : list[k].pid, n->old ? old->bytes : list[k].bytes);
        }
        ds__release(list);
        room = count > room ? count + 16 : 2 * room;
    }
    return code;
}

static ds_result ds__mprocesses_cuda(ds_device device, ds__pen *p) {
    ds_device_properties properties;
    const char *why;
    void *handle = NULL;
    ds_result r = ds__driver_of(device)->device_properties(device.index, &properties);
    if (r < 0)
        return r;
    const ds__nvml *n = ds__nvml_open(&why);
    if (!n) {
        ds__pen_print(p, "processes are unknown: NVML (%s) tells them, and %s\n", ds__nvml_path(),
                      why);
        return DS_OK;
    }
    int code = ds__nvml_device(n, &properties, &handle);
    if (code == 0)
        code = ds__nvml_write(n, handle, p);
    if (code != 0)
        ds__pen_print(p, "processes are unknown: NVML says %d (%s)\n", code, n->text(code));
    return DS_OK;
}

DSDEF ds_result(ds_mem_list_processes)(ds_device device, ds_write_fn write_fn, void *user) {
    DS__ENTER("ds_mem_list_processes");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    DS__RESOLVE(device);
    ds__pen pen = { write_fn, user, 0, 0 };
    ds_result r = DS_OK;
    size_t avail = 0;
    size_t total = 0;
    ds__pen_print(&pen, "%s:%d\n", device.type == DS_DEVICE_CUDA ? "GPU" : "CPU", device.index);
    if (device.type == DS_DEVICE_CUDA)
        r = ds__mprocesses_cuda(device, &pen);
    else if ((r = ds__driver_of(device)->device_memory(device.index, &avail, &total)) == DS_OK) {
        if (total > avail)
            ds__mprocess(&pen, (unsigned)getpid(), total - avail);
        else
            ds__pen_print(&pen, "no processes are running\n");
        ds__share_list(device, &pen);
    }
    return r == DS_OK && pen.stopped
               ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", pen.stopped)
               : r;
}

#endif
