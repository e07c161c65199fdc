/* In a forked child of a process that has used devstream, every function that uses a driver is
   refused before it looks at its arguments: the threads and locks of the parent do not exist in the
   child. Functions that are callable anywhere, and those that only convert, are not in the list. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "devstream_check.h"
#include "devstream_comm.h"
#include "devstream_kernel.h"
#include "devstream_ranks.h"
#include "devstream_rng.h"
#include "devstream_trace.h"

#include <sys/wait.h>
#include <unistd.h>
#include "unit.h"

static int answers; /* a pipe to the parent */

static void expect_refusal(ds_result r, const char *call) {
    char text[200];
    if (r == DS_ERR_FORKED && strstr(ds_error_get_last(), "before fork"))
        return;
    int n = snprintf(text, sizeof text, "%s is %s: %s\n", call, ds_result_get_name(r),
                     ds_error_get_last());
    if (write(answers, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1) < 0)
        _exit(1);
}

#define REFUSED(function, arguments) expect_refusal(function arguments, #function)

static void call_each(void) {
    /* clang-format off */
    REFUSED(ds_activity_start, (NULL));
    REFUSED(ds_activity_flush, ());
    REFUSED(ds_activity_stop, ());
    REFUSED(ds_capture_begin, ((ds_stream){ 0 }, (ds_capture_mode)0));
    REFUSED(ds_capture_begin_to_graph,
            ((ds_stream){ 0 }, (ds_graph){ 0 }, NULL, 0, (ds_capture_mode)0));
    REFUSED(ds_capture_end, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_capture_end_recapture, ((ds_stream){ 0 }, (ds_graph){ 0 }));
    REFUSED(ds_capture_get_status, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_capture_get_info, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_capture_get_dependencies, ((ds_stream){ 0 }, NULL, 0, NULL));
    REFUSED(ds_capture_update_dependencies, ((ds_stream){ 0 }, NULL, 0, 0));
    REFUSED(ds_capture_exchange_mode, (NULL));
    REFUSED(ds_capture_function, ((ds_stream){ 0 }, NULL, NULL, NULL));
    REFUSED(ds_comm_broadcast, (NULL, NULL, 0, NULL, NULL));
    REFUSED(ds_comm_broadcast_into, (NULL, NULL, 0, NULL));
    REFUSED(ds_comm_broadcast_coalesced, (NULL, 0, NULL, 0, 0, NULL, NULL));
    REFUSED(ds_comm_scatter, (NULL, NULL, 0, NULL, 0, NULL, NULL, NULL));
    REFUSED(ds_comm_scatter_into, (NULL, NULL, 0, 0, NULL));
    REFUSED(ds_comm_gather, (NULL, 0, 0, (ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_comm_gather_into, (NULL, 0, 0, NULL, NULL));
    REFUSED(ds_comm_reduce, (NULL, 0, (ds_reduce_op)0, (ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_comm_reduce_into, (NULL, 0, (ds_reduce_op)0, NULL, NULL));
    REFUSED(ds_comm_reduce_add, (NULL, 0, (ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_comm_reduce_add_coalesced, (NULL, 0, 0, (ds_device){ 0 }, 0, NULL, NULL));
    REFUSED(ds_comm_all_reduce, (NULL, NULL, 0, (ds_reduce_op)0, NULL));
    REFUSED(ds_comm_all_gather, (NULL, NULL, 0, NULL));
    REFUSED(ds_comm_reduce_scatter, (NULL, NULL, 0, (ds_reduce_op)0, NULL));
    REFUSED(ds_comm_all_to_all, (NULL, NULL, 0, NULL));
    REFUSED(ds_comm_barrier, (NULL, 0));
    REFUSED(ds_copy, (NULL, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_copy_with, (NULL, NULL, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_copy_2d, (NULL, 0, NULL, 0, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_copy_peer, (NULL, (ds_device){ 0 }, NULL, (ds_device){ 0 }, 0, (ds_stream){ 0 }));
    REFUSED(ds_copy_batch, (NULL, NULL, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_fill, (NULL, 0, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_fill_2d, (NULL, 0, 0, 0, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_copy_sync, (NULL, NULL, 0));
    REFUSED(ds_fill_sync, (NULL, 0, 0, 0));
    REFUSED(ds_cpu_get_stats, (NULL));
    REFUSED(ds_cpu_get_clock, (NULL));
    REFUSED(ds_cpu_set_spin, (0));
    REFUSED(ds_cpu_get_spin, (NULL));
    REFUSED(ds_backend_get_info, (0, NULL));
    REFUSED(ds_backend_format, (NULL, 0));
    REFUSED(ds_backend_format_arch_list, ((ds_device_type)0, NULL, 0));
    REFUSED(ds_device_get_count, ((ds_device_type)0, NULL));
    REFUSED(ds_device_parse, (NULL, NULL));
    REFUSED(ds_device_format, ((ds_device){ 0 }, NULL, 0));
    REFUSED(ds_device_get_current, (NULL));
    REFUSED(ds_device_set_current, ((ds_device){ 0 }));
    REFUSED(ds_device_set_default, ((ds_device){ 0 }));
    REFUSED(ds_device_get_default, (NULL));
    REFUSED(ds_device_push, ((ds_device){ 0 }));
    REFUSED(ds_device_pop, ());
    REFUSED(ds_device_get_properties, ((ds_device){ 0 }, NULL));
    REFUSED(ds_device_get_name, ((ds_device){ 0 }, NULL, 0));
    REFUSED(ds_device_get_capability, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_device_get_attribute, ((ds_device){ 0 }, (ds_attribute)0, NULL));
    REFUSED(ds_device_get_memory_info, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_device_synchronize, ((ds_device){ 0 }));
    REFUSED(ds_device_reset, ((ds_device){ 0 }));
    REFUSED(ds_device_can_access_peer, ((ds_device){ 0 }, (ds_device){ 0 }, NULL));
    REFUSED(ds_device_get_priority_range, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_device_get_utilization, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_device_get_temperature, ((ds_device){ 0 }, NULL));
    REFUSED(ds_device_get_power_draw, ((ds_device){ 0 }, NULL));
    REFUSED(ds_device_get_clock_rate, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_device_set_label, ((ds_device){ 0 }, NULL));
    REFUSED(ds_device_get_label, ((ds_device){ 0 }, NULL, 0));
    REFUSED(ds_tensor_import, (NULL, NULL));
    REFUSED(ds_tensor_import_versioned, (NULL, NULL));
    REFUSED(ds_tensor_export, (NULL, NULL));
    REFUSED(ds_tensor_export_versioned, (NULL, NULL));
    REFUSED(ds_dtype_format, ((ds_dtype){ 0 }, NULL, 0));
    REFUSED(ds_dtype_parse, (NULL, NULL));
    REFUSED(ds_event_create, (0, NULL, NULL));
    REFUSED(ds_event_create_on, ((ds_device){ 0 }, 0, NULL, NULL));
    REFUSED(ds_event_destroy, ((ds_event){ 0 }));
    REFUSED(ds_event_record, ((ds_event){ 0 }, (ds_stream){ 0 }));
    REFUSED(ds_stream_record_event, ((ds_stream){ 0 }, 0, NULL));
    REFUSED(ds_stream_wait_event, ((ds_stream){ 0 }, (ds_event){ 0 }));
    REFUSED(ds_stream_wait_stream, ((ds_stream){ 0 }, (ds_stream){ 0 }));
    REFUSED(ds_event_record_external, ((ds_event){ 0 }, (ds_stream){ 0 }));
    REFUSED(ds_stream_wait_event_external, ((ds_stream){ 0 }, (ds_event){ 0 }));
    REFUSED(ds_event_query, ((ds_event){ 0 }));
    REFUSED(ds_event_synchronize, ((ds_event){ 0 }));
    REFUSED(ds_event_synchronize_for, ((ds_event){ 0 }, 0));
    REFUSED(ds_event_get_elapsed_ms, ((ds_event){ 0 }, (ds_event){ 0 }, NULL));
    REFUSED(ds_event_get_device, ((ds_event){ 0 }, NULL));
    REFUSED(ds_event_get_flags, ((ds_event){ 0 }, NULL));
    REFUSED(ds_event_export, ((ds_event){ 0 }, NULL));
    REFUSED(ds_event_import, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_graph_create, (NULL, NULL));
    REFUSED(ds_graph_destroy, ((ds_graph){ 0 }));
    REFUSED(ds_graph_clone, ((ds_graph){ 0 }, NULL));
    REFUSED(ds_graph_find_in_clone, ((ds_graph){ 0 }, (ds_graph_node){ 0 }, NULL));
    REFUSED(ds_graph_add, ((ds_graph){ 0 }, NULL, NULL, 0, NULL));
    REFUSED(ds_graph_add_edges, ((ds_graph){ 0 }, NULL, NULL, 0));
    REFUSED(ds_graph_get_nodes, ((ds_graph){ 0 }, NULL, 0, NULL));
    REFUSED(ds_graph_get_edges, ((ds_graph){ 0 }, NULL, NULL, 0, NULL));
    REFUSED(ds_graph_get_node, ((ds_graph){ 0 }, (ds_graph_node){ 0 }, NULL, NULL));
    REFUSED(ds_graph_set_node, ((ds_graph){ 0 }, (ds_graph_node){ 0 }, NULL));
    REFUSED(ds_graph_attach, ((ds_graph){ 0 }, NULL, NULL));
    REFUSED(ds_graph_write_dot, ((ds_graph){ 0 }, 0, NULL, NULL));
    REFUSED(ds_graph_write_dot_file, ((ds_graph){ 0 }, 0, NULL));
    REFUSED(ds_graph_instantiate, ((ds_graph){ 0 }, NULL, NULL));
    REFUSED(ds_graph_upload, ((ds_graph_exec){ 0 }, (ds_stream){ 0 }));
    REFUSED(ds_graph_launch, ((ds_graph_exec){ 0 }, (ds_stream){ 0 }));
    REFUSED(ds_graph_exec_destroy, ((ds_graph_exec){ 0 }));
    REFUSED(ds_graph_exec_update, ((ds_graph_exec){ 0 }, (ds_graph){ 0 }, NULL));
    REFUSED(ds_graph_exec_set_node, ((ds_graph_exec){ 0 }, (ds_graph_node){ 0 }, NULL));
    REFUSED(ds_graph_exec_set_node_enabled, ((ds_graph_exec){ 0 }, (ds_graph_node){ 0 }, 0));
    REFUSED(ds_graph_exec_get_node_enabled, ((ds_graph_exec){ 0 }, (ds_graph_node){ 0 }, NULL));
    REFUSED(ds_graph_exec_replace_pointers, ((ds_graph_exec){ 0 }, NULL, NULL, 0, NULL));
    REFUSED(ds_stream_launch_host_func, ((ds_stream){ 0 }, NULL, NULL, NULL));
    REFUSED(ds_stream_launch_closure, ((ds_stream){ 0 }, NULL, NULL, 0, NULL));
    REFUSED(ds_stream_add_callback, ((ds_stream){ 0 }, NULL, NULL, NULL));
    REFUSED(ds_init, (NULL));
    REFUSED(ds_shutdown, ());
    REFUSED(ds_quiesce, ());
    REFUSED(ds_sync_debug_set_mode, ((ds_sync_debug_mode)0));
    REFUSED(ds_sync_debug_set_mode_text, (NULL));
    REFUSED(ds_sync_debug_get_mode, (NULL));
    REFUSED(ds_kernel_create, (NULL, NULL));
    REFUSED(ds_kernel_load, ((ds_kernel){ 0 }, (ds_device){ 0 }));
    REFUSED(ds_kernel_destroy, ((ds_kernel){ 0 }));
    REFUSED(ds_kernel_launch, ((ds_kernel){ 0 }, 0, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_kernel_launch_grid, ((ds_kernel){ 0 }, NULL, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_kernel_def_get_kernel, (NULL, NULL));
    REFUSED(ds_kernel_def_launch, (NULL, (ds_stream){ 0 }, NULL, NULL));
    REFUSED(ds_mem_alloc, (0, (ds_stream){ 0 }, NULL));
    REFUSED(ds_mem_alloc_with, (NULL, NULL));
    REFUSED(ds_mem_free, (NULL));
    REFUSED(ds_mem_record_use, (NULL, (ds_stream){ 0 }));
    REFUSED(ds_mem_record_stream, (NULL, (ds_stream){ 0 }));
    REFUSED(ds_mem_get_block, (NULL, NULL));
    REFUSED(ds_mem_empty_cache, ((ds_device){ 0 }, NULL));
    REFUSED(ds_mem_empty_stream_cache, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_mem_trim, ((ds_device){ 0 }, 0, NULL));
    REFUSED(ds_mem_configure, ((ds_device){ 0 }, NULL));
    REFUSED(ds_mem_configure_text, (NULL));
    REFUSED(ds_mem_get_config, ((ds_device){ 0 }, NULL));
    REFUSED(ds_mem_validate, ((ds_device){ 0 }));
    REFUSED(ds_mem_set_limit, ((ds_device){ 0 }, 0));
    REFUSED(ds_mem_get_limit, ((ds_device){ 0 }, NULL));
    REFUSED(ds_mem_set_fraction, ((ds_device){ 0 }, 0));
    REFUSED(ds_mem_get_fraction, ((ds_device){ 0 }, NULL));
    REFUSED(ds_mem_add_shortage_callback, (NULL, NULL));
    REFUSED(ds_mem_remove_shortage_callback, (NULL, NULL));
    REFUSED(ds_mem_add_oom_callback, (NULL, NULL));
    REFUSED(ds_mem_remove_oom_callback, (NULL, NULL));
    REFUSED(ds_mem_get_stats, ((ds_device){ 0 }, NULL));
    REFUSED(ds_pool_get_stats, ((ds_pool){ 0 }, NULL));
    REFUSED(ds_mem_stats_get_by_name, (NULL, NULL, NULL));
    REFUSED(ds_mem_reset_peak_stats, ((ds_device){ 0 }));
    REFUSED(ds_mem_reset_accumulated_stats, ((ds_device){ 0 }));
    REFUSED(ds_mem_get_driver_pool_info, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_mem_write_summary, ((ds_device){ 0 }, 0, NULL, NULL));
    REFUSED(ds_mem_write_processes, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_device_alloc, ((ds_device){ 0 }, 0, NULL));
    REFUSED(ds_device_alloc_pitch, ((ds_device){ 0 }, 0, 0, NULL, NULL));
    REFUSED(ds_device_free, (NULL));
    REFUSED(ds_pinned_alloc, (0, NULL));
    REFUSED(ds_pinned_alloc_with, (0, NULL, NULL));
    REFUSED(ds_pinned_free, (NULL));
    REFUSED(ds_pinned_register, (NULL, 0));
    REFUSED(ds_pinned_unregister, (NULL));
    REFUSED(ds_pointer_get_info, (NULL, NULL));
    REFUSED(ds_pointer_get_device, (NULL, NULL));
    REFUSED(ds_mem_pinned_alloc, (0, NULL));
    REFUSED(ds_mem_pinned_free, (NULL));
    REFUSED(ds_mem_pinned_record_use, (NULL, (ds_stream){ 0 }));
    REFUSED(ds_mem_pinned_owns, (NULL, NULL));
    REFUSED(ds_mem_pinned_empty_cache, (NULL));
    REFUSED(ds_mem_pinned_set_limit, (0));
    REFUSED(ds_mem_pinned_get_stats, (NULL));
    REFUSED(ds_mem_pinned_reset_peak_stats, ());
    REFUSED(ds_mem_pinned_reset_accumulated_stats, ());
    REFUSED(ds_plan_get, (NULL, NULL, NULL));
    REFUSED(ds_plan_write, (NULL, NULL, NULL, NULL));
    REFUSED(ds_pool_create, (NULL, NULL));
    REFUSED(ds_pool_destroy, ((ds_pool){ 0 }));
    REFUSED(ds_pool_push, ((ds_pool){ 0 }));
    REFUSED(ds_pool_pop, ());
    REFUSED(ds_capture_set_pool, ((ds_stream){ 0 }, (ds_pool){ 0 }));
    REFUSED(ds_pool_get_use_count, ((ds_pool){ 0 }, NULL));
    REFUSED(ds_pool_get_id, ((ds_pool){ 0 }, NULL));
    REFUSED(ds_pool_empty_cache, ((ds_pool){ 0 }, NULL));
    REFUSED(ds_pool_save, ((ds_pool){ 0 }, NULL));
    REFUSED(ds_pool_restore, ((ds_pool){ 0 }, NULL, NULL, NULL));
    REFUSED(ds_pool_check_live, ((ds_pool){ 0 }, NULL, 0));
    REFUSED(ds_check_get_stats, (NULL));
    REFUSED(ds_check_declare_order, ((ds_stream){ 0 }, (ds_stream){ 0 }));
    REFUSED(ds_check_declare_memory, (NULL, 0, NULL));
    REFUSED(ds_check_forget_memory, (NULL));
    REFUSED(ds_check_ignore, (NULL, 0));
    REFUSED(ds_check_set_extents, (NULL, 0));
    REFUSED(ds_check_get_point, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_check_why, ((ds_check_point){ 0 }, (ds_check_point){ 0 }, NULL, 0));
    REFUSED(ds_ranks_init, (NULL, NULL));
    REFUSED(ds_ranks_finalize, ((ds_ranks){ 0 }));
    REFUSED(ds_ranks_split, ((ds_ranks){ 0 }, 0, 0, NULL));
    REFUSED(ds_ranks_shrink, ((ds_ranks){ 0 }, NULL, 0, NULL));
    REFUSED(ds_ranks_grow_id, ((ds_ranks){ 0 }, NULL, 0));
    REFUSED(ds_ranks_grow, ((ds_ranks){ 0 }, 0, NULL));
    REFUSED(ds_ranks_register, ((ds_ranks){ 0 }, NULL, 0));
    REFUSED(ds_ranks_deregister, ((ds_ranks){ 0 }, NULL));
    REFUSED(ds_ranks_abort, ((ds_ranks){ 0 }, NULL));
    REFUSED(ds_ranks_get_status, ((ds_ranks){ 0 }));
    REFUSED(ds_ranks_get_info, ((ds_ranks){ 0 }, NULL));
    REFUSED(ds_ranks_id_create, (NULL, NULL, 0));
    REFUSED(ds_ranks_exchange, (NULL, 0, NULL));
    REFUSED(ds_ranks_send, (NULL, 0, NULL));
    REFUSED(ds_ranks_receive, (NULL, 0, NULL));
    REFUSED(ds_ranks_barrier, (NULL));
    REFUSED(ds_resource_alloc, (NULL, 0, 0, (ds_stream){ 0 }, NULL));
    REFUSED(ds_resource_free, (NULL, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_resource_create_device, ((ds_device){ 0 }, NULL));
    REFUSED(ds_resource_create_pool, ((ds_pool){ 0 }, NULL));
    REFUSED(ds_resource_create_driver_pool, (NULL));
    REFUSED(ds_resource_create_functions, (NULL, NULL, NULL, NULL));
    REFUSED(ds_resource_create_limit, (NULL, 0, NULL));
    REFUSED(ds_resource_create_stats, (NULL, NULL));
    REFUSED(ds_resource_create_log, (NULL, NULL, NULL, NULL));
    REFUSED(ds_resource_create_on_failure, (NULL, NULL, NULL, NULL));
    REFUSED(ds_resource_create_aligned, (NULL, 0, 0, NULL));
    REFUSED(ds_resource_get_stats, (NULL, NULL));
    REFUSED(ds_resource_push_stats, (NULL));
    REFUSED(ds_resource_pop_stats, (NULL, NULL));
    REFUSED(ds_resource_destroy, (NULL));
    REFUSED(ds_rng_create, (NULL, NULL));
    REFUSED(ds_rng_clone, ((ds_rng){ 0 }, NULL));
    REFUSED(ds_rng_destroy, ((ds_rng){ 0 }));
    REFUSED(ds_rng_get_default, ((ds_device){ 0 }, NULL));
    REFUSED(ds_rng_get_info, ((ds_rng){ 0 }, NULL));
    REFUSED(ds_rng_set_mapping, ((ds_rng){ 0 }, (ds_rng_mapping)0, 0, 0));
    REFUSED(ds_rng_uniform, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_normal, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_exponential, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_integers, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_bernoulli, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_bits, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_permutation, ((ds_rng){ 0 }, (ds_dtype){ 0 }, NULL, 0, (ds_stream){ 0 }));
    REFUSED(ds_rng_fill, ((ds_rng){ 0 }, NULL, (ds_stream){ 0 }));
    REFUSED(ds_rng_set_seed, ((ds_rng){ 0 }, 0));
    REFUSED(ds_rng_reseed, ((ds_rng){ 0 }, NULL));
    REFUSED(ds_rng_get_seed, ((ds_rng){ 0 }, NULL));
    REFUSED(ds_rng_get_offset, ((ds_rng){ 0 }, NULL));
    REFUSED(ds_rng_set_offset, ((ds_rng){ 0 }, 0));
    REFUSED(ds_rng_get_state, ((ds_rng){ 0 }, NULL, 0));
    REFUSED(ds_rng_set_state, ((ds_rng){ 0 }, NULL, 0));
    REFUSED(ds_rng_set_device_seed, ((ds_device){ 0 }, 0));
    REFUSED(ds_rng_set_seed_all, (0));
    REFUSED(ds_rng_reseed_device, ((ds_device){ 0 }, NULL));
    REFUSED(ds_rng_reseed_all, (NULL));
    REFUSED(ds_rng_get_device_seed, ((ds_device){ 0 }, NULL));
    REFUSED(ds_rng_get_state_all, ((ds_device_type)0, NULL, 0, NULL));
    REFUSED(ds_rng_set_state_all, ((ds_device_type)0, NULL, 0));
    REFUSED(ds_mem_export, (NULL, NULL));
    REFUSED(ds_mem_import, ((ds_device){ 0 }, NULL, (ds_stream){ 0 }, NULL));
    REFUSED(ds_mem_import_close, (NULL, (ds_stream){ 0 }));
    REFUSED(ds_mem_ipc_collect, ());
    REFUSED(ds_mem_history_start, (NULL));
    REFUSED(ds_mem_history_stop, ());
    REFUSED(ds_mem_annotate, ((ds_device){ 0 }, NULL));
    REFUSED(ds_mem_add_event_callback, (NULL, NULL));
    REFUSED(ds_mem_remove_event_callback, (NULL, NULL));
    REFUSED(ds_mem_write_snapshot, ((ds_mem_format)0, 0, (ds_pool){ 0 }, NULL, NULL));
    REFUSED(ds_mem_write_snapshot_file, ((ds_mem_format)0, 0, NULL));
    REFUSED(ds_mem_for_each_block, ((ds_device){ 0 }, NULL, NULL));
    REFUSED(ds_stream_priority_from_paddle, (0, NULL));
    REFUSED(ds_stream_create, (NULL, NULL));
    REFUSED(ds_stream_get_multiprocessors, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_ref, ((ds_stream){ 0 }));
    REFUSED(ds_stream_destroy, ((ds_stream){ 0 }));
    REFUSED(ds_stream_query, ((ds_stream){ 0 }));
    REFUSED(ds_stream_synchronize, ((ds_stream){ 0 }));
    REFUSED(ds_stream_synchronize_for, ((ds_stream){ 0 }, 0));
    REFUSED(ds_stream_get_legacy, ((ds_device){ 0 }, NULL));
    REFUSED(ds_stream_get_per_thread, ((ds_device){ 0 }, NULL));
    REFUSED(ds_stream_get_default, ((ds_device){ 0 }, NULL));
    REFUSED(ds_stream_wrap, (NULL, (ds_ownership)0, NULL, NULL, NULL));
    REFUSED(ds_stream_export, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_unwrap, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_get_id, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_get_device, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_get_flags, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_get_priority, ((ds_stream){ 0 }, NULL, NULL));
    REFUSED(ds_stream_get_label, ((ds_stream){ 0 }, NULL, 0));
    REFUSED(ds_stream_set_label, ((ds_stream){ 0 }, NULL));
    REFUSED(ds_stream_get_current, ((ds_device){ 0 }, NULL));
    REFUSED(ds_stream_set_current, ((ds_stream){ 0 }, 0, NULL));
    REFUSED(ds_stream_push, ((ds_stream){ 0 }, 0));
    REFUSED(ds_stream_pop, ());
    REFUSED(ds_tensor_check, (NULL));
    REFUSED(ds_tensor_alloc, ((ds_dtype){ 0 }, 0, NULL, (ds_stream){ 0 }, NULL));
    REFUSED(ds_tensor_alloc_pinned, ((ds_dtype){ 0 }, 0, NULL, NULL));
    REFUSED(ds_tensor_alloc_like, (NULL, (ds_stream){ 0 }, NULL));
    REFUSED(ds_tensor_wrap, (NULL, 0, NULL, NULL, NULL));
    REFUSED(ds_tensor_free, (NULL));
    REFUSED(ds_tensor_get_flags, (NULL, NULL));
    REFUSED(ds_tensor_view, (NULL, 0, NULL, NULL));
    REFUSED(ds_tensor_narrow, (NULL, 0, 0, 0, NULL));
    REFUSED(ds_tensor_slice, (NULL, 0, 0, 0, 0, NULL));
    REFUSED(ds_tensor_select, (NULL, 0, 0, NULL));
    REFUSED(ds_tensor_permute, (NULL, NULL, NULL));
    REFUSED(ds_tensor_transpose, (NULL, 0, 0, NULL));
    REFUSED(ds_tensor_as_real, (NULL, NULL));
    REFUSED(ds_tensor_as_host, (NULL, NULL));
    REFUSED(ds_topology_create_of_text, (NULL, NULL));
    REFUSED(ds_topology_create_of_file, (NULL, NULL));
    REFUSED(ds_topology_create_of_devices, (NULL, 0, 0, NULL));
    REFUSED(ds_topology_write, (NULL, (ds_topology_format)0, NULL, NULL));
    REFUSED(ds_topology_get_fabric, (NULL, NULL));
    REFUSED(ds_trace_start, (NULL));
    REFUSED(ds_trace_stop, ());
    REFUSED(ds_trace_flush, ());
    REFUSED(ds_trace_dump, (NULL));
    REFUSED(ds_trace_summary, (NULL, 0));
    REFUSED(ds_trace_standing, (NULL, 0));
    REFUSED(ds_trace_get_stats, (NULL));
    REFUSED(ds_stream_wait_value32, ((ds_stream){ 0 }, NULL, 0, (ds_value_kind)0));
    REFUSED(ds_stream_wait_value64, ((ds_stream){ 0 }, NULL, 0, (ds_value_kind)0));
    REFUSED(ds_stream_write_value32, ((ds_stream){ 0 }, NULL, 0));
    REFUSED(ds_stream_write_value64, ((ds_stream){ 0 }, NULL, 0));
    REFUSED(ds_stream_batch_values, ((ds_stream){ 0 }, NULL, 0));
    /* clang-format on */
}

static void test_every_function_is_refused_in_a_forked_child(void **state) {
    ds_stream s;
    char text[2000] = "";
    int to[2], status = -1;
    size_t n = 0;
    ssize_t more;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    assert_int_equal(pipe(to), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        close(to[0]);
        answers = to[1];
        call_each();
        /* some have no result */
        if (ds_stream_equal(s, s) || ds_backend_is_available(DS_DEVICE_CPU) ||
            ds_mem_get_allocated(ds_cpu(0)))
            expect_refusal(DS_OK, "a function without a result");
        ds_stream_scope_leave(&(ds_scope){ 0, 0 });
        _exit(0);
    }
    close(to[1]);
    while ((more = read(to[0], text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)more;
    close(to[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (*text)
        fail_msg("%s", text);
    assert_int_equal(status, 0);
    ok(ds_stream_destroy(s)); /* the parent is as before */
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_function_is_refused_in_a_forked_child),
    };
    return cmocka_run_group_tests_name("forked", tests, NULL, NULL);
}
