/* core/sensor.h - sensors of a device: utilisation, temperature, power, clocks.

   Public functions over the driver entry device_sensor.

   Invariants: a value that is not known is 0, and the result is negative.
   Locks: none.
   Threads: any. */
#ifndef DS__CORE_SENSOR_H
#define DS__CORE_SENSOR_H

#include "init.h"
#include "thread.h"
#include "device.h"
#include "device_query.h"

/* Reads a value, or two. */
static ds_result ds__sensor_read(ds_device device, int sensor, unsigned *out_first,
                                 unsigned *out_second) {
    unsigned value[2] = { 0, 0 };
    ds_result r = ds__driver_of(device)->device_sensor(device.index, sensor, value);
    if (r < 0)
        return ds__device_error(device, r);
    if (out_first)
        *out_first = value[0];
    if (out_second)
        *out_second = value[1];
    return DS_OK;
}

DSDEF ds_result(ds_device_get_utilization)(ds_device device, unsigned *out_gpu_percent,
                                           unsigned *out_memory_percent) {
    if (out_gpu_percent)
        *out_gpu_percent = 0;
    if (out_memory_percent)
        *out_memory_percent = 0;
    DS__ENTER("ds_device_get_utilization");
    DS__RESOLVE(device);
    return ds__sensor_read(device, DS__SENSOR_UTILIZATION, out_gpu_percent, out_memory_percent);
}

DSDEF ds_result(ds_device_get_temperature)(ds_device device, unsigned *out_celsius) {
    if (out_celsius)
        *out_celsius = 0;
    DS__ENTER("ds_device_get_temperature");
    DS__REQUIRE(out_celsius, "out_celsius is NULL");
    DS__RESOLVE(device);
    return ds__sensor_read(device, DS__SENSOR_TEMPERATURE, out_celsius, NULL);
}

DSDEF ds_result(ds_device_get_power_draw)(ds_device device, unsigned *out_milliwatts) {
    if (out_milliwatts)
        *out_milliwatts = 0;
    DS__ENTER("ds_device_get_power_draw");
    DS__REQUIRE(out_milliwatts, "out_milliwatts is NULL");
    DS__RESOLVE(device);
    return ds__sensor_read(device, DS__SENSOR_POWER, out_milliwatts, NULL);
}

DSDEF ds_result(ds_device_get_clock_rate)(ds_device device, unsigned *out_sm_mhz,
                                          unsigned *out_memory_mhz) {
    if (out_sm_mhz)
        *out_sm_mhz = 0;
    if (out_memory_mhz)
        *out_memory_mhz = 0;
    DS__ENTER("ds_device_get_clock_rate");
    DS__RESOLVE(device);
    return ds__sensor_read(device, DS__SENSOR_CLOCK, out_sm_mhz, out_memory_mhz);
}

#endif
