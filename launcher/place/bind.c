/* launcher/place/bind.c - see bind.h
 *
 * Cheap checks first: most launches on a small machine need only the affinity mask and
 * one file; ddprun-topo is not run.
 */
#include "launcher/place/bind.h"

#include "common/cgroup.h"
#include "common/idset.h"
#include "common/mem.h"
#include "common/number.h"
#include "launcher/place/cpubind.h"
#include "launcher/place/sysview.h"
#include "launcher/place/topo.h"

#include <limits.h>
#include <stdlib.h>

/* Without topology: ranks are not bound, and each counts an equal share of the CPUs. */
static void share(int ncpus, int nlocal, struct binding *out)
{
    for (int i = 0; i < nlocal; i++) {
        int mine = ncpus / nlocal + (i < ncpus % nlocal);
        out[i] = (struct binding){.ncpus = mine > 0 ? mine : 1, .numa = -1, .gpu = -1};
    }
}

static void set_cpus(struct binding *b, const struct cpu_share *s)
{
    int last = s->cpus.n ? s->cpus.spans[s->cpus.n - 1].hi : 0;
    b->cpus = CPU_ALLOC((size_t)last + 1);
    b->cpus_size = CPU_ALLOC_SIZE((size_t)last + 1);
    if (!b->cpus)
        abort();
    CPU_ZERO_S(b->cpus_size, b->cpus);
    for (size_t i = 0; i < s->cpus.n; i++) {
        for (int cpu = s->cpus.spans[i].lo; cpu <= s->cpus.spans[i].hi; cpu++)
            CPU_SET_S((size_t)cpu, b->cpus_size, b->cpus);
    }
    b->cpus_text = idset_text(&s->cpus);
    b->ncpus = s->ncpus;
    b->numa = s->numa;
}

/* -1 for a UUID: only the driver could resolve it. */
static int gpu_numa(const struct strv *gpus, int local_rank)
{
    int index;
    return gpus->n > 0 &&
                   number_whole(gpus->v[(size_t)local_rank % gpus->n], 0, INT_MAX, &index)
               ? sysview_gpu_numa("", index)
               : -1;
}

static int bind_by_topology(enum bind_to policy, int nlocal, const struct idset *allowed,
                            const struct strv *gpus, int quota, struct binding *out,
                            struct ddp_err *err)
{
    SCOPED(topo_finish) struct topo topo = {0};
    OWNED struct cpu_share *shares = xcalloc((size_t)nlocal, sizeof *shares);
    OWNED int *near = xcalloc((size_t)nlocal, sizeof *near);
    for (int i = 0; i < nlocal; i++)
        near[i] = gpu_numa(gpus, i);
    int rc = topo_load(&topo, err);
    if (rc == 0) {
        topo_restrict(&topo, allowed);
        rc = cpubind(policy, &topo, near, nlocal, shares, err);
    }
    for (int i = 0; i < nlocal; i++) {
        if (rc == 0 && shares[i].cpus.n > 0)
            set_cpus(&out[i], &shares[i]);
        /* a quota below the number of CPUs limits the CPUs per rank */
        int most = quota / nlocal > 1 ? quota / nlocal : 1;
        if (quota && out[i].ncpus > most)
            out[i].ncpus = most;
        idset_finish(&shares[i].cpus);
    }
    return rc;
}

int bind_node(enum bind_to policy, int nlocal, struct binding *out, struct ddp_err *err)
{
    SCOPED(idset_finish) struct idset allowed = {0};
    SCOPED(strv_finish) struct strv gpus = {0};
    sysview_cpus(&allowed);
    sysview_gpus("", getenv("CUDA_VISIBLE_DEVICES"), &gpus);
    int quota = cgroup_cpus(""), ncpus = (int)idset_count(&allowed);
    share(quota && quota < ncpus ? quota : ncpus, nlocal, out);
    for (int i = 0; i < nlocal && gpus.n > 0; i++) {
        out[i].gpu = i % (int)gpus.n;
        if (policy & BIND_ONE_GPU)
            out[i].gpu_text = xstrdup(gpus.v[out[i].gpu]);
    }
    policy &= ~(enum bind_to)BIND_ONE_GPU;
    int rc = 0;
    if (policy == BIND_AUTO) {
        /* binding near the GPU is optional: errors are ignored */
        if (nlocal <= ncpus && (gpus.n > 0 || sysview_numa_nodes("") > 1))
            bind_by_topology(policy, nlocal, &allowed, &gpus, quota, out, NULL);
    } else if (policy != BIND_NONE) {
        rc = bind_by_topology(policy, nlocal, &allowed, &gpus, quota, out, err);
    }
    return rc;
}

void binding_finish(struct binding *b, int nlocal)
{
    for (int i = 0; i < nlocal; i++) {
        CPU_FREE(b[i].cpus);
        free(b[i].cpus_text);
        free(b[i].gpu_text);
        b[i] = (struct binding){0};
    }
}

int topo_gpus(void)
{
    SCOPED(strv_finish) struct strv gpus = {0};
    sysview_gpus("", getenv("CUDA_VISIBLE_DEVICES"), &gpus);
    return (int)gpus.n;
}
