/* api/topology.h - topologies: devices and the links between them.

   Declares the description of a machine for plans and the functions that parse, measure, write and
   convert topologies. Defines the syntax of the text form. */
#ifndef DS__API_TOPOLOGY_H
#define DS__API_TOPOLOGY_H

#include "graph.h"
#include "cpu.h"
#include "comm.h"

/* ---- topologies ------------------------------------------------------------------------------ */

/* A topology describes devices and the links between them, with their rates and latencies. Plans
   are made for a topology. It describes the present machine, or any other machine by a text.

   A text has one statement per line. Words are separated by blanks. A word that begins with #
   begins a comment. gpu0..7 stands for the names gpu0 to gpu7:
       device NAME...             devices; rank i of a plan is the i-th of them
       switch NAME...             forwards data
       socket NAME...             forwards data; host memory (name: host) is linked to sockets
       link A B KIND [RATE [RATE]] [TIME] [half]
                                  a link: from A to B and from B to A at the first rate, or back
                                  at the second rate; half: one direction at a time. Lists of
                                  names: each with each. KIND is pcie, nvlink, nvswitch, socket,
                                  network or host, with default rate and latency
       peer A B on|off|KIND       direct access between the devices of the two lists, without the
                                  host (default: on); KIND: only if all links between them are of
                                  that kind
       peer A B push|pull RATE    rate of copies from A to B that A (push) or B (pull) makes, if
                                  less than the rate of the links
       peer A B both RATE         total rate of concurrent copies from A to B and from B to A, if
                                  less than the rate of the links
       peer A B latency TIME      latency of copies from A to B, instead of the latency of every
                                  copy and of the links
       engines N                  copy engines of a device (3)
       start TIME                 time that a copy holds an engine besides the transfer (1.5us)
       latency TIME               latency of every copy in addition to its links (6us)
       memory RATE                rate at which kernels read and write memory (2000GB/s)
   RATE is a number with B/s, KB/s, MB/s, GB/s or TB/s (powers of 1000). TIME is a number with ns,
   us or ms, at most 1000 seconds.
   A copy takes the route of the least latency; among several, the route of the highest rate.
   Devices do not forward data. */

/** X(NAME, word, bytes per second and direction, nanoseconds of latency): defaults of a link. */
/* clang-format off */
#define DS_LINK_KINDS(X) \
    X(PCIE, "pcie", 25e9, 500) \
    X(NVLINK, "nvlink", 25e9, 500) \
    X(NVSWITCH, "nvswitch", 370e9, 500) \
    X(SOCKET, "socket", 40e9, 300) \
    X(NETWORK, "network", 50e9, 3000) \
    X(HOST, "host", 100e9, 100)

/* clang-format on */
/** Kinds of links. */
typedef enum ds_link_kind {

#define DS_LINK_KIND_(name, word, rate, latency) DS_LINK_##name,
    DS_LINK_KINDS(DS_LINK_KIND_)
#undef DS_LINK_KIND_
        DS_LINK_KIND_COUNT /**< number of kinds */
} ds_link_kind;

/** A topology; immutable. ds_topology_destroy frees it with its plans. */
typedef struct ds_topology ds_topology;

/** Parses a topology text. DS_ERR_INVALID_VALUE: the error names the line and the word. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_text(const char *text, ds_topology **out);
/** Parses a topology file of up to 1 MiB. DS_ERR_SYSTEM: the file cannot be read. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_file(const char *path, ds_topology **out);

enum {
    /** measure each pair by short copies: below 200 ms for 8 devices, once per process */
    DS_TOPOLOGY_PROBE = 1
};

/** Creates the topology of present devices. The driver reports peer access, NVLink, copy engines
    and the memory rate. The system (/sys, or DEVSTREAM_SYSFS) reports PCIe switches, link rates and
    sockets. If the system has no data, each device is a card on a PCIe link of one socket. flags:
    DS_TOPOLOGY_PROBE or 0.

    DS_TOPOLOGY_PROBE measures rate and latency of each pair in both directions, and the rate of
    both at once. It waits for its copies (blocks). DS_ERR_CROSS_DRIVER: devices of both drivers. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_devices(const ds_device *devices, size_t count,
                                                          unsigned flags, ds_topology **out);
/** Frees a topology and its plans; NULL is allowed. */
DSDEF void ds_topology_destroy(ds_topology *topology);
/** Returns the number of devices; 0 for NULL. Callable anywhere. */
DSDEF int ds_topology_get_size(const ds_topology *topology);

/** Output formats of a topology. */
typedef enum ds_topology_format {
    /** table for people: rate from each device to each other device and host memory in GB/s (* if
        through the host), and latency in us */
    DS_TOPOLOGY_MATRIX,
    DS_TOPOLOGY_DOT, /**< drawing for dot -Tsvg */
    DS_TOPOLOGY_TEXT /**< text for ds_topology_create_of_text */
} ds_topology_format;

/** Writes a topology by calls of write_fn until it returns a value other than 0. */
DSDEF DS_MUST_USE ds_result ds_topology_write(const ds_topology *topology,
                                              ds_topology_format format, ds_write_fn write_fn,
                                              void *user);
/** Returns the configuration by which the CPU driver's virtual clock models the topology
    (ds_cpu_desc.fabric). Device i of the driver is rank i. *out points into the topology; ds_init
    copies it, then the topology may be freed. flags is set to 0; the caller may add DS_CPU_DRY. */
DSDEF DS_MUST_USE ds_result ds_topology_get_fabric(const ds_topology *topology, ds_cpu_fabric *out);

#endif
