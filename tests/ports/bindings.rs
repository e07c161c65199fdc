// A stream, an event, an allocation and a collective on two CPU devices, through bindgen.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code)]
include!("devstream.rs");

fn check(result: ds_result) {
    if result < 0 {
        let text = unsafe { std::ffi::CStr::from_ptr(ds_error_get_last()) };
        panic!("{}", text.to_string_lossy());
    }
}

fn main() {
    unsafe {
        let mut cpu: ds_cpu_desc = std::mem::zeroed();
        cpu.devices = 2;
        let mut desc: ds_init_desc = std::mem::zeroed();
        desc.cpu = &cpu;
        check(ds_init(&desc));

        let mut streams: [ds_stream; 2] = std::mem::zeroed();
        let mut memory = [std::ptr::null_mut(); 2];
        let mut tensors: [ds_tensor; 2] = std::mem::zeroed();
        let mut shape = [1i64];
        let values = [40i32, 2];
        for i in 0..2 {
            let mut of_device: ds_stream_desc = std::mem::zeroed();
            of_device.device = ds_cpu(i as i32);
            check(ds_stream_create(&of_device, &mut streams[i]));
            check(ds_mem_alloc(4, streams[i], &mut memory[i]));
            check(ds_copy(memory[i], &values[i] as *const i32 as *const _, 4, streams[i]));
            tensors[i] = ds_tensor_of(memory[i], of_device.device, ds_int32(), 1, shape.as_mut_ptr());
        }

        let list: [*const ds_tensor; 2] = [&tensors[0], &tensors[1]];
        let mut options: ds_comm_options = std::mem::zeroed();
        options.streams = streams.as_ptr();
        options.stream_count = 2;
        check(ds_comm_all_reduce(list.as_ptr(), list.as_ptr(), 2, ds_reduce_op_DS_REDUCE_SUM, &options));
        let mut written: ds_event = std::mem::zeroed();
        check(ds_event_create(0, std::ptr::null(), &mut written));
        check(ds_event_record(written, streams[1]));
        check(ds_stream_wait_event(streams[0], written));
        let mut sum = 0i32;
        check(ds_copy(&mut sum as *mut i32 as *mut _, memory[1], 4, streams[0]));
        check(ds_stream_synchronize(streams[0]));
        check(ds_event_destroy(written));
        for i in 0..2 {
            check(ds_mem_free(memory[i]));
            check(ds_stream_destroy(streams[i]));
        }
        check(ds_shutdown());
        println!("rust: {}", sum);
        assert_eq!(sum, 42);
    }
}
