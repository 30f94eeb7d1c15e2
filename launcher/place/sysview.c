/* launcher/place/sysview.c - see sysview.h
 *
 * No scan of the PCI bus: a server has hundreds of devices, each sysfs file costs as much
 * as all of this together, and a GPU without a driver is useless anyway.
 */
#include "launcher/place/sysview.h"

#include "common/affinity.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/read_start.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An entry for each GPU. */
#define GPUS "/proc/driver/nvidia/gpus"

/* The beginning of a file, as text; false when there is none. */
static bool read_small(const char *root, const char *path, char *text, size_t size)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return false;
    return read_start(full, text, size) > 0;
}

void sysview_cpus(struct idset *cpus)
{
    struct affinity own;
    if (affinity_get(0, &own) < 0)
        idset_add(cpus, 0, 0);
    for (int i = 0; i < AFFINITY_CPUS; i++) {
        if (affinity_has(&own, i))
            idset_add(cpus, i, i);
    }
}

int sysview_numa_nodes(const char *root)
{
    char text[256];
    SCOPED(idset_finish) struct idset nodes = {0};
    if (!read_small(root, "/sys/devices/system/node/has_cpu", text, sizeof text) &&
        !read_small(root, "/sys/devices/system/node/online", text, sizeof text))
        return 1;
    text[strcspn(text, "\n")] = '\0';
    return idset_parse(text, &nodes, NULL) == 0 ? (int)idset_count(&nodes) : 1;
}

/* --- GPUs --------------------------------------------------------------------------- */

/* The entries of a directory: all but dot files or, with `devices`, "nvidiaN". */
static void list_entries(const char *root, const char *path, bool devices,
                         struct strv *names)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    SCOPED(close_folder) DIR *d = opendir(full);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *name = e->d_name;
        if (devices ? strncmp(name, "nvidia", 6) == 0 && isdigit((unsigned char)name[6])
                    : name[0] != '.')
            strv_push(names, name);
    }
}

static int count_gpus(const char *root)
{
    char full[1024];
    SCOPED(strv_finish) struct strv names = {0};
    list_entries(root, GPUS, false, &names);
    snprintf(full, sizeof full, "%s/dev/nvidiactl", root);
    if (names.n == 0 && access(full, F_OK) == 0)
        list_entries(root, "/dev", true, &names);
    return (int)names.n;
}

/* As CUDA parses the variable: the list ends at the first invalid entry. */
static void pick_visible(const char *visible, int count, struct strv *gpus)
{
    for (const char *p = visible; *p;) {
        p += strspn(p, " ");
        size_t len = strcspn(p, ",");
        char *word = xstrndup(p, len);
        int index;
        if (!number_whole(word, 0, count - 1, &index) && strncmp(word, "GPU-", 4) != 0 &&
            strncmp(word, "MIG-", 4) != 0) {
            free(word);
            return;
        }
        strv_push_nodup(gpus, word);
        p += len + (p[len] == ',');
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The driver names its entries by PCI address; sorted, they are in index order. */
int sysview_gpu_numa(const char *root, int index)
{
    char path[1024], text[32];
    SCOPED(strv_finish) struct strv addresses = {0};
    int numa = -1;
    list_entries(root, GPUS, false, &addresses);
    if (index >= 0 && (size_t)index < addresses.n) {
        qsort(addresses.v, addresses.n, sizeof *addresses.v, by_name);
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node",
                 addresses.v[index]);
        if (read_small(root, path, text, sizeof text))
            numa = atoi(text);
    }
    return numa;
}

void sysview_gpus(const char *root, const char *visible, struct strv *gpus)
{
    int count = count_gpus(root);
    if (visible && count > 0)
        pick_visible(visible, count, gpus);
    for (int i = 0; !visible && i < count; i++)
        strv_pushf(gpus, "%d", i);
}
