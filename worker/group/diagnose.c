/* worker/group/diagnose.c - what the launcher reads of this process
 *
 * DDPRUN_DIAGNOSE in the environment is the beginning of the names of two files, which
 * the agent removes.
 *
 * STEM.PID.calls, for hang reports: while a wait lasts longer than some 100 ms, the file
 * has the collective as JSON (trace_of_library() in launcher/plugins/diagnose/trace.h
 * reads it). Shorter waits cost nothing. ddp_group_init() is there from its begin: as the
 * first collective, so that a rank without it has not arrived.
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

/* As JSON. `c` NULL: this rank joins the group, which is to have `size` ranks. */
static void print(const struct ddp_group *g, int size, const struct coll *c,
                  int64_t since_ms, FILE *f)
{
    struct phrase op = {"ddp_group_init"};
    unsigned long long number = c ? c->number : 1, entered = c ? g->number : 1;
    uint64_t elements = c ? coll_agreed(c, size) / type_size(c->type) : 0;
    OWNED char *name = xstrdup(g->name);
    bool first = !g->layout.world_ranks && strcmp(name, "ddp") == 0;
    for (char *p = name; *p; p++)
        *p = iscntrl((unsigned char)*p) || strchr("\"\\", *p) ? '_' : *p;
    if (c)
        op = coll_name(c);
    op.text[strcspn(op.text, " ")] = '\0';
    fprintf(f, "{\"groups\":[{\"id\":\"%s\",\"name\":\"%s\",\"ranks\":[", name,
            first ? "default_pg" : name);
    for (int i = 0; !first && i < size; i++)
        fprintf(f, "%s%d", i ? "," : "", layout_world(&g->layout, i));
    fprintf(f,
            "],\"entered\":%llu,\"done\":%llu}],\"calls\":[{\"group\":\"%s\","
            "\"number\":%llu,\"op\":\"%s\",\"sizes\":[",
            entered, number - 1, name, number, op.text);
    if (elements > 0) /* else they differ between the ranks, or there are none */
        fprintf(f, "[%llu]", (unsigned long long)elements);
    fputs("],\"types\":[", f);
    if (c)
        fprintf(f, "\"%s\"", type_name(c->type));
    fprintf(f, "],\"since_ms\":%lld,\"done\":false}]}\n", (long long)since_ms);
}

static void write_call(const struct ddp_group *g, int size, const struct coll *c,
                       int64_t waited_ms)
{
    OWNED char *text = NULL;
    size_t n;
    FILE *f = xmemstream(&text, &n);
    print(g, size, c, wall_ns() / 1000000 - waited_ms, f);
    xmemclose(f);
    pthread_mutex_lock(&lock);
    calls_fd = calls_fd < 0 ? open_calls() : calls_fd;
    if (calls_fd >= 0 && ftruncate(calls_fd, 0) == 0 && lseek(calls_fd, 0, SEEK_SET) == 0)
        (void)write_all(calls_fd, text, n); /* else the report says less */
    pthread_mutex_unlock(&lock);
}

void hang_info_set(const struct ddp_group *g, int64_t waited_ms)
{
    if (g->colls.first) /* else a message */
        write_call(g, g->layout.size, &g->colls.first->coll, waited_ms);
}

void hang_info_joining(const struct ddp_group *g, int size)
{
    write_call(g, size, NULL, 0);
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
