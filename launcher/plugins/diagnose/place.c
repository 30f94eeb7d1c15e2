/* launcher/plugins/diagnose/place.c - see place.h
 *
 * Frames are read from the innermost one outwards. Those of libraries are skipped; the
 * first other one is where the user's own code is. The name of the outermost library
 * function that communicates is what the user has called.
 */
#include "launcher/plugins/diagnose/place.h"

#include "common/json.h"
#include "common/mem.h"

#include <string.h>

/* Parts of paths. "<frozen" and the like are Python's own. */
static const char *const library_paths[] = {
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen ",
    "/sysdeps/",
    "/usr/include/",
    "/preload/rank/",
    "/mpi_calls.def",
    "/ddprun/torch/",
    "/ddpgroup.py",
    NULL,
};
/* Path prefixes of the C library's own sources. */
static const char *const c_library_paths[] = {
    "./nptl/",  "./io/",     "./misc/",   "./socket/", "./time/", "./elf/",
    "./posix/", "./stdlib/", "./signal/", "../nptl/",  NULL,
};

/* Functions in these files wait for other ranks. */
static const char *const torch_paths[] = {
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/nn/functional.py",
    NULL,
};

/* Without debug information: prefixes of the names of libraries' functions. */
static const char *const native_ops[] = {
    "MPI_",         "PMPI_",         "ddp_barrier", "ddp_broadcast", "ddp_reduce",
    "ddp_all_",     "ddp_gather",    "ddp_sca",     "ddp_send",      "ddp_recv",
    "ddp_wait",     "ddp_group_",    "ncclAll",     "ncclBro",       "ncclReduce",
    "ncclGroupEnd", "ddp_monitored", NULL};
static const char *const native_libraries[] = {
    "__",        "_PMI",    "PMI",   "pmix",     "PMIx", "opal_",
    "ompi_",     "MPIR_",   "MPID",  "epoll_",   "poll", "clock_nanosleep",
    "nanosleep", "usleep",  "sleep", "mca_",     "shm_", "tcp_",
    "progress_", "syscall", "futex", "pthread_", "read", "write",
    "select",    "sched_",  NULL,
};
/* The same: files of libraries, the system's and MPI's wherever that is installed. */
static const char *const native_modules[] = {"/lib/", "/lib32/", "/lib64/", "/usr/lib",
                                             NULL};
static const char *const native_files[] = {
    "libmpi", "libopen-",  "libpmix", "libprrte",         "libevent",
    "libuc",  "libfabric", "libnccl", "ddprun-mpi-calls", NULL};

/* Each list ends with NULL. */
static bool contains(const char *text, const char *const *parts)
{
    while (text && *parts && !strstr(text, *parts))
        parts++;
    return text && *parts;
}

static bool begins(const char *text, const char *const *parts)
{
    while (*parts && strncmp(text, *parts, strlen(*parts)) != 0)
        parts++;
    return *parts;
}

const json_t *with_id(const json_t *list, const char *id)
{
    const json_t *one;
    size_t i;
    json_array_foreach (list, i, one) {
        if (is_text(one, "id", id))
            return one;
    }
    return NULL;
}

const json_t *main_frames(const json_t *rank)
{
    return json_object_get(json_array_get(json_object_get(rank, "threads"), 0), "frames");
}

static bool is_library(const json_t *frame, const char *file, const char *function)
{
    const char *module = text_of(frame, "module");
    if (file && strstr(file, ".py"))
        return contains(file, library_paths);
    /* python -c, or code that libraries make */
    if (file && strcmp(file, "<string>") == 0)
        return strcmp(function, "<module>") != 0;
    return begins(function, native_libraries) || contains(file, library_paths) ||
           (file && begins(file, c_library_paths)) ||
           (module &&
            (begins(module, native_modules) || begins(basename(module), native_files)));
}

static const char *call_name(const char *function)
{
    return strncmp(function, "PMPI_", 5) == 0 ? function + 1 : function;
}

/* The index of the outermost frame of a call that communicates, in C; -1: none. */
static long native_call(const json_t *frames)
{
    long found = -1;
    const json_t *frame;
    size_t i;
    json_array_foreach (frames, i, frame) {
        const char *function = text_of(frame, "function"), *file = text_of(frame, "file");
        bool python = file && strstr(file, ".py");
        if (function && !python && begins(function, native_ops))
            found = (long)i;
    }
    return found;
}

/* The call that communicates, of a Python rank's stack in C (collect.c). NULL: none. */
static const char *call_in_c(const json_t *rank)
{
    const json_t *threads = json_object_get(rank, "threads"),
                 *thread = json_array_get(threads, json_array_size(threads) - 1),
                 *frames = json_object_get(thread, "frames");
    long call = is_true(thread, "in_c") ? native_call(frames) : -1;
    return call < 0
               ? NULL
               : call_name(text_of(json_array_get(frames, (size_t)call), "function"));
}

struct place place_of(const json_t *rank)
{
    struct place p = {.op = call_in_c(rank)};
    const json_t *frame, *frames = main_frames(rank);
    bool sleeps = is_text(rank, "state", "sleeping");
    long first = native_call(frames);
    size_t i;
    json_array_foreach (frames, i, frame) {
        const char *file = text_of(frame, "file"), *function = text_of(frame, "function");
        if (!function || (long)i < first)
            continue;
        if ((long)i == first || contains(file, torch_paths)) {
            p.op = call_name(function);
        } else if (file && strstr(file, "torch/autograd/") && sleeps && !p.op) {
            p.op = "backward"; /* waits for gradients of others, if anything */
        } else if (!is_library(frame, file, function) && strcmp(function, "?") != 0) {
            p.function = function;
            p.file = file;
            p.line = int_of(frame, "line");
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
    const char *base = p->file ? basename(p->file) : NULL;
    bool named = p->function && strcmp(p->function, "<module>") != 0;
    if (named)
        fprintf(f, "in %s()%s", p->function, base ? " " : "");
    if (base)
        fprintf(f, "at %s:%ld", base, p->line);
}
