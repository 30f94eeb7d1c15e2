/* worker/group/hang_info.c - for the launcher's hang reports: what this rank waits for
 *
 * DDPRUN_DIAGNOSE in the environment is the beginning of the name of a file. While a wait
 * lasts longer than some 100 ms, the file has the collective as JSON (trace_of_library()
 * in launcher/plugins/diagnose/trace.h reads it). Shorter waits cost nothing.
 */
#include "worker/group/group.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/write_all.h"
#include "worker/group/reduce.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of several waits of a process the file has the one that began last. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;

static int open_file(void)
{
    const char *stem = getenv("DDPRUN_DIAGNOSE");
    char *path = stem ? xasprintf("%s.%d.calls", stem, (int)getpid()) : NULL;
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    free(path);
    return fd;
}

static void print_name(const struct ddp_group *g, FILE *f)
{
    for (const char *p = g->name; *p; p++)
        fputc(iscntrl((unsigned char)*p) || strchr("\"\\", *p) ? '_' : *p, f);
}

static void print(const struct ddp_group *g, int64_t since_ms, FILE *f)
{
    char op[64];
    const struct coll *c = &g->first->coll;
    bool first = !g->layout.world_ranks && strcmp(g->name, "ddp") == 0;
    uint64_t bytes = coll_agreed(c, g->layout.size);
    coll_name(c, op, sizeof op);
    op[strcspn(op, " ")] = '\0';
    fputs("{\"groups\":[{\"id\":\"", f);
    print_name(g, f);
    fputs("\",\"name\":\"", f);
    if (first)
        fputs("default_pg", f);
    else
        print_name(g, f);
    fputs("\",\"ranks\":[", f);
    for (int i = 0; !first && i < g->layout.size; i++)
        fprintf(f, "%s%d", i ? "," : "",
                g->layout.world_ranks ? g->layout.world_ranks[i] : i);
    fprintf(f, "],\"entered\":%llu,\"done\":%llu}],\"calls\":[{\"group\":\"",
            (unsigned long long)g->number, (unsigned long long)c->number - 1);
    print_name(g, f);
    fprintf(f, "\",\"number\":%llu,\"op\":\"%s\",\"sizes\":[",
            (unsigned long long)c->number, op);
    if (bytes > 0)
        fprintf(f, "[%llu]", (unsigned long long)bytes / type_size(c->type));
    fprintf(f, "],\"types\":[\"%s\"],\"since_ms\":%lld,\"done\":false}]}\n",
            type_name(c->type), (long long)since_ms);
}

void hang_info_set(const struct ddp_group *g, int64_t waited_ms)
{
    char *text = NULL;
    size_t n;
    if (!g->first)
        return; /* a message */
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return;
    print(g, wall_ns() / 1000000 - waited_ms, f);
    fclose(f);
    pthread_mutex_lock(&lock);
    file = file < 0 ? open_file() : file;
    if (file >= 0 && ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0 &&
        write_all(file, text, n) < 0) {
        /* the report says less */
    }
    pthread_mutex_unlock(&lock);
    free(text);
}

void hang_info_clear(void)
{
    pthread_mutex_lock(&lock);
    if (file >= 0 && ftruncate(file, 0) < 0) {
        close(file);
        file = -1;
    }
    pthread_mutex_unlock(&lock);
}
