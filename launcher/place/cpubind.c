/* launcher/place/cpubind.c - see cpubind.h
 *
 * CPUs are in topological order, so a rank's share is a range [from, to) of that order,
 * cut at core boundaries. A group is a range divided among some of the ranks: one NUMA
 * node for the ranks whose GPU is attached to it, or the whole machine.
 */
#include "launcher/place/cpubind.h"

#include "common/err.h"
#include "common/mem.h"

struct range {
    int from, to;
};

static int count_cores(const struct topo *t, struct range s)
{
    int n = 0;
    for (int i = s.from; i < s.to; i++)
        n += i == s.from || t->pus[i].core != t->pus[i - 1].core;
    return n;
}

/* The index of the first CPU of the k-th core in the range. */
static int core_at(const struct topo *t, struct range s, int k)
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

/* The k-th of n parts: whole cores if there are enough, else hardware threads. With more
 * ranks than threads, ranks share threads. */
static struct range part(const struct topo *t, struct range s, int k, int n)
{
    long cores = count_cores(t, s), pus = s.to - s.from;
    if (cores >= n)
        return (struct range){core_at(t, s, (int)(k * cores / n)),
                              core_at(t, s, (int)((k + 1) * cores / n))};
    int from = s.from + (int)(k * pus / n), to = s.from + (int)((k + 1) * pus / n);
    return (struct range){from, to > from ? to : from + 1};
}

/* The range of NUMA node `numa`; empty when it has none of our CPUs, or they are not
 * contiguous. */
static struct range numa_range(const struct topo *t, int numa)
{
    struct range s = {0, 0};
    for (int i = 0; i < t->npus; i++) {
        if (t->pus[i].numa != numa)
            continue;
        if (s.to > 0 && s.to != i)
            return (struct range){0, 0};
        s.from = s.to ? s.from : i;
        s.to = i + 1;
    }
    return s;
}

/* Does each NUMA node have at least one thread per rank that should be near it? */
static bool all_near(const struct topo *t, const int *near, int nlocal)
{
    for (int i = 0; i < nlocal; i++) {
        int there = 0;
        for (int k = 0; k < nlocal; k++)
            there += near[k] == near[i];
        struct range s = numa_range(t, near[i]);
        if (near[i] < 0 || s.to - s.from < there)
            return false;
    }
    return true;
}

static struct range near_share(const struct topo *t, const int *near, int rank,
                               int nlocal)
{
    int before = 0, there = 0;
    for (int k = 0; k < nlocal; k++) {
        there += near[k] == near[rank];
        before += near[k] == near[rank] && k < rank;
    }
    return part(t, numa_range(t, near[rank]), before, there);
}

static int key(const struct topo_pu *pu, enum bind_to policy)
{
    return policy == BIND_SOCKET ? pu->socket : pu->numa;
}

/* Extend each share to the NUMA node or socket it begins in; a rank counts its equal part
 * of those CPUs as its own. */
static void widen(enum bind_to policy, const struct topo *t, const struct range *shares,
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

static void take(const struct topo *t, struct range s, struct cpu_share *out)
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
    int cores = count_cores(t, (struct range){0, t->npus});
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
    TRY(check(policy, t, nlocal, err));
    OWNED struct range *shares = xcalloc((size_t)nlocal, sizeof *shares);
    bool by_gpu = all_near(t, near, nlocal);
    for (int i = 0; i < nlocal; i++) {
        shares[i] = by_gpu ? near_share(t, near, i, nlocal)
                           : part(t, (struct range){0, t->npus}, i, nlocal);
        if (policy == BIND_CORE)
            shares[i].to = core_at(t, (struct range){shares[i].from, t->npus}, 1);
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
    return 0;
}
