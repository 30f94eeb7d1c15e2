/* launcher/place/topo_main.c - ddprun-topo: print the CPUs of this machine, one per line
 *
 *     ddprun-topo                         cpu core numa socket
 *     ddprun-topo --synthetic "pack:2 numa:2 core:8 pu:2"
 *     ddprun-topo --xml file.xml
 *
 * The only user of hwloc; see topo.h.
 */
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* hwloc loads all its plugins at start, OpenCL's and X11's too. CPUs need none. */
static void no_plugins(void)
{
    setenv("HWLOC_PLUGINS_PATH", "/dev/null", 1);
}

static int logical_above(hwloc_topology_t t, hwloc_obj_t pu, hwloc_obj_type_t type,
                         int otherwise)
{
    hwloc_obj_t o = hwloc_get_ancestor_obj_by_type(t, type, pu);
    return o ? (int)o->logical_index : otherwise;
}

static int print_cpus(hwloc_topology_t t)
{
    int n = 0;
    for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_PU, pu));) {
        int numa = pu->nodeset ? hwloc_bitmap_first(pu->nodeset) : 0;
        printf("%u %d %d %d\n", pu->os_index,
               logical_above(t, pu, HWLOC_OBJ_CORE, (int)pu->logical_index),
               numa < 0 ? 0 : numa, logical_above(t, pu, HWLOC_OBJ_PACKAGE, 0));
        n++;
    }
    return n > 0 && fflush(stdout) == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    hwloc_topology_t t;
    no_plugins();
    if (hwloc_topology_init(&t) < 0) {
        perror("ddprun-topo: hwloc");
        return 1;
    }
    int rc = 0;
    if (argc == 3 && strcmp(argv[1], "--synthetic") == 0)
        rc = hwloc_topology_set_synthetic(t, argv[2]);
    else if (argc == 3 && strcmp(argv[1], "--xml") == 0)
        rc = hwloc_topology_set_xml(t, argv[2]);
    else if (argc != 1)
        rc = -1;
    if (rc < 0)
        fprintf(stderr, "usage: ddprun-topo [--synthetic TEXT | --xml FILE]\n");
    else if ((rc = hwloc_topology_load(t)) < 0)
        perror("ddprun-topo: hwloc");
    else
        rc = print_cpus(t);
    hwloc_topology_destroy(t);
    return rc < 0;
}
