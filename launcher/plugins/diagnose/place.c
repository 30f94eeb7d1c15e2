/* launcher/plugins/diagnose/place.c - see place.h
 *
 * Frames are read from the innermost one outwards. Those of libraries are skipped; the
 * first other one is where the user's own code is. The name of the outermost library
 * function that communicates is what the user has called.
 */
#include "launcher/plugins/diagnose/place.h"

#include "common/mem.h"

#include <string.h>

/* Parts of paths. "<frozen" and the like are Python's own. */
static const char *const library_paths[] = {
    "/site-packages/", "/dist-packages/", "/lib/python", "<frozen ",       "<string>",
    "/sysdeps/",       "/usr/include/",   "./",          "/preload/rank/",
};

/* Functions in these files wait for other ranks. */
static const char *const torch_paths[] = {
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/nn/functional.py",
};

/* Without debug information: prefixes of the names of libraries' functions. */
static const char *const native_ops[] = {"MPI_", "PMPI_", "ddp_", "ncclAll", "ncclBcast"};
static const char *const native_libraries[] = {
    "__",        "_PMI",    "PMI",   "pmix",     "PMIx", "opal_",
    "ompi_",     "MPIR_",   "MPID",  "epoll_",   "poll", "clock_nanosleep",
    "nanosleep", "usleep",  "sleep", "mca_",     "shm_", "tcp_",
    "progress_", "syscall", "futex", "pthread_", "read", "write",
    "select",    "sched_",
};

static bool contains(const char *text, const char *const *parts, size_t n)
{
    for (size_t i = 0; text && i < n; i++) {
        if (strstr(text, parts[i]))
            return true;
    }
    return false;
}

static bool begins(const char *text, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strncmp(text, parts[i], strlen(parts[i])) == 0)
            return true;
    }
    return false;
}

static bool is_library(const char *file, const char *function)
{
    if (file && strstr(file, ".py"))
        return contains(file, library_paths, ARRAY_LEN(library_paths));
    return begins(function, native_libraries, ARRAY_LEN(native_libraries)) ||
           contains(file, library_paths, ARRAY_LEN(library_paths));
}

struct place place_of(const json_t *rank)
{
    struct place p = {0};
    const json_t *main = json_array_get(json_object_get(rank, "threads"), 0), *frame;
    const char *state = json_string_value(json_object_get(rank, "state"));
    size_t i;
    json_array_foreach (json_object_get(main, "frames"), i, frame) {
        const char *file = json_string_value(json_object_get(frame, "file"));
        const char *function = json_string_value(json_object_get(frame, "function"));
        if (!function)
            continue;
        bool op = begins(function, native_ops, ARRAY_LEN(native_ops));
        if (op || contains(file, torch_paths, ARRAY_LEN(torch_paths))) {
            p.op = function;
        } else if (contains(file, (const char *const[]){"torch/autograd/"}, 1) && state &&
                   strcmp(state, "sleeping") == 0 && !p.op) {
            p.op = "backward"; /* waits for gradients of others, if anything */
        } else if (!is_library(file, function) && strcmp(function, "?") != 0) {
            p.function = function;
            p.file = file;
            p.line = json_integer_value(json_object_get(frame, "line"));
            return p;
        } else if (!p.function) { /* better than nothing: it is all libraries */
            p.function = function;
        }
    }
    return p;
}

bool place_equal(const struct place *a, const struct place *b)
{
    return a->function && b->function && strcmp(a->function, b->function) == 0 &&
           !a->file == !b->file && (!a->file || strcmp(a->file, b->file) == 0) &&
           a->line == b->line;
}

void place_print(const struct place *p, FILE *f)
{
    const char *base = p->file ? strrchr(p->file, '/') : NULL;
    base = base ? base + 1 : p->file;
    bool named = p->function && strcmp(p->function, "<module>") != 0;
    if (named)
        fprintf(f, "in %s()%s", p->function, base ? " " : "");
    if (base)
        fprintf(f, "at %s:%ld", base, p->line);
}
