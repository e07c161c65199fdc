/* abi.h - size and layout of every public struct, for processors with pointers of 64 bits.

   A line that fails to compile means that programs which were compiled against an earlier 0.1.x
   would break. A new member takes words from the front of `reserved`: add a line for the member and
   move the line of `reserved`. No other line changes before the next series (0.2). tests/abi.sh
   checks that no struct and no member is missing here. */
#ifndef ABI_H
#define ABI_H

#define SIZE(type, bytes) \
    _Static_assert(sizeof(struct type) == (bytes), "the size of " #type " has changed")
#define AT(type, member, offset) \
    _Static_assert(offsetof(struct type, member) == (offset), #type "." #member " has moved")

#if UINTPTR_MAX == UINT64_MAX

SIZE(ds_capture_info, 80);
AT(ds_capture_info, status, 0);
AT(ds_capture_info, mode, 4);
AT(ds_capture_info, id, 8);
AT(ds_capture_info, graph, 16);
AT(ds_capture_info, dependency_count, 24);
AT(ds_capture_info, begun, 32);
AT(ds_capture_info, reserved, 48);

SIZE(ds_check_item, 40);
AT(ds_check_item, result, 0);
AT(ds_check_item, text, 8);
AT(ds_check_item, file, 16);
AT(ds_check_item, line, 24);
AT(ds_check_item, error, 32);

SIZE(ds_hazard_access, 80);
AT(ds_hazard_access, operation, 0);
AT(ds_hazard_access, file, 8);
AT(ds_hazard_access, line, 16);
AT(ds_hazard_access, thread, 20);
AT(ds_hazard_access, stream, 24);
AT(ds_hazard_access, sequence, 32);
AT(ds_hazard_access, ptr, 40);
AT(ds_hazard_access, width, 48);
AT(ds_hazard_access, pitch, 56);
AT(ds_hazard_access, rows, 64);
AT(ds_hazard_access, inexact, 72);

SIZE(ds_hazard_report, 304);
AT(ds_hazard_report, hazard, 0);
AT(ds_hazard_report, possible, 4);
AT(ds_hazard_report, number, 8);
AT(ds_hazard_report, now, 16);
AT(ds_hazard_report, before, 96);
AT(ds_hazard_report, label, 176);
AT(ds_hazard_report, base, 184);
AT(ds_hazard_report, bytes, 192);
AT(ds_hazard_report, file, 200);
AT(ds_hazard_report, line, 208);
AT(ds_hazard_report, order, 216);
AT(ds_hazard_report, missed, 224);
AT(ds_hazard_report, fix, 232);
AT(ds_hazard_report, key, 240);
AT(ds_hazard_report, text, 248);
AT(ds_hazard_report, reserved, 256);

SIZE(ds_check_stats, 160);
AT(ds_check_stats, reports, 0);
AT(ds_check_stats, repeated, 8);
AT(ds_check_stats, possible, 16);
AT(ds_check_stats, suppressed, 24);
AT(ds_check_stats, operations, 32);
AT(ds_check_stats, accesses, 40);
AT(ds_check_stats, inexact, 48);
AT(ds_check_stats, unchecked, 56);
AT(ds_check_stats, ranges, 64);
AT(ds_check_stats, records, 72);
AT(ds_check_stats, bytes, 80);
AT(ds_check_stats, timelines, 88);
AT(ds_check_stats, evicted, 96);
AT(ds_check_stats, undeclared, 104);
AT(ds_check_stats, reserved, 112);

SIZE(ds_trace_desc, 88);
AT(ds_trace_desc, file, 0);
AT(ds_trace_desc, dump, 8);
AT(ds_trace_desc, ring, 16);
AT(ds_trace_desc, timeout_ns, 24);
AT(ds_trace_desc, signal, 32);
AT(ds_trace_desc, cupti, 36);
AT(ds_trace_desc, reserved, 40);

SIZE(ds_trace_stats, 96);
AT(ds_trace_stats, operations, 0);
AT(ds_trace_stats, records, 8);
AT(ds_trace_stats, dropped, 16);
AT(ds_trace_stats, written, 24);
AT(ds_trace_stats, bytes, 32);
AT(ds_trace_stats, kept, 40);
AT(ds_trace_stats, untimed, 48);
AT(ds_trace_stats, reserved, 56);

SIZE(ds_check_point, 16);
AT(ds_check_point, line, 0);
AT(ds_check_point, reserved, 4);
AT(ds_check_point, sequence, 8);

SIZE(ds_comm_options, 96);
AT(ds_comm_options, streams, 0);
AT(ds_comm_options, stream_count, 8);
AT(ds_comm_options, stream, 16);
AT(ds_comm_options, flags, 24);
AT(ds_comm_options, topology, 32);
AT(ds_comm_options, plan, 40);
AT(ds_comm_options, ranks, 48);
AT(ds_comm_options, root, 56);
AT(ds_comm_options, ranks_options, 64);
AT(ds_comm_options, engine, 72);
AT(ds_comm_options, reserved, 80);

SIZE(ds_cpu_route, 32);
AT(ds_cpu_route, latency_ns, 0);
AT(ds_cpu_route, direct, 8);
AT(ds_cpu_route, hops, 16);
AT(ds_cpu_route, link, 24);

SIZE(ds_cpu_fabric, 96);
AT(ds_cpu_fabric, devices, 0);
AT(ds_cpu_fabric, links, 8);
AT(ds_cpu_fabric, link_bytes_per_s, 16);
AT(ds_cpu_fabric, route, 24);
AT(ds_cpu_fabric, engines, 32);
AT(ds_cpu_fabric, engine_ns, 40);
AT(ds_cpu_fabric, memory_bytes_per_s, 48);
AT(ds_cpu_fabric, flags, 56);
AT(ds_cpu_fabric, reserved, 64);

SIZE(ds_activity, 160);
AT(ds_activity, kind, 0);
AT(ds_activity, result, 4);
AT(ds_activity, stream, 8);
AT(ds_activity, device, 16);
AT(ds_activity, begin_ns, 24);
AT(ds_activity, end_ns, 32);
AT(ds_activity, enqueue_ns, 40);
AT(ds_activity, bytes, 48);
AT(ds_activity, count, 56);
AT(ds_activity, correlation_id, 64);
AT(ds_activity, external_id, 72);
AT(ds_activity, name, 80);
AT(ds_activity, call, 88);
AT(ds_activity, file, 96);
AT(ds_activity, line, 104);
AT(ds_activity, thread, 108);
AT(ds_activity, dst_device, 112);
AT(ds_activity, src_device, 120);
AT(ds_activity, cause_id, 128);
AT(ds_activity, reserved, 136);
SIZE(ds_activity_batch, 56);
AT(ds_activity_batch, records, 0);
AT(ds_activity_batch, count, 8);
AT(ds_activity_batch, dropped, 16);
AT(ds_activity_batch, reserved, 24);
SIZE(ds_activity_desc, 80);
AT(ds_activity_desc, fn, 0);
AT(ds_activity_desc, user, 8);
AT(ds_activity_desc, capacity, 16);
AT(ds_activity_desc, kinds, 24);
AT(ds_activity_desc, reserved, 32);
SIZE(ds_cpu_desc, 112);
AT(ds_cpu_desc, devices, 0);
AT(ds_cpu_desc, workers, 4);
AT(ds_cpu_desc, memory_limit, 8);
AT(ds_cpu_desc, peer_access, 16);
AT(ds_cpu_desc, flags, 24);
AT(ds_cpu_desc, seed, 32);
AT(ds_cpu_desc, fabric, 40);
AT(ds_cpu_desc, affinity, 48);
AT(ds_cpu_desc, reserved, 56);

SIZE(ds_cpu_stats, 120);
AT(ds_cpu_stats, operations, 0);
AT(ds_cpu_stats, staged_copies, 8);
AT(ds_cpu_stats, inline_operations, 16);
AT(ds_cpu_stats, helped, 24);
AT(ds_cpu_stats, workers, 32);
AT(ds_cpu_stats, host_threads, 36);
AT(ds_cpu_stats, streams, 40);
AT(ds_cpu_stats, queue_bytes, 48);
AT(ds_cpu_stats, reserved, 56);

SIZE(ds_device, 8);
AT(ds_device, type, 0);
AT(ds_device, index, 4);

SIZE(ds_backend_info, 248);
AT(ds_backend_info, name, 0);
AT(ds_backend_info, type, 8);
AT(ds_backend_info, available, 12);
AT(ds_backend_info, device_count, 16);
AT(ds_backend_info, reason, 20);
AT(ds_backend_info, reserved, 216);

SIZE(ds_device_properties, 320);
AT(ds_device_properties, name, 0);
AT(ds_device_properties, major, 128);
AT(ds_device_properties, minor, 132);
AT(ds_device_properties, total_memory, 136);
AT(ds_device_properties, multiprocessors, 144);
AT(ds_device_properties, uuid, 148);
AT(ds_device_properties, pci, 164);
AT(ds_device_properties, unified_addressing, 184);
AT(ds_device_properties, reserved, 192);

SIZE(ds_managed_tensor, 64);
AT(ds_managed_tensor, tensor, 0);
AT(ds_managed_tensor, manager_ctx, 48);
AT(ds_managed_tensor, deleter, 56);

SIZE(ds_dlpack_version, 8);
AT(ds_dlpack_version, major, 0);
AT(ds_dlpack_version, minor, 4);

SIZE(ds_managed_tensor_versioned, 80);
AT(ds_managed_tensor_versioned, version, 0);
AT(ds_managed_tensor_versioned, manager_ctx, 8);
AT(ds_managed_tensor_versioned, deleter, 16);
AT(ds_managed_tensor_versioned, flags, 24);
AT(ds_managed_tensor_versioned, tensor, 32);

SIZE(ds_dtype, 4);
AT(ds_dtype, code, 0);
AT(ds_dtype, bits, 1);
AT(ds_dtype, lanes, 2);

SIZE(ds_event, 8);
AT(ds_event, id, 0);

SIZE(ds_ipc_event_handle, 64);
AT(ds_ipc_event_handle, bytes, 0);

SIZE(ds_graph, 8);
AT(ds_graph, id, 0);

SIZE(ds_graph_node, 8);
AT(ds_graph_node, id, 0);

SIZE(ds_graph_exec, 8);
AT(ds_graph_exec, id, 0);

SIZE(ds_kernel_node, 64);
AT(ds_kernel_node, kernel, 0);
AT(ds_kernel_node, items, 8);
AT(ds_kernel_node, grid, 16);
AT(ds_kernel_node, args, 24);
AT(ds_kernel_node, args_size, 32);
AT(ds_kernel_node, reserved, 40);

SIZE(ds_copy_node, 64);
AT(ds_copy_node, dst, 0);
AT(ds_copy_node, src, 8);
AT(ds_copy_node, width, 16);
AT(ds_copy_node, height, 24);
AT(ds_copy_node, dst_pitch, 32);
AT(ds_copy_node, src_pitch, 40);
AT(ds_copy_node, reserved, 48);

SIZE(ds_fill_node, 64);
AT(ds_fill_node, ptr, 0);
AT(ds_fill_node, value, 8);
AT(ds_fill_node, value_size, 16);
AT(ds_fill_node, width, 24);
AT(ds_fill_node, height, 32);
AT(ds_fill_node, pitch, 40);
AT(ds_fill_node, reserved, 48);

SIZE(ds_condition_node, 64);
AT(ds_condition_node, kind, 0);
AT(ds_condition_node, word, 8);
AT(ds_condition_node, bodies, 16);
AT(ds_condition_node, count, 24);
AT(ds_condition_node, reserved, 32);

SIZE(ds_value_op, 24);
AT(ds_value_op, address, 0);
AT(ds_value_op, value, 8);
AT(ds_value_op, kind, 16);
AT(ds_value_op, size, 20);

SIZE(ds_values_node, 64);
AT(ds_values_node, ops, 0);
AT(ds_values_node, count, 8);
AT(ds_values_node, reserved, 16);

SIZE(ds_host_node, 64);
AT(ds_host_node, fn, 0);
AT(ds_host_node, user, 8);
AT(ds_host_node, dtor_fn, 16);
AT(ds_host_node, reserved, 24);

SIZE(ds_node_desc, 128);
AT(ds_node_desc, kind, 0);
AT(ds_node_desc, label, 8);
AT(ds_node_desc, device, 16);
AT(ds_node_desc, priority, 24);
AT(ds_node_desc, u, 32);
AT(ds_node_desc, reserved, 96);

SIZE(ds_graph_desc, 48);
AT(ds_graph_desc, device, 0);
AT(ds_graph_desc, label, 8);
AT(ds_graph_desc, reserved, 16);

SIZE(ds_graph_exec_desc, 56);
AT(ds_graph_exec_desc, flags, 0);
AT(ds_graph_exec_desc, upload_stream, 8);
AT(ds_graph_exec_desc, label, 16);
AT(ds_graph_exec_desc, reserved, 24);

SIZE(ds_graph_update_info, 48);
AT(ds_graph_update_info, reason, 0);
AT(ds_graph_update_info, node, 8);
AT(ds_graph_update_info, reserved, 16);

SIZE(ds_log_item, 32);
AT(ds_log_item, level, 0);
AT(ds_log_item, id, 4);
AT(ds_log_item, text, 8);
AT(ds_log_item, file, 16);
AT(ds_log_item, line, 24);

SIZE(ds_allocator, 24);
AT(ds_allocator, alloc_fn, 0);
AT(ds_allocator, free_fn, 8);
AT(ds_allocator, user, 16);

SIZE(ds_init_desc, 144);
AT(ds_init_desc, cpu, 0);
AT(ds_init_desc, layers, 8);
AT(ds_init_desc, fault, 16);
AT(ds_init_desc, log_fn, 24);
AT(ds_init_desc, log_user, 32);
AT(ds_init_desc, log_level, 40);
AT(ds_init_desc, allocator, 48);
AT(ds_init_desc, flags, 72);
AT(ds_init_desc, device, 80);
AT(ds_init_desc, check, 88);
AT(ds_init_desc, trace, 96);
AT(ds_init_desc, reserved, 104);

SIZE(ds_kernel, 8);
AT(ds_kernel, id, 0);

SIZE(ds_param, 24);
AT(ds_param, kind, 0);
AT(ds_param, offset, 8);
AT(ds_param, size, 16);

SIZE(ds_extent, 40);
AT(ds_extent, kind, 0);
AT(ds_extent, atomic, 4);
AT(ds_extent, bytes, 8);
AT(ds_extent, offset, 16);
AT(ds_extent, stride, 24);
AT(ds_extent, count_param, 32);

SIZE(ds_kernel_cuda, 80);
AT(ds_kernel_cuda, image, 0);
AT(ds_kernel_cuda, image_size, 8);
AT(ds_kernel_cuda, entry, 16);
AT(ds_kernel_cuda, native_fn, 24);
AT(ds_kernel_cuda, block, 32);
AT(ds_kernel_cuda, shared_bytes, 36);
AT(ds_kernel_cuda, items_per_block, 40);
AT(ds_kernel_cuda, blocks_per_multiprocessor, 44);
AT(ds_kernel_cuda, image_pieces, 48);
AT(ds_kernel_cuda, reserved, 56);

SIZE(ds_kernel_block, 56);
AT(ds_kernel_block, index, 0);
AT(ds_kernel_block, grid, 12);
AT(ds_kernel_block, threads, 24);
AT(ds_kernel_block, in_threads, 36);
AT(ds_kernel_block, scratch, 40);
AT(ds_kernel_block, used, 48);

SIZE(ds_kernel_def, 128);
AT(ds_kernel_def, name, 0);
AT(ds_kernel_def, source, 8);
AT(ds_kernel_def, block, 16);
AT(ds_kernel_def, items_per_block, 20);
AT(ds_kernel_def, args_size, 24);
AT(ds_kernel_def, params, 32);
AT(ds_kernel_def, param_count, 40);
AT(ds_kernel_def, cpu_fn, 48);
AT(ds_kernel_def, ptx, 56);
AT(ds_kernel_def, bytes_fn, 64);
AT(ds_kernel_def, extents_fn, 72);
AT(ds_kernel_def, reserved, 80);
AT(ds_kernel_def, kernel, 104);
AT(ds_kernel_def, epoch, 112);
AT(ds_kernel_def, next, 120);

SIZE(ds_kernel_dims, 40);
AT(ds_kernel_dims, n, 0);
AT(ds_kernel_dims, multiplier, 24);
AT(ds_kernel_dims, shift, 32);

SIZE(ds_kernel_desc, 200);
AT(ds_kernel_desc, name, 0);
AT(ds_kernel_desc, cpu_fn, 8);
AT(ds_kernel_desc, args_size, 16);
AT(ds_kernel_desc, params, 24);
AT(ds_kernel_desc, param_count, 32);
AT(ds_kernel_desc, cuda, 40);
AT(ds_kernel_desc, grain, 120);
AT(ds_kernel_desc, bytes_fn, 128);
AT(ds_kernel_desc, extents, 136);
AT(ds_kernel_desc, extents_fn, 144);
AT(ds_kernel_desc, reserved, 152);

SIZE(ds_grid, 44);
AT(ds_grid, grid, 0);
AT(ds_grid, block, 12);
AT(ds_grid, shared_bytes, 24);
AT(ds_grid, cluster, 28);
AT(ds_grid, flags, 40);

SIZE(ds_pool, 8);
AT(ds_pool, id, 0);

SIZE(ds_mem_request, 72);
AT(ds_mem_request, size, 0);
AT(ds_mem_request, stream, 8);
AT(ds_mem_request, pool, 16);
AT(ds_mem_request, alignment, 24);
AT(ds_mem_request, label, 32);
AT(ds_mem_request, reserved, 40);

SIZE(ds_mem_block, 128);
AT(ds_mem_block, ptr, 0);
AT(ds_mem_block, size, 8);
AT(ds_mem_block, requested, 16);
AT(ds_mem_block, segment, 24);
AT(ds_mem_block, segment_size, 32);
AT(ds_mem_block, device, 40);
AT(ds_mem_block, stream, 48);
AT(ds_mem_block, pool, 56);
AT(ds_mem_block, state, 64);
AT(ds_mem_block, label, 72);
AT(ds_mem_block, site, 80);
AT(ds_mem_block, reserved, 96);

SIZE(ds_mem_config, 304);
AT(ds_mem_config, backend, 0);
AT(ds_mem_config, expandable_segments, 4);
AT(ds_mem_config, best_fit_by_address, 8);
AT(ds_mem_config, single_pool, 12);
AT(ds_mem_config, reuse, 16);
AT(ds_mem_config, poll_on_alloc, 20);
AT(ds_mem_config, statistics, 24);
AT(ds_mem_config, debug, 28);
AT(ds_mem_config, poison, 32);
AT(ds_mem_config, guard_bytes, 40);
AT(ds_mem_config, max_split_size, 48);
AT(ds_mem_config, max_non_split_rounding, 56);
AT(ds_mem_config, small_segment_size, 64);
AT(ds_mem_config, large_segment_size, 72);
AT(ds_mem_config, segment_growth, 80);
AT(ds_mem_config, garbage_collection_threshold, 88);
AT(ds_mem_config, roundup_power2_divisions, 96);
AT(ds_mem_config, memory_fraction, 112);
AT(ds_mem_config, limit, 120);
AT(ds_mem_config, throw_on_cudamalloc_oom, 128);
AT(ds_mem_config, graph_capture_record_stream_reuse, 132);
AT(ds_mem_config, expandable_segments_reserve, 136);
AT(ds_mem_config, pinned_max_round_threshold, 144);
AT(ds_mem_config, pinned_max_cached_size, 152);
AT(ds_mem_config, pinned_reserve_segment_size, 160);
AT(ds_mem_config, pinned_use_cuda_host_register, 168);
AT(ds_mem_config, pinned_num_register_threads, 172);
AT(ds_mem_config, reserved, 176);

SIZE(ds_mem_stat, 32);
AT(ds_mem_stat, current, 0);
AT(ds_mem_stat, peak, 8);
AT(ds_mem_stat, allocated, 16);
AT(ds_mem_stat, freed, 24);

SIZE(ds_mem_stats, 1384);
AT(ds_mem_stats, allocation, 0);
AT(ds_mem_stats, segment, 96);
AT(ds_mem_stats, active, 192);
AT(ds_mem_stats, inactive_split, 288);
AT(ds_mem_stats, allocated_bytes, 384);
AT(ds_mem_stats, reserved_bytes, 480);
AT(ds_mem_stats, active_bytes, 576);
AT(ds_mem_stats, inactive_split_bytes, 672);
AT(ds_mem_stats, requested_bytes, 768);
AT(ds_mem_stats, oversize_allocations, 864);
AT(ds_mem_stats, oversize_segments, 896);
AT(ds_mem_stats, num_alloc_retries, 928);
AT(ds_mem_stats, num_ooms, 936);
AT(ds_mem_stats, num_sync_all_streams, 944);
AT(ds_mem_stats, num_device_alloc, 952);
AT(ds_mem_stats, num_device_free, 960);
AT(ds_mem_stats, num_oom_rejections, 968);
AT(ds_mem_stats, max_split_size, 976);
AT(ds_mem_stats, peak_bound, 984);
AT(ds_mem_stats, peak_bound_count, 992);
AT(ds_mem_stats, reserved, 1000);

SIZE(ds_pointer_info, 64);
AT(ds_pointer_info, kind, 0);
AT(ds_pointer_info, device, 4);
AT(ds_pointer_info, base, 16);
AT(ds_pointer_info, size, 24);
AT(ds_pointer_info, reserved, 32);

SIZE(ds_pinned_desc, 40);
AT(ds_pinned_desc, flags, 0);
AT(ds_pinned_desc, numa_node, 4);
AT(ds_pinned_desc, reserved, 8);

SIZE(ds_mem_duration, 40);
AT(ds_mem_duration, total, 0);
AT(ds_mem_duration, max, 8);
AT(ds_mem_duration, min, 16);
AT(ds_mem_duration, count, 24);
AT(ds_mem_duration, avg, 32);

SIZE(ds_mem_pinned_stats, 352);
AT(ds_mem_pinned_stats, allocations, 0);
AT(ds_mem_pinned_stats, allocated_bytes, 32);
AT(ds_mem_pinned_stats, active_requests, 64);
AT(ds_mem_pinned_stats, active_bytes, 96);
AT(ds_mem_pinned_stats, host_alloc_time, 128);
AT(ds_mem_pinned_stats, host_free_time, 168);
AT(ds_mem_pinned_stats, num_host_alloc, 208);
AT(ds_mem_pinned_stats, num_host_free, 216);
AT(ds_mem_pinned_stats, reserved, 224);

SIZE(ds_plan_desc, 88);
AT(ds_plan_desc, what, 0);
AT(ds_plan_desc, bytes, 8);
AT(ds_plan_desc, root, 16);
AT(ds_plan_desc, item, 24);
AT(ds_plan_desc, order, 32);
AT(ds_plan_desc, algorithm, 40);
AT(ds_plan_desc, pieces, 48);
AT(ds_plan_desc, engine, 56);
AT(ds_plan_desc, reserved, 64);

SIZE(ds_plan_location, 16);
AT(ds_plan_location, rank, 0);
AT(ds_plan_location, buffer, 4);
AT(ds_plan_location, offset, 8);

SIZE(ds_plan_step, 64);
AT(ds_plan_step, rank, 0);
AT(ds_plan_step, lane, 4);
AT(ds_plan_step, to, 8);
AT(ds_plan_step, bytes, 24);
AT(ds_plan_step, from, 32);
AT(ds_plan_step, from_count, 36);
AT(ds_plan_step, after, 40);
AT(ds_plan_step, after_count, 44);
AT(ds_plan_step, start_ns, 48);
AT(ds_plan_step, done_ns, 56);

SIZE(ds_plan, 176);
AT(ds_plan, desc, 0);
AT(ds_plan, ranks, 88);
AT(ds_plan, ways, 92);
AT(ds_plan, lanes, 96);
AT(ds_plan, pieces, 104);
AT(ds_plan, piece_bytes, 112);
AT(ds_plan, predicted_ns, 120);
AT(ds_plan, bound_ns, 128);
AT(ds_plan, steps, 136);
AT(ds_plan, step, 144);
AT(ds_plan, location, 152);
AT(ds_plan, before, 160);
AT(ds_plan, scratch, 168);

SIZE(ds_pool_desc, 136);
AT(ds_pool_desc, device, 0);
AT(ds_pool_desc, config, 8);
AT(ds_pool_desc, alloc_fn, 16);
AT(ds_pool_desc, free_fn, 24);
AT(ds_pool_desc, upstream, 32);
AT(ds_pool_desc, use_on_oom, 40);
AT(ds_pool_desc, no_split, 44);
AT(ds_pool_desc, shareable, 48);
AT(ds_pool_desc, limit, 56);
AT(ds_pool_desc, label, 64);
AT(ds_pool_desc, reserved, 72);

SIZE(ds_domain, 8);
AT(ds_domain, id, 0);

SIZE(ds_range, 8);
AT(ds_range, id, 0);

SIZE(ds_payload, 16);
AT(ds_payload, kind, 0);
AT(ds_payload, value, 8);

SIZE(ds_range_desc, 72);
AT(ds_range_desc, text, 0);
AT(ds_range_desc, domain, 8);
AT(ds_range_desc, color, 16);
AT(ds_range_desc, category, 20);
AT(ds_range_desc, payload, 24);
AT(ds_range_desc, reserved, 40);

SIZE(ds_range_event, 104);
AT(ds_range_event, kind, 0);
AT(ds_range_event, level, 4);
AT(ds_range_event, domain, 8);
AT(ds_range_event, domain_name, 16);
AT(ds_range_event, text, 24);
AT(ds_range_event, color, 32);
AT(ds_range_event, category, 36);
AT(ds_range_event, payload, 40);
AT(ds_range_event, file, 56);
AT(ds_range_event, line, 64);
AT(ds_range_event, device, 68);
AT(ds_range_event, id, 80);
AT(ds_range_event, thread, 88);
AT(ds_range_event, time_ns, 96);

SIZE(ds_range_scope, 16);
AT(ds_range_scope, domain, 0);
AT(ds_range_scope, pushed, 8);
AT(ds_range_scope, once, 12);

SIZE(ds_resource, 24);
AT(ds_resource, alloc_fn, 0);
AT(ds_resource, free_fn, 8);
AT(ds_resource, user, 16);

SIZE(ds_resource_stats, 128);
AT(ds_resource_stats, bytes, 0);
AT(ds_resource_stats, allocations, 32);
AT(ds_resource_stats, reserved, 64);

SIZE(ds_site, 16);
AT(ds_site, file, 0);
AT(ds_site, line, 8);

SIZE(ds_ranks, 8);
AT(ds_ranks, id, 0);

SIZE(ds_ranks_desc, 144);
AT(ds_ranks_desc, engine, 0);
AT(ds_ranks_desc, rank, 8);
AT(ds_ranks_desc, size, 12);
AT(ds_ranks_desc, id, 16);
AT(ds_ranks_desc, devices, 24);
AT(ds_ranks_desc, device_count, 32);
AT(ds_ranks_desc, mpi_comm, 40);
AT(ds_ranks_desc, flags, 48);
AT(ds_ranks_desc, timeout_ns, 56);
AT(ds_ranks_desc, record, 64);
AT(ds_ranks_desc, label, 72);
AT(ds_ranks_desc, reserved, 80);

SIZE(ds_ranks_info, 224);
AT(ds_ranks_info, rank, 0);
AT(ds_ranks_info, size, 4);
AT(ds_ranks_info, device_count, 8);
AT(ds_ranks_info, first_device, 16);
AT(ds_ranks_info, own_devices, 24);
AT(ds_ranks_info, engine, 32);
AT(ds_ranks_info, library, 48);
AT(ds_ranks_info, operations, 176);
AT(ds_ranks_info, pending, 184);
AT(ds_ranks_info, reserved, 192);

SIZE(ds_ranks_launch, 32);
AT(ds_ranks_launch, launcher, 0);
AT(ds_ranks_launch, rank, 16);
AT(ds_ranks_launch, size, 20);
AT(ds_ranks_launch, local_rank, 24);
AT(ds_ranks_launch, local_size, 28);

SIZE(ds_ranks_options, 64);
AT(ds_ranks_options, sizes, 0);
AT(ds_ranks_options, out_sizes, 8);
AT(ds_ranks_options, timeout_ns, 16);
AT(ds_ranks_options, nccl, 24);
AT(ds_ranks_options, reserved, 32);

SIZE(ds_ranks_nccl, 64);
AT(ds_ranks_nccl, min_ctas, 0);
AT(ds_ranks_nccl, max_ctas, 4);
AT(ds_ranks_nccl, nvls_ctas, 8);
AT(ds_ranks_nccl, cga_cluster_size, 12);
AT(ds_ranks_nccl, algorithm, 16);
AT(ds_ranks_nccl, is_hint, 24);
AT(ds_ranks_nccl, cta_policy, 28);
AT(ds_ranks_nccl, reserved, 32);

SIZE(ds_ranks_transfer, 32);
AT(ds_ranks_transfer, tensor, 0);
AT(ds_ranks_transfer, kind, 8);
AT(ds_ranks_transfer, device, 16);
AT(ds_ranks_transfer, peer, 24);

SIZE(ds_rng, 8);
AT(ds_rng, id, 0);

SIZE(ds_rng_desc, 72);
AT(ds_rng_desc, device, 0);
AT(ds_rng_desc, seed, 8);
AT(ds_rng_desc, mapping, 16);
AT(ds_rng_desc, multiprocessors, 20);
AT(ds_rng_desc, threads_per_multiprocessor, 24);
AT(ds_rng_desc, label, 32);
AT(ds_rng_desc, reserved, 40);

SIZE(ds_rng_info, 72);
AT(ds_rng_info, device, 0);
AT(ds_rng_info, seed, 8);
AT(ds_rng_info, offset, 16);
AT(ds_rng_info, mapping, 24);
AT(ds_rng_info, multiprocessors, 28);
AT(ds_rng_info, threads_per_multiprocessor, 32);
AT(ds_rng_info, reserved, 40);

SIZE(ds_rng_fill_desc, 104);
AT(ds_rng_fill_desc, kind, 0);
AT(ds_rng_fill_desc, dtype, 4);
AT(ds_rng_fill_desc, out, 8);
AT(ds_rng_fill_desc, count, 16);
AT(ds_rng_fill_desc, a, 24);
AT(ds_rng_fill_desc, b, 32);
AT(ds_rng_fill_desc, low, 40);
AT(ds_rng_fill_desc, high, 48);
AT(ds_rng_fill_desc, first, 56);
AT(ds_rng_fill_desc, total, 64);
AT(ds_rng_fill_desc, reserved, 72);

SIZE(ds_ipc_mem_handle, 256);
AT(ds_ipc_mem_handle, bytes, 0);

SIZE(ds_mem_history_desc, 48);
AT(ds_mem_history_desc, entries, 0);
AT(ds_mem_history_desc, skip, 8);
AT(ds_mem_history_desc, reserved, 16);

SIZE(ds_mem_event, 72);
AT(ds_mem_event, action, 0);
AT(ds_mem_event, address, 8);
AT(ds_mem_event, bytes, 16);
AT(ds_mem_event, stream, 24);
AT(ds_mem_event, time_ns, 32);
AT(ds_mem_event, site, 40);
AT(ds_mem_event, label, 56);
AT(ds_mem_event, pool, 64);

SIZE(ds_stream, 8);
AT(ds_stream, id, 0);

SIZE(ds_stream_desc, 56);
AT(ds_stream_desc, device, 0);
AT(ds_stream_desc, priority, 8);
AT(ds_stream_desc, flags, 12);
AT(ds_stream_desc, label, 16);
AT(ds_stream_desc, multiprocessors, 24);
AT(ds_stream_desc, reserved, 32);

SIZE(ds_stream_native, 24);
AT(ds_stream_native, version, 0);
AT(ds_stream_native, device, 4);
AT(ds_stream_native, handle, 16);

SIZE(ds_scope, 8);
AT(ds_scope, pushed, 0);
AT(ds_scope, once, 4);

SIZE(ds_tensor, 48);
AT(ds_tensor, data, 0);
AT(ds_tensor, device, 8);
AT(ds_tensor, ndim, 16);
AT(ds_tensor, dtype, 20);
AT(ds_tensor, shape, 24);
AT(ds_tensor, strides, 32);
AT(ds_tensor, byte_offset, 40);

#endif
#endif
