/* launcher/place/cpubind.c - see cpubind.h
 *
 * CPUs stand in topological order, so a share is a stretch [from, to) of that order, cut
 * where a core ends. A group is a stretch that some of the ranks divide among them: one
 * NUMA node for those whose GPU is there, or the whole machine.
 */
#include "launcher/place/cpubind.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>

struct stretch {
    int from, to;
};

static int count_cores(const struct topo *t, struct stretch s)
{
    int n = 0;
    for (int i = s.from; i < s.to; i++)
        n += i == s.from || t->pus[i].core != t->pus[i - 1].core;
    return n;
}

/* The position where the k-th core of the stretch begins. */
static int core_at(const struct topo *t, struct stretch s, int k)
{
    int i = s.from;
    for (; i < s.to; i++) {
        if (i > s.from && t->pus[i].core == t->pus[i - 1].core)
            continue;
        if (k-- == 0)
            return i;
    }
    return s.to;
}

/* The k-th of n parts: whole cores where there are enough, else hardware threads. More
 * ranks than threads share them. */
static struct stretch part(const struct topo *t, struct stretch s, int k, int n)
{
    long cores = count_cores(t, s), pus = s.to - s.from;
    if (cores >= n)
        return (struct stretch){core_at(t, s, (int)(k * cores / n)),
                                core_at(t, s, (int)((k + 1) * cores / n))};
    int from = s.from + (int)(k * pus / n), to = s.from + (int)((k + 1) * pus / n);
    return (struct stretch){from, to > from ? to : from + 1};
}

/* Where NUMA node `numa` stands in the order; empty when it has none of our CPUs, or
 * does not stand together. */
static struct stretch numa_stretch(const struct topo *t, int numa)
{
    struct stretch s = {0, 0};
    for (int i = 0; i < t->npus; i++) {
        if (t->pus[i].numa != numa)
            continue;
        if (s.to > 0 && s.to != i)
            return (struct stretch){0, 0};
        s.from = s.to ? s.from : i;
        s.to = i + 1;
    }
    return s;
}

/* Can each rank have a thread of the NUMA node it should be near? */
static bool all_near(const struct topo *t, const int *near, int nlocal)
{
    for (int i = 0; i < nlocal; i++) {
        int there = 0;
        for (int k = 0; k < nlocal; k++)
            there += near[k] == near[i];
        struct stretch s = numa_stretch(t, near[i]);
        if (near[i] < 0 || s.to - s.from < there)
            return false;
    }
    return true;
}

static struct stretch near_share(const struct topo *t, const int *near, int rank,
                                 int nlocal)
{
    int before = 0, there = 0;
    for (int k = 0; k < nlocal; k++) {
        there += near[k] == near[rank];
        before += near[k] == near[rank] && k < rank;
    }
    return part(t, numa_stretch(t, near[rank]), before, there);
}

static int key(const struct topo_pu *pu, enum bind_to policy)
{
    return policy == BIND_SOCKET ? pu->socket : pu->numa;
}

/* All CPUs of the NUMA node or socket that each share begins in, and the fair part of
 * them that each rank may count as its own. */
static void widen(enum bind_to policy, const struct topo *t, const struct stretch *shares,
                  int nlocal, struct cpu_share *out)
{
    for (int i = 0; i < nlocal; i++) {
        int mine = key(&t->pus[shares[i].from], policy), ranks = 0, cpus = 0;
        for (int k = 0; k < t->npus; k++) {
            if (key(&t->pus[k], policy) == mine) {
                idset_add(&out[i].cpus, t->pus[k].cpu, t->pus[k].cpu);
                cpus++;
            }
        }
        for (int k = 0; k < nlocal; k++)
            ranks += key(&t->pus[shares[k].from], policy) == mine;
        out[i].ncpus = cpus / ranks > 1 ? cpus / ranks : 1;
    }
}

static void take(const struct topo *t, struct stretch s, struct cpu_share *out)
{
    for (int i = s.from; i < s.to; i++)
        idset_add(&out->cpus, t->pus[i].cpu, t->pus[i].cpu);
    out->ncpus = s.to - s.from;
}

static int numa_of(const struct topo *t, const struct idset *cpus)
{
    int numa = -1;
    for (int i = 0; i < t->npus; i++) {
        if (!idset_has(cpus, t->pus[i].cpu))
            continue;
        if (numa >= 0 && t->pus[i].numa != numa)
            return -1;
        numa = t->pus[i].numa;
    }
    return numa;
}

static int check(enum bind_to policy, const struct topo *t, int nlocal,
                 struct ddp_err *err)
{
    int cores = count_cores(t, (struct stretch){0, t->npus});
    if (t->npus == 0)
        return err_set(err, "cannot bind: the CPUs we may use are not in the topology");
    if (policy == BIND_CORE && nlocal > cores)
        return err_set(err, "cannot bind %d ranks to %d cores; use --bind-to none",
                       nlocal, cores);
    if ((policy == BIND_HWTHREAD || policy == BIND_AUTO) && nlocal > t->npus)
        return err_set(err,
                       "cannot bind %d ranks to %d hardware threads; use --bind-to "
                       "none",
                       nlocal, t->npus);
    return 0;
}

int cpubind(enum bind_to policy, const struct topo *t, const int *near, int nlocal,
            struct cpu_share *out, struct ddp_err *err)
{
    if (check(policy, t, nlocal, err) < 0)
        return -1;
    struct stretch *shares = xcalloc((size_t)nlocal, sizeof *shares);
    bool by_gpu = all_near(t, near, nlocal);
    for (int i = 0; i < nlocal; i++) {
        shares[i] = by_gpu ? near_share(t, near, i, nlocal)
                           : part(t, (struct stretch){0, t->npus}, i, nlocal);
        if (policy == BIND_CORE)
            shares[i].to = core_at(t, (struct stretch){shares[i].from, t->npus}, 1);
        else if (policy == BIND_HWTHREAD)
            shares[i].to = shares[i].from + 1;
    }
    if (policy == BIND_NUMA || policy == BIND_SOCKET)
        widen(policy, t, shares, nlocal, out);
    for (int i = 0; i < nlocal; i++) {
        if (policy != BIND_NUMA && policy != BIND_SOCKET)
            take(t, shares[i], &out[i]);
        out[i].numa = numa_of(t, &out[i].cpus);
    }
    free(shares);
    return 0;
}
