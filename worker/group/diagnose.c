/* worker/group/diagnose.c - what the launcher reads of this process
 *
 * DDPRUN_DIAGNOSE in the environment is the beginning of the names of two files, which
 * the agent removes.
 *
 * STEM.PID.calls, for hang reports: while a wait lasts longer than some 300 ms, the file
 * has the collective or message as JSON (trace_of_library() of
 * launcher/plugins/diagnose/trace.h reads it). Shorter waits cost nothing.
 * ddp_group_init() is there from its begin: as the first collective, so that a rank
 * without it has not arrived.
 *
 * STEM.PID.arrivals, for --stragglers: when this rank has entered its collectives.
 * DDPRUN_ARRIVALS in the environment switches it on: 40 ns per collective; otherwise it
 * costs a test of a pointer. It is mapped by the first group and stays: threads of other
 * groups may write to it.
 */
#include "worker/group/group.h"

#include "common/arrivals.h"
#include "common/duration.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/write_all.h"
#include "worker/group/reduce.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the collective that is waited for ---- */

/* Of several waits of a process the file has the one that began last. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls_fd = -1;

static int open_calls(void)
{
    const char *stem = getenv("DDPRUN_DIAGNOSE");
    OWNED char *path = stem ? xasprintf("%s.%d.calls", stem, (int)getpid()) : NULL;
    return path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
}

/* As JSON: the groups, of which there is one. "ddp/..." is PyTorch's default one
 * (ddprun.torch), "group/..." another one of it. One of some ranks is known by these. */
static void print_group(const char *id, int size, const int *world,
                        unsigned long long entered, unsigned long long done, FILE *f)
{
    bool all = !world && (strcmp(id, "ddp") == 0 || strncmp(id, "ddp/", 4) == 0);
    fprintf(f, "{\"groups\":[{\"id\":\"%s\",\"name\":\"%s\",\"ranks\":[", id,
            all                        ? "default_pg"
            : world || strchr(id, '/') ? ""
                                       : id);
    for (int i = 0; !all && i < size; i++)
        fprintf(f, "%s%d", i ? "," : "", world ? world[i] : i);
    fprintf(f, "],\"entered\":%llu,\"done\":%llu}],\"calls\":[", entered, done);
}

static void print_call(const char *id, unsigned long long number, const char *op,
                       uint64_t elements, const char *type, long long since_ms, FILE *f)
{
    fprintf(f, "{\"group\":\"%s\",\"number\":%llu,\"op\":\"%.*s\",\"sizes\":[", id,
            number, (int)strcspn(op, " "), op);
    if (elements > 0) /* else they differ between the ranks, or there are none */
        fprintf(f, "[%llu]", (unsigned long long)elements);
    fprintf(f, "],\"types\":[%s%s%s],\"since_ms\":%lld,\"done\":false}", type ? "\"" : "",
            type ? type : "", type ? "\"" : "", since_ms);
}

static void print_message(const struct ddp_request *r, long long since_ms, FILE *f)
{
    bool sends = r->kind == REQUEST_SEND;
    fprintf(f, "],\"message\":{\"op\":\"%s\",\"since_ms\":%lld,\"awaits\":[",
            r->what  ? "ddp_group_sub"
            : sends  ? "send"
            : r->any ? "recv_any"
                     : "recv",
            since_ms);
    if (!r->any)
        fprintf(f, "[\"\",%d,%d,0,%s]", layout_world(&r->group->layout, r->peer), r->tag,
                sends ? "true" : "false");
    fputs("]}}\n", f);
}

static char *id_of(const struct ddp_group *g)
{
    char *id = xstrdup(g->name);
    for (char *p = id; *p; p++)
        *p = iscntrl((unsigned char)*p) || strchr("\"\\", *p) ? '_' : *p;
    return id;
}

static void write_calls(const char *text, size_t n)
{
    pthread_mutex_lock(&lock);
    calls_fd = calls_fd < 0 ? open_calls() : calls_fd;
    if (calls_fd >= 0 && ftruncate(calls_fd, 0) == 0 && lseek(calls_fd, 0, SEEK_SET) == 0)
        (void)write_all(calls_fd, text, n); /* else the report says less */
    pthread_mutex_unlock(&lock);
}

void hang_info_set(const struct ddp_group *g, const struct ddp_request *r,
                   int64_t waited_ms)
{
    const struct coll *c = g->colls.first ? &g->colls.first->coll : NULL;
    long long since_ms = wall_ns() / 1000000 - waited_ms;
    OWNED char *text = NULL, *id = id_of(g);
    size_t n;
    FILE *f = xmemstream(&text, &n);
    print_group(id, g->layout.size, g->layout.world_ranks, g->number,
                c ? c->number - 1 : g->number, f);
    if (c)
        print_call(id, c->number, coll_name(c).text,
                   coll_agreed(c, g->layout.size) / type_size(c->type),
                   type_name(c->type), since_ms, f);
    if (r->kind == REQUEST_COLL)
        fputs("]}\n", f);
    else
        print_message(r, since_ms, f);
    xmemclose(f);
    write_calls(text, n);
}

void hang_info_joining(const struct ddp_group *g, int size, const int *world)
{
    OWNED char *text = NULL, *id = id_of(g);
    size_t n;
    FILE *f = xmemstream(&text, &n);
    print_group(id, size, world, 1, 0, f);
    print_call(id, 1, "ddp_group_init", 0, NULL, wall_ns() / 1000000, f);
    fputs("]}\n", f);
    xmemclose(f);
    write_calls(text, n);
}

void hang_info_clear(void)
{
    pthread_mutex_lock(&lock);
    if (calls_fd >= 0 && ftruncate(calls_fd, 0) < 0)
        close_fd(&calls_fd);
    pthread_mutex_unlock(&lock);
}

/* ---- when collectives were entered ---- */

static struct arrivals_file *_Atomic file;

static void map_file(void)
{
    file = arrivals_map();
}

/* Groups of the same name may be made of different ranks. */
void arrivals_open(struct ddp_group *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, map_file);
    uint64_t id = fnv1a(FNV1A, g->name, strlen(g->name));
    size_t n = (size_t)g->layout.size * sizeof *g->layout.world_ranks;
    g->id = g->layout.world_ranks ? fnv1a(id, g->layout.world_ranks, n) : id;
}

void arrivals_note(const struct ddp_group *g)
{
    struct arrivals_file *f = atomic_load_explicit(&file, memory_order_relaxed);
    if (f)
        arrivals_add(f, g->id, g->number, now_ns());
}
