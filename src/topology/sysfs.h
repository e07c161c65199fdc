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

/* Position of a device in the PCIe tree. */
typedef struct ds__tplace {
    /* PCI addresses: the bridges above the device from the root port on, then the device */
    char up[DS__TPLACE_DEEP][24];
    int deep;   /* number of addresses in `up`; 0: unknown */
    int socket; /* NUMA node, or -1 */
    int plain;  /* 1: the values of the bridges are not used */
} ds__tplace;

/* Speed of a port in GT/s and its number of lanes; 0: unknown. */
typedef struct ds__sysfs_port {
    double speed;
    double width;
} ds__sysfs_port;

/* Writes the path of a file of a PCI device, of its folder (empty `file`), or of the folder of all
   devices (empty `pci`). Returns 0 if the path is too long. */
static int ds__sys_path(char *out, size_t size, const char *pci, const char *file) {
    const char *root = getenv("DEVSTREAM_SYSFS");
    return (size_t)snprintf(out, size, "%s/bus/pci/devices%s%s%s%s", root && *root ? root : "/sys",
                            *pci ? "/" : "", pci, *file ? "/" : "", file) < size;
}

/* Reads the first line of a file of a PCI device. Returns 0 if the file cannot be read. */
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

/* Returns the greatest ("max") or the current ("current") values of a port. */
static ds__sysfs_port ds__sysfs_port_read(const char *pci, const char *which) {
    ds__sysfs_port port = { 0, 0 };
    char file[32];
    char line[64];
    unsigned n = 0;
    unsigned tenth = 0;
    snprintf(file, sizeof file, "%s_link_speed", which);
    if (ds__sys_line(pci, file, line, sizeof line) && sscanf(line, "%4u.%1u", &n, &tenth) > 0 &&
        n < 10000) /* "-7" is read as a large number */
        port.speed = n + tenth / 10.0;
    snprintf(file, sizeof file, "%s_link_width", which);
    if (ds__sys_line(pci, file, line, sizeof line) && sscanf(line, "%3u", &n) > 0 && n <= 32)
        port.width = n;
    return port;
}

/* Lists the PCI addresses of a path such as
   ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0, from the root port on. */
static void ds__tplace_parse(const char *at, ds__tplace *out) {
    while (*at) {
        size_t length = strcspn(at, "/");
        if (strncmp(at, "pci", 3) == 0) {
            out->deep = 0;
        } else if (memchr(at, ':', length) && length < sizeof out->up[0] &&
                   out->deep < DS__TPLACE_DEEP) {
            memcpy(out->up[out->deep], at, length);
            out->up[out->deep++][length] = 0;
        }
        at += length + (at[length] == '/');
    }
}

/* Returns 1 if the bridge above the device promises less than the device's link runs at now: the
   bridges are those of a virtual machine. */
static int ds__tplace_is_plain(const ds__tplace *p, const char *address) {
    if (p->deep < 2)
        return 0;
    ds__sysfs_port most = ds__sysfs_port_read(p->up[p->deep - 2], "max");
    ds__sysfs_port now = ds__sysfs_port_read(address, "current");
    return (most.speed > 0 && most.speed < now.speed) || (most.width > 0 && most.width < now.width);
}

/* Finds the position of a PCI device. If the device or its files are missing, all values are
   unknown. */
static void ds__tplace_find(const char *pci, ds__tplace *out) {
    char address[24];
    char path[512];
    char real[1024];
    char line[64];
    size_t n = strlen(pci);
    out->deep = 0;
    out->socket = -1;
    out->plain = 0;
    if (!n || n >= sizeof address)
        return;
    /* CUDA writes capitals, /sys does not */
    for (size_t i = 0; i <= n; i++)
        address[i] = (char)(pci[i] >= 'A' && pci[i] <= 'F' ? pci[i] + ('a' - 'A') : pci[i]);
    if (!ds__sys_path(path, sizeof path, address, "") || !ds__os_link(path, real, sizeof real))
        return;
    ds__tplace_parse(real, out);
    if (ds__sys_line(address, "numa_node", line, sizeof line) &&
        sscanf(line, "%4d", &out->socket) != 1)
        out->socket = -1;
    out->plain = ds__tplace_is_plain(out, address);
}

/* Returns the lesser of two values, of which 0 is unknown. */
static double ds__sysfs_lesser(double a, double b) {
    return a <= 0 || (b > 0 && b < a) ? b : a;
}

/* Returns the bytes per second of the link above entry `at` of the path: four fifths of what both
   ends support; 0: unknown. Links of up to 5 GT/s lose a fifth to their code, faster ones 2 of 130
   bits. */
static double ds__tplace_link_rate(const ds__tplace *p, int at) {
    ds__sysfs_port port = ds__sysfs_port_read(p->up[at], "max");
    if (at > 0 && !p->plain) {
        ds__sysfs_port other = ds__sysfs_port_read(p->up[at - 1], "max");
        port.speed = ds__sysfs_lesser(port.speed, other.speed);
        port.width = ds__sysfs_lesser(port.width, other.width);
    }
    return port.speed * port.width * 1e9 / 8 * (port.speed > 5 ? 128.0 / 130 : 0.8) * 0.8;
}

/* Returns the bytes per second from entry `low` of the path up to, but without, entry `high`: the
   rate of the slowest link. Upwards from the device, every second step is inside of a switch. */
static double ds__tplace_rate(const ds__tplace *p, int low, int high) {
    double rate = 0;
    for (int at = low; at > high; at--) {
        if ((p->deep - 1 - at) % 2 || (p->plain && at != p->deep - 1))
            continue;
        rate = ds__sysfs_lesser(rate, ds__tplace_link_rate(p, at));
    }
    return rate > 0 ? (double)(uint64_t)rate : ds__link_kinds[DS_LINK_PCIE].rate;
}

/* Returns 1 if a PCI device is an NVSwitch: a device of NVIDIA in the class "other bridge". Not all
   generations of NVSwitches are PCI devices. */
static int ds__sys_nvswitch(const char *pci) {
    char line[64];
    return ds__sys_line(pci, "class", line, sizeof line) && strncmp(line, "0x0680", 6) == 0 &&
           ds__sys_line(pci, "vendor", line, sizeof line) && strncmp(line, "0x10de", 6) == 0;
}

/* Returns 1 if paths to several devices part at entry `at` above device i. Entry 0, the root port,
   has one link, to one card. */
static int ds__tplace_parts(const ds__tplace *place, size_t count, size_t i, int at) {
    for (size_t k = 0; k < count; k++)
        if (at < place[k].deep - 1 && strcmp(place[k].up[at], place[i].up[at]) == 0 &&
            strcmp(place[k].up[at + 1], place[i].up[at + 1]) != 0)
            return 1;
    return 0;
}

#endif
