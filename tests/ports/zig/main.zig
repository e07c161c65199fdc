// A stream, an event, an allocation and a collective on two CPU devices, through the declarations of translate-c.
const std = @import("std");
const ds = @import("devstream");

fn check(result: ds.ds_result) !void {
    if (result < 0) {
        std.debug.print("zig: {s}\n", .{ds.ds_error_get_last()});
        return error.Devstream;
    }
}

pub fn main() !void {
    var cpu = std.mem.zeroes(ds.ds_cpu_desc);
    cpu.devices = 2;
    var desc = std.mem.zeroes(ds.ds_init_desc);
    desc.cpu = &cpu;
    try check(ds.ds_init(&desc));

    var streams: [2]ds.ds_stream = undefined;
    var memory: [2]?*anyopaque = .{ null, null };
    var tensors: [2]ds.ds_tensor = undefined;
    var list: [2][*c]const ds.ds_tensor = undefined;
    var shape = [1]i64{1};
    var values = [2]i32{ 40, 2 };
    for (0..2) |i| {
        var of_device = std.mem.zeroes(ds.ds_stream_desc);
        of_device.device = ds.ds_cpu(@intCast(i));
        try check(ds.ds_stream_create(&of_device, &streams[i]));
        try check(ds.ds_mem_alloc(4, streams[i], &memory[i]));
        try check(ds.ds_copy(memory[i], &values[i], 4, streams[i]));
        tensors[i] = ds.ds_tensor_of(memory[i], of_device.device, ds.ds_int32(), 1, &shape);
        list[i] = &tensors[i];
    }

    var options = std.mem.zeroes(ds.ds_comm_options);
    options.streams = &streams;
    options.stream_count = 2;
    try check(ds.ds_comm_all_reduce(&list, &list, 2, ds.DS_REDUCE_SUM, &options));
    var written: ds.ds_event = undefined;
    try check(ds.ds_event_create(ds.DS_EVENT_DEFAULT, null, &written));
    try check(ds.ds_event_record(written, streams[1]));
    try check(ds.ds_stream_wait_event(streams[0], written));
    var sum: i32 = 0;
    try check(ds.ds_copy(&sum, memory[1], 4, streams[0]));
    try check(ds.ds_stream_synchronize(streams[0]));
    try check(ds.ds_event_destroy(written));
    for (0..2) |i| {
        try check(ds.ds_mem_free(memory[i]));
        try check(ds.ds_stream_destroy(streams[i]));
    }
    try check(ds.ds_shutdown());
    std.debug.print("zig: {d}\n", .{sum});
    if (sum != 42) return error.WrongSum;
}
