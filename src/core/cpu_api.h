/* core/cpu_api.h - counters, virtual clock and spinning of the CPU driver.

   Answers ds_cpu_get_stats, ds_cpu_get_clock, ds_cpu_get_spin and ds_cpu_set_spin from the driver's
   table.

   Invariants: before the first call and without a CPU driver all counters are 0.
   Locks: none here.
   Threads: any. */
#ifndef DS__CORE_CPU_API_H
#define DS__CORE_CPU_API_H

#include "init.h"

DSDEF ds_result(ds_cpu_get_stats)(ds_cpu_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    if (atomic_load(&ds__g.state) == DS__COLD && !ds__tls.in_callback && out)
        return DS_OK;
    DS__ENTER("ds_cpu_get_stats");
    DS__REQUIRE(out, "out is NULL");
    if (ds__g.driver[1])
        ds__g.driver[1]->stats(out);
    return DS_OK;
}

DSDEF ds_result(ds_cpu_get_clock)(int64_t *out_ns) {
    if (out_ns)
        *out_ns = 0;
    DS__ENTER("ds_cpu_get_clock");
    DS__REQUIRE(out_ns, "out_ns is NULL");
    if (!ds__g.driver[1] || !ds__g.driver[1]->fabric())
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the CPU driver has no virtual clock; set ds_cpu_desc.fabric in ds_init");
    *out_ns = ds__g.driver[1]->clock_ns();
    return DS_OK;
}

DSDEF ds_result(ds_cpu_set_spin)(int64_t ns) {
    DS__ENTER("ds_cpu_set_spin");
    DS__REQUIRE(ns >= 0 && ns <= DS_CPU_MAX_SPIN_NS,
                "the time to spin is %lld ns; it must be from 0 to %d", (long long)ns,
                DS_CPU_MAX_SPIN_NS);
    if (!ds__g.driver[1])
        return ds__fail(DS_ERR_UNSUPPORTED, "there is no CPU driver");
    ds__g.driver[1]->spin_set(ns);
    return DS_OK;
}

DSDEF ds_result(ds_cpu_get_spin)(int64_t *out_ns) {
    if (out_ns)
        *out_ns = 0;
    DS__ENTER("ds_cpu_get_spin");
    DS__REQUIRE(out_ns, "out_ns is NULL");
    if (!ds__g.driver[1])
        return ds__fail(DS_ERR_UNSUPPORTED, "there is no CPU driver");
    *out_ns = ds__g.driver[1]->spin_get();
    return DS_OK;
}

#endif
