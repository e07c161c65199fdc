/* topology/sysfs.h - PCIe tree and sockets, read from /sys.

   Finds the position of a device in the PCIe tree (ds__tplace_find) and the rate of its links
   (ds__tplace_rate) for here.h. ds__tplace_parts tells whether a bridge is a switch.

   Policy:
   1. The PCIe tree is read from /sys, or from the folder in DEVSTREAM_SYSFS. A bridge is a
      switch if paths to several of the devices part there and it is not the root port. A NUMA
      node is a socket.
   2. The rate of a link is the highest that both of its ends support. The current rate is not
      used, because an idle GPU saves power. If a bridge promises less than its link runs at now,
      the machine is a virtual one, and no value of a bridge is used.
   3. Devices are attached to an NVSwitch if NVLink joins all of them and one more condition
      holds. Either an NVSwitch is among the PCI devices, or there are more devices than could be
      wired pair by pair. Otherwise each joined pair has its own link.
   4. Nothing reports the number of lanes of an NVLink, so a measured rate becomes its rate. All
      other measurements are peer lines of a pair.

   Invariants: up[0] is the root port and up[deep - 1] the device itself, for paths of at most
   DS__TPLACE_DEEP entries. Unknown values are deep 0, socket -1, and speed or width 0.
   Locks: none.
   Threads: any; nothing is cached. The environment must not change at the same time (getenv). */
#ifndef DS__TOPOLOGY_SYSFS_H
#define DS__TOPOLOGY_SYSFS_H

#include "types.h"

#define DS__TPLACE_DEEP 16

typedef struct ds__tplace { /* where a device is */
    /* PCI addresses: the bridges above it from the root port on, then its own */
    char up[DS__TPLACE_DEEP][24];
    int deep;   /* how many addresses `up` has; 0: nobody says */
    int socket; /* NUMA node, or -1 */
    int plain;  /* 1: its bridges say nothing */
} ds__tplace;

/* The path of a PCI device's file, of its folder, or of the folder of all; 0: too long. */
static int ds__sys_path(char *out, size_t size, const char *pci, const char *file) {
    const char *root = getenv("DEVSTREAM_SYSFS");
    return (size_t)snprintf(out, size, "%s/bus/pci/devices%s%s%s%s", root && *root ? root : "/sys",
                            *pci ? "/" : "", pci, *file ? "/" : "", file) < size;
}

static int ds__sys_line(const char *pci, const char *file, char *out, size_t size) {
    char path[512];
    if (!ds__sys_path(path, sizeof path, pci, file))
        return 0;
    FILE *f = fopen(path, "r");
    int got = f && fgets(out, (int)size, f) != NULL;
    if (f)
        fclose(f);
    return got;
}

/* GT/s and lanes, "max" or "current"; 0 where nobody says. */
static void ds__sysfs_port_read(const char *pci, const char *which, double *out_speed,
                                double *out_width) {
    char file[32];
    char line[64];
    unsigned n = 0;
    unsigned tenth = 0;
    snprintf(file, sizeof file, "%s_link_speed", which);
    *out_speed = ds__sys_line(pci, file, line, sizeof line) && sscanf(line, "%4u.%1u", &n, &tenth)
                     ? n + tenth / 10.0
                     : 0;
    snprintf(file, sizeof file, "%s_link_width", which);
    *out_width =
        ds__sys_line(pci, file, line, sizeof line) && sscanf(line, "%3u", &n) && n <= 32 ? n : 0;
}

static void ds__tplace_find(const char *pci, ds__tplace *out) {
    char address[24];
    char path[512];
    char way[1024];
    char line[64];
    size_t n = strlen(pci);
    out->deep = 0;
    out->socket = -1;
    out->plain = 0;
    if (!n || n >= sizeof address)
        return;
    /* CUDA's have capitals */
    for (size_t i = 0; i <= n; i++)
        address[i] = (char)(pci[i] >= 'A' && pci[i] <= 'F' ? pci[i] + ('a' - 'A') : pci[i]);
    if (!ds__sys_path(path, sizeof path, address, "") || !ds__os_link(path, way, sizeof way))
        return;
    for (char *at = way; *at;) { /* ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0 */
        size_t length = strcspn(at, "/");
        if (strncmp(at, "pci", 3) == 0)
            out->deep = 0;
        else if (memchr(at, ':', length) && length < sizeof out->up[0] &&
                 out->deep < DS__TPLACE_DEEP) {
            memcpy(out->up[out->deep], at, length);
            out->up[out->deep++][length] = 0;
        }
        at += length + (at[length] == '/');
    }
    if (ds__sys_line(address, "numa_node", line, sizeof line) &&
        sscanf(line, "%4d", &out->socket) != 1)
        out->socket = -1;
    if (out->deep < 2)
        return;
    double most[2];
    double now[2];
    ds__sysfs_port_read(out->up[out->deep - 2], "max", &most[0], &most[1]);
    ds__sysfs_port_read(address, "current", &now[0], &now[1]);
    out->plain = (most[0] > 0 && most[0] < now[0]) || (most[1] > 0 && most[1] < now[1]);
}

/* Bytes per second of the way up from `low` until below `high`, four fifths of what the links
   carry. Going up, every second step is inside of a switch. */
static double ds__tplace_rate(const ds__tplace *p, int low, int high) {
    double rate = 0;
    for (int at = low; at > high; at--) {
        double speed;
        double width;
        double other[2] = { 0, 0 };
        if ((p->deep - 1 - at) % 2 || (p->plain && at != p->deep - 1))
            continue;
        ds__sysfs_port_read(p->up[at], "max", &speed, &width);
        if (at > 0 && !p->plain)
            ds__sysfs_port_read(p->up[at - 1], "max", &other[0], &other[1]);
        if (speed <= 0 || (other[0] > 0 && other[0] < speed))
            speed = other[0];
        if (width <= 0 || (other[1] > 0 && other[1] < width))
            width = other[1];
        double one = speed * width * 1e9 / 8 * (speed > 5 ? 128.0 / 130 : 0.8) * 0.8;
        if (one > 0 && (rate <= 0 || one < rate))
            rate = one;
    }
    return rate > 0 ? (double)(uint64_t)rate : ds__link_kinds[DS_LINK_PCIE].rate;
}

/* An NVSwitch of the generations that are PCI devices: NVIDIA's, of the class of bridges of
   another kind. */
static int ds__sys_nvswitch(const char *pci) {
    char line[64];
    return ds__sys_line(pci, "class", line, sizeof line) && strncmp(line, "0x0680", 6) == 0 &&
           ds__sys_line(pci, "vendor", line, sizeof line) && strncmp(line, "0x10de", 6) == 0;
}

/* Whether ways to several devices part at the bridge above device i. A root port has one link,
   and what is on it is one card. */
static int ds__tplace_parts(const ds__tplace *place, size_t count, size_t i, int at) {
    for (size_t k = 0; k < count; k++)
        if (at < place[k].deep - 1 && strcmp(place[k].up[at], place[i].up[at]) == 0 &&
            strcmp(place[k].up[at + 1], place[i].up[at + 1]) != 0)
            return 1;
    return 0;
}

#endif
