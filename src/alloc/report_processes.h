/* alloc/report_processes.h - report of the processes that use a device.

   Implements ds_mem_write_processes, the counterpart of torch.cuda.list_gpu_processes: one line
   for each process and its memory. The driver lists the processes (device_processes). The CPU
   driver lists this process only, so the processes with shared memory follow (ds__share_list).

   Invariants: If the driver cannot list the processes, the report gives the reason and the call
   succeeds.
   Locks: none of its own. ds__share_list takes the locks of the exports. The user's writer is
   called after they are released.
   Threads: any caller's thread. devstream refuses calls from inside the writer. */
#ifndef DS__ALLOC_REPORT_PROCESSES_H
#define DS__ALLOC_REPORT_PROCESSES_H

#include "../core/internal.h"
#include "ipc_sharers.h"

DSDEF ds_result(ds_mem_write_processes)(ds_device device, ds_write_fn write_fn, void *user) {
    DS__ENTER("ds_mem_write_processes");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    DS__RESOLVE(device);
    ds__text_writer writer = { write_fn, user, 0, 0 };
    ds__processes processes;
    ds__text_writer_print(&writer, "%s:%d\n", device.type == DS_DEVICE_CUDA ? "GPU" : "CPU",
                          device.index);
    ds_result r = ds__driver_of(device)->device_processes(device.index, &processes);
    if (r < 0)
        return r;
    if (processes.unknown[0])
        ds__text_writer_print(&writer, "processes are unknown: %s\n", processes.unknown);
    else if (!processes.count)
        ds__text_writer_print(&writer, "no processes are running\n");
    for (size_t i = 0; i < processes.count; i++)
        ds__sharer_write(&writer, processes.list[i].id, processes.list[i].bytes);
    ds__host_free(processes.list);
    if (device.type == DS_DEVICE_CPU) /* the CPU driver lists this process only */
        ds__share_list(device, &writer);
    return r == DS_OK ? ds__text_writer_result(&writer) : r;
}

#endif
