/* bench/store/load.c - store-load: one thread that plays many clients of a key-value
 * store
 *
 *     store-load KIND HOST PORT OP [--clients N] [--depth P] [--ops N] [--size B]
 *                [--keys K] [--rounds R] [--pid PID] [--from ADDRESS] [--each C]
 *
 * KIND is ddp, libuv, redis or echo; OP is get, set, add, waitget, mget, wake, fence or
 * connect. Prints one line of JSON: operations, seconds, the server's CPU time for them
 * (of PID, all threads), and the 50th and 99th percentile of a round in microseconds.
 * With
 * --from the clients come from consecutive addresses, C from each.
 */
#include "bench/store/peers.h"

#include "common/duration.h"
#include "common/mem.h"

#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CONNECT_WINDOW 128

struct run {
    struct shape shape;
    const char *host;
    struct hosts from;
    int port, pid;
    size_t ops, rounds;
    double done; /* operations that were timed */
    int64_t wall_ns, cpu_ns;
};

/* CPU time of all threads of a process: nanoseconds from schedstat. */
static int64_t cpu_of(int pid)
{
    char path[64];
    int64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = pid ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char file[400];
        int64_t ns;
        snprintf(file, sizeof file, "%s/%s/schedstat", path, e->d_name);
        FILE *f = *e->d_name == '.' ? NULL : fopen(file, "r");
        if (f && fscanf(f, "%" SCNd64, &ns) == 1)
            sum += ns;
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return sum;
}

static void clock_start(struct run *r)
{
    r->cpu_ns -= cpu_of(r->pid);
    r->wall_ns -= now_ns();
}

static void clock_stop(struct run *r, double ops)
{
    r->wall_ns += now_ns();
    r->cpu_ns += cpu_of(r->pid);
    r->done += ops;
}

static int usage(void)
{
    fprintf(stderr, "usage: store-load {ddp|libuv|redis|echo} HOST PORT "
                    "{get|set|add|waitget|mget|wake|fence|connect} [--clients N] "
                    "[--depth P] [--ops N] [--size B] [--keys K] [--rounds R] "
                    "[--pid PID] [--from ADDRESS] [--each C]\n");
    return 2;
}

/* get, set, add, waitget, mget */
static int run_ops(struct run *r, struct peers *p)
{
    struct workload w;
    struct exchange keys;
    if (!workload_make(&r->shape, &w)) {
        fprintf(stderr, "store-load: this kind of server has no '%s'\n", r->shape.op);
        return 2;
    }
    if (workload_prepare(&r->shape, &keys) && keys.request.n > 0)
        peers_run_one(p, 0, &keys);
    exchange_finish(&keys);
    p->nsamples = 0;
    size_t batches = r->ops / r->shape.depth;
    size_t first = batches < p->n ? batches : p->n;
    clock_start(r);
    for (size_t i = 0; i < first; i++)
        peer_start(p, i, &w);
    peers_run(p, batches - first);
    clock_stop(r, (double)(batches * r->shape.depth));
    exchange_finish(&w.steps[0]);
    return 0;
}

static int run_fence(struct run *r, struct peers *p)
{
    if (r->shape.kind != KIND_DDP && r->shape.kind != KIND_LIBUV)
        return usage();
    for (size_t round = 0; round < r->rounds; round++) {
        struct workload w;
        char salt[16]; /* keys of another process' run may be there still */
        snprintf(salt, sizeof salt, "%d", getpid());
        size_t name = strtoul(salt, NULL, 10) * 100 + round;
        workload_fence(&r->shape, name, &w);
        for (size_t i = 0; i < p->n; i++) {
            p->all[i].own.n = 0;
            workload_fence_own(&r->shape, name, i, &p->all[i].own);
        }
        clock_start(r);
        for (size_t i = 0; i < p->n; i++)
            peer_start(p, i, &w);
        peers_run(p, 0);
        clock_stop(r, 1);
        for (size_t i = 0; i < w.nsteps; i++)
            exchange_finish(&w.steps[i]);
    }
    return 0;
}

/* The last peer wakes the others. Only the waking is timed, not the going to sleep. */
static int run_wake(struct run *r, struct peers *p)
{
    struct exchange subscribe;
    workload_subscribe(&r->shape, &subscribe);
    for (size_t i = 0; i + 1 < p->n && subscribe.request.n > 0; i++)
        peers_run_one(p, i, &subscribe);
    for (size_t round = 0; round < r->rounds; round++) {
        struct workload waits = {.nsteps = 1}, wakes = {.nsteps = 1};
        workload_wake(&r->shape, (size_t)getpid() * 100 + round, &waits.steps[0],
                      &wakes.steps[0]);
        for (size_t i = 0; i + 1 < p->n; i++)
            peer_start(p, i, &waits);
        usleep(50000); /* until all of them wait */
        clock_start(r);
        peer_start(p, p->n - 1, &wakes);
        peers_run(p, 0);
        clock_stop(r, (double)(p->n - 1));
        exchange_finish(&waits.steps[0]);
        exchange_finish(&wakes.steps[0]);
    }
    exchange_finish(&subscribe);
    return 0;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(const struct run *r, struct peers *p)
{
    qsort(p->samples, p->nsamples, sizeof *p->samples, compare);
    int64_t p50 = p->nsamples ? p->samples[p->nsamples / 2] : 0;
    int64_t p99 = p->nsamples ? p->samples[p->nsamples * 99 / 100] : 0;
    printf("{\"ops\": %.0f, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"p50_us\": %.2f, "
           "\"p99_us\": %.2f}\n",
           r->done, (double)r->wall_ns / 1e9, (double)r->cpu_ns / 1e9, (double)p50 / 1e3,
           (double)p99 / 1e3);
}

static int run(struct run *r)
{
    struct peers p;
    size_t n = r->shape.clients;
    int rc = 0;
    bool connects = strcmp(r->shape.op, "connect") == 0;
    bool wakes = strcmp(r->shape.op, "wake") == 0;
    if (connects)
        clock_start(r);
    peers_open(&p, r->host, r->port, &r->from, r->shape.kind, wakes ? n + 1 : n,
               r->from.first ? n : CONNECT_WINDOW);
    if (connects)
        clock_stop(r, (double)n);
    else if (wakes)
        rc = run_wake(r, &p);
    else if (strcmp(r->shape.op, "fence") == 0)
        rc = run_fence(r, &p);
    else
        rc = run_ops(r, &p);
    if (rc == 0)
        report(r, &p);
    peers_close(&p);
    return rc;
}

static bool kind_of(const char *name, enum kind *kind)
{
    static const char *const names[] = {"ddp", "libuv", "redis", "echo"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *kind = (enum kind)i;
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"clients", required_argument, NULL, 'c'},
                                            {"depth", required_argument, NULL, 'd'},
                                            {"ops", required_argument, NULL, 'o'},
                                            {"size", required_argument, NULL, 's'},
                                            {"keys", required_argument, NULL, 'k'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"pid", required_argument, NULL, 'p'},
                                            {"each", required_argument, NULL, 'e'},
                                            {"from", required_argument, NULL, 'f'},
                                            {NULL, 0, NULL, 0}};
    struct run r = {.shape = {.clients = 1, .depth = 1, .size = 64, .keys = 16},
                    .ops = 10000,
                    .from = {.each = 1},
                    .rounds = 1};
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        size_t n = o == '?' ? 0 : strtoul(optarg, NULL, 10);
        if (n == 0)
            return usage();
        *(o == 'c'   ? &r.shape.clients
          : o == 'd' ? &r.shape.depth
          : o == 'o' ? &r.ops
          : o == 's' ? &r.shape.size
          : o == 'k' ? &r.shape.keys
          : o == 'r' ? &r.rounds
          : o == 'e' ? &r.from.each
                     : &(size_t){0}) = n;
        if (o == 'p')
            r.pid = (int)n;
        else if (o == 'f')
            r.from.first = optarg;
    }
    if (argc - optind != 4 || !kind_of(argv[optind], &r.shape.kind))
        return usage();
    r.host = argv[optind + 1];
    r.port = atoi(argv[optind + 2]);
    r.shape.op = argv[optind + 3];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    return run(&r);
}
