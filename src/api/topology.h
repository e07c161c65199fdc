/* api/topology.h - topologies: devices and the links between them.

   Declares the description of a machine for plans and the functions that parse, measure, write
   and convert one. The room has the syntax of the text form. */
#ifndef DS__API_TOPOLOGY_H
#define DS__API_TOPOLOGY_H

#include "graph.h"
#include "cpu.h"
#include "comm.h"

/* ---- topologies ------------------------------------------------------------------------------ */

/* A topology says which devices there are, what lies between them and how fast that is. Plans are
   made for a topology. It describes the machine that is here, or any other machine by a text.

   A text has a line for each thing. Words are separated by blanks, a word that begins with #
   begins a comment, and gpu0..7 stands for the names gpu0 to gpu7:
       device NAME...             devices; rank i of a plan is the i-th of them
       switch NAME...             forwards data
       socket NAME...             forwards data, too; host memory, which has the name host, is
                                  linked to sockets
       link A B KIND [RATE [RATE]] [TIME] [half]
                                  a link: from A to B and from B to A at the first rate, or back
                                  at the second one; half: not both ways at once. Lists of names:
                                  each with each. KIND is pcie, nvlink, nvswitch, socket, network
                                  or host; it also gives rate and latency if they are missing
       peer A B on|off|KIND       whether devices of the two lists reach each other without the
                                  host (on, the default); KIND: only if all links between them
                                  are of that kind
       peer A B push|pull RATE    rate of copies from A to B that A (push) or B (pull) makes, if
                                  it is less than the links promise
       peer A B both RATE         rate of copies from A to B and of copies from B to A that run at
                                  once, taken together, if it is less than the links promise
       peer A B latency TIME      latency of copies from A to B, instead of the latency of every
                                  copy and of the links
       engines N                  copy engines of a device (3)
       start TIME                 how long a copy holds an engine besides the transfer (1.5us)
       latency TIME               latency of every copy besides that of its links (6us)
       memory RATE                how fast kernels read and write memory (2000GB/s)
   RATE is a number with B/s, KB/s, MB/s, GB/s or TB/s (powers of 1000). TIME is a number with ns,
   us or ms, 1000 seconds at most.
   A copy takes the route of the least latency, and of several such routes the widest one. Devices
   forward nothing by themselves. */

/** X(NAME, word, bytes per second and direction, nanoseconds of latency): what a link is when
    nobody says more. */
/* clang-format off */
#define DS_LINK_KINDS(X) \
    X(PCIE, "pcie", 25e9, 500) \
    X(NVLINK, "nvlink", 25e9, 500) \
    X(NVSWITCH, "nvswitch", 370e9, 500) \
    X(SOCKET, "socket", 40e9, 300) \
    X(NETWORK, "network", 50e9, 3000) \
    X(HOST, "host", 100e9, 100)

/* clang-format on */
/** What a link is. */
typedef enum ds_link_kind {

#define DS_LINK_KIND_(name, word, rate, latency) DS_LINK_##name,
    DS_LINK_KINDS(DS_LINK_KIND_)
#undef DS_LINK_KIND_
        DS_LINK_KIND_COUNT /**< how many there are */
} ds_link_kind;

/** A topology; it does not change. Freed by ds_topology_destroy, after the plans that were made for
    it. */
typedef struct ds_topology ds_topology;

/** Makes a topology of such a text. DS_ERR_INVALID_VALUE: the sentence has the line and the
    word. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_text(const char *text, ds_topology **out);
/** The same of a file of up to a MiB. DS_ERR_SYSTEM: it cannot be read. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_file(const char *path, ds_topology **out);

enum {
    /** measure each pair by short copies: below 200 ms for 8 devices, once in a process */
    DS_TOPOLOGY_PROBE = 1
};

/** The topology of devices that are here. Who reaches whom, NVLink, copy engines and the rate of
    the memory are asked of the driver; switches of PCIe, how fast links are, and sockets of the
    system (/sys, or where DEVSTREAM_SYSFS says); where that says nothing, each device counts as
    a card on a PCIe link of one socket. flags: DS_TOPOLOGY_PROBE or 0. DS_ERR_CROSS_DRIVER:
    devices of both drivers. With DS_TOPOLOGY_PROBE it waits for its copies: rate and latency of
    each pair in both directions, and whether both at once are slower. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_devices(const ds_device *devices, size_t count,
                                                          unsigned flags, ds_topology **out);
/** Frees a topology; NULL is allowed. */
DSDEF void ds_topology_destroy(ds_topology *topology);
/** How many devices it has; 0 for NULL. Callable anywhere. */
DSDEF int ds_topology_get_size(const ds_topology *topology);

/** How a topology is written. */
typedef enum ds_topology_format {
    /** a table for people: the rate from each device to each other and host memory, in GB/s, *
        where it goes through the host, and latency in us */
    DS_TOPOLOGY_MATRIX,
    DS_TOPOLOGY_DOT, /**< a picture, for dot -Tsvg */
    DS_TOPOLOGY_TEXT /**< the text that ds_topology_create_of_text takes */
} ds_topology_format;

/** Writes a topology by calls of write_fn, until that gives something else than 0. */
DSDEF DS_MUST_USE ds_result ds_topology_write(const ds_topology *topology,
                                              ds_topology_format format, ds_write_fn write_fn,
                                              void *user);
/** What the CPU driver's virtual clock needs to be this machine (ds_cpu_desc.fabric); it points
    into the topology. After ds_init, which copies it, the topology may be freed. Device i of the
    driver is rank i. flags is 0: DS_CPU_DRY may be set in it. */
DSDEF DS_MUST_USE ds_result ds_topology_get_fabric(const ds_topology *topology, ds_cpu_fabric *out);

#endif
