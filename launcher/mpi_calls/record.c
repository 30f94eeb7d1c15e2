/* launcher/mpi_calls/record.c - see record.h */
#include "launcher/mpi_calls/record.h"

#include "common/arrivals.h"
#include "common/mpi_calls.h"
#include "common/rank_map.h"
#include "launcher/mpi_calls/comms.h"
#include "launcher/mpi_calls/find.h"
#include "launcher/mpi_calls/message_counts.h"
#include "launcher/mpi_calls/requests.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    UNKNOWN_RANK = -2,
    MPICH_ANY = -2, /* MPI_ANY_SOURCE; -1 in the others */
};
#define LARGE_COUNTS "-large.so:" /* what our name goes on with, of the other library */

static struct mpi_calls_file *_Atomic file; /* NULL: nothing is recorded */
static struct mpi_calls_file *mapped;       /* from the start, as `file` is then */
static struct arrivals_file *arrivals;
static atomic_uint nthreads;
/* Of this thread: how deep in calls of MPI it is; where it records waits. */
static __thread __attribute__((tls_model("initial-exec"))) int depth;
static __thread
    __attribute__((tls_model("initial-exec"))) struct mpi_wait_record *my_wait;
static __thread __attribute__((tls_model(
    "initial-exec"))) struct mpi_message_record posted[2]; /* by the call that it is in */

/* --- the file ----------------------------------------------------------------------- */

static int64_t coarse_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static void map_calls(void)
{
    mapped = rank_map("mpi", sizeof *mapped);
    if (!mapped)
        return;
    mapped->comms = MPI_CALLS_COMMS;
    mapped->threads = MPI_CALLS_THREADS;
    mapped->version = MPI_CALLS_VERSION;
}

/* --- calls -------------------------------------------------------------------------- */

/* The library for large counts is not loaded where a script starts the program. */
static bool lacks_large_counts(void)
{
    Dl_info library;
    void *send = dlsym(RTLD_DEFAULT, "MPI_Send_c");
    return send && dladdr(send, &library) &&
           !strstr(library.dli_fname, "ddprun-mpi-calls");
}

/* The first call of a rank: MPI_Init has been called, or it would be an error. MPI's
 * sessions have no MPI_COMM_WORLD. */
static void begin(void)
{
    int initialized = 0;
    if (!mapped)
        map_calls();
    if (!mapped || !mpi_find() || mpi.initialized(&initialized) != 0 || !initialized)
        return;
    mapped->uncounted = lacks_large_counts();
    comms_begin(mapped);
    arrivals = arrivals_map();
    file = mapped;
}

static long handle_at(long arg, enum passed passed, long (*f2c)(int handle))
{
    if (passed == PASSED_FORTRAN)
        return f2c ? f2c(*(int *)arg) : *(int *)arg;
    return mpi.abi == ABI_MPICH ? (int)arg : arg;
}

static int int_at(long arg, enum passed passed)
{
    return passed == PASSED_FORTRAN ? *(int *)arg : (int)arg;
}

static long count_at(long arg, enum passed passed)
{
    return passed == PASSED_LARGE ? arg : int_at(arg, passed);
}

static long narrow_at(const void *array, size_t i)
{
    return ((const int *)array)[i];
}

static long wide_at(const void *array, size_t i)
{
    return ((const long *)array)[i];
}

static long fortran_at(const void *array, size_t i)
{
    return mpi.request_f2c ? mpi.request_f2c(((const int *)array)[i])
                           : narrow_at(array, i);
}

static struct requests requests_of(const struct mpi_call *call, const long *args,
                                   enum passed passed)
{
    int n = call->nrequests == NO ? 1 : int_at(args[call->nrequests], passed);
    const void *array = (const void *)args[call->requests];
    return (struct requests){.n = array && n > 0 ? (size_t)n : 0,
                             .array = array,
                             .handle = passed == PASSED_FORTRAN ? fortran_at
                                       : mpi.abi == ABI_MPICH   ? narrow_at
                                                                : wide_at,
                             .null = mpi.null_request};
}

/* It may end a collective. */
static bool ends_some(const struct mpi_call *call)
{
    return atomic_load_explicit(&requests_begun, memory_order_relaxed) > 0 &&
           call->requests != NO &&
           (call->kind == MPI_CALL_WAIT || call->kind == MPI_CALL_TEST);
}

/* Most programs use one type with a communicator: one of MPI's own is asked for once. */
static void note_type(struct comm *c, long type)
{
    char name[NAME_MAX_MPI] = "";
    int n = 0, bytes = 0;
    if (type == mpi.null_type)
        return; /* an error of the call, not of ours */
    mpi.type_get_name(type, name, &n);
    mpi.type_size(type, &bytes);
    snprintf(c->type_name, sizeof c->type_name, "%s", name);
    c->bytes = (uint32_t)bytes;
    c->type = strncmp(name, "MPI_", strlen("MPI_")) == 0 ? type : 0;
}

static void note_arrival(const struct mpi_comm_record *r, uint64_t number)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    arrivals_add(arrivals, r->id, number, t.tv_sec * INT64_C(1000000000) + t.tv_nsec);
}

static void enter_collective(const struct mpi_call *call, uint32_t row, struct comm *c,
                             const long *args, enum passed passed)
{
    struct mpi_comm_record *r = c->r;
    uint64_t number = r->entered + 1;
    r->last.root = call->root == NO ? -1 : int_at(args[call->root], passed);
    r->last.count = call->count == NO ? -1 : count_at(args[call->count], passed);
    if (call->count != NO) {
        long type = handle_at(args[call->type], passed, mpi.type_f2c);
        if (c->type != type) /* most programs use one with a communicator */
            note_type(c, type);
        r->last.bytes = c->bytes;
        memcpy(r->last.type, c->type_name, sizeof r->last.type);
    }
    r->last.call = row;
    r->last.at_ms = coarse_ms();
    r->last.number = number;
    atomic_store_explicit(&r->entered, number, memory_order_release);
    if (arrivals)
        note_arrival(r, number);
}

/* The first is the main thread's; further threads share the others. */
static struct mpi_wait_record *take_wait(void)
{
    bool first = syscall(SYS_gettid) == getpid();
    unsigned other = first ? 0 : atomic_fetch_add(&nthreads, 1) % (MPI_CALLS_THREADS - 1);
    return &file->wait[first ? 0 : 1 + other];
}

/* As the call has it, for our own table: to convert Open MPI's takes a lock. */
static long raw_at(const void *array, size_t i, enum passed passed)
{
    bool narrow = passed == PASSED_FORTRAN || mpi.abi == ABI_MPICH;
    return narrow ? narrow_at(array, i) : wide_at(array, i);
}

/* In place: to copy what has just been stored would wait for it. */
static void fill_message(struct mpi_message_record *m, const struct comm *c,
                         long peer_arg, long tag_arg, enum passed passed, bool sends)
{
    int peer = int_at(peer_arg, passed), tag = int_at(tag_arg, passed),
        any = mpi.abi == ABI_MPICH ? MPICH_ANY : MPI_ANY;
    bool is_rank = c && peer >= 0 && peer < c->size;
    m->comm = c ? c->r->id : 0;
    m->peer = peer == any ? MPI_ANY : is_rank ? c->world[peer] : UNKNOWN_RANK;
    m->tag = tag < 0 ? MPI_ANY : tag;
    m->number = 0;
    m->sends = sends;
}

/* Its receive first. */
static void fill_messages(const struct mpi_call *call, const struct comm *c,
                          const long *args, enum passed passed,
                          struct mpi_message_record m[static 2])
{
    int n = 0;
    if (call->from != NO)
        fill_message(&m[n++], c, args[call->from], args[call->from_tag], passed, false);
    if (call->to != NO)
        fill_message(&m[n++], c, args[call->to], args[call->to_tag], passed, true);
    for (int i = 0; i < n && c && call->kind != MPI_CALL_PROBE; i++) {
        if (m[i].peer != UNKNOWN_RANK)
            message_counts_add(file, &m[i]);
    }
}

static struct mpi_wait_record *own_wait(void)
{
    return my_wait ? my_wait : (my_wait = take_wait());
}

/* Of a wait or a test. Threads may share `w` (take_wait()). */
static void note_requests(struct mpi_wait_record *w, const struct mpi_call *call,
                          const long *args, enum passed passed)
{
    const struct requests its = requests_of(call, args, passed);
    long null = passed == PASSED_FORTRAN && mpi.request_f2c ? 0 : its.null;
    w->more = its.n > MPI_CALLS_WAITED;
    w->nrequests = w->more ? MPI_CALLS_WAITED : (uint32_t)its.n;
    for (size_t i = 0; i < w->nrequests; i++) {
        long handle = raw_at(its.array, i, passed);
        w->request[i] = handle == null ? 0 : handle;
    }
}

static struct mpi_request_record *request_record(int64_t handle)
{
    return &file->request[mpi_calls_hash((uint64_t)handle)];
}

/* MPI has set those that have ended to another value, and gives theirs to others. */
static void forget_ended(const struct mpi_wait_record *w, const struct mpi_call *call,
                         const long *args, enum passed passed)
{
    const struct requests its = requests_of(call, args, passed);
    for (size_t i = 0; i < w->nrequests && i < its.n; i++) {
        int64_t handle = w->request[i];
        if (handle == 0 || raw_at(its.array, i, passed) == handle)
            continue;
        struct mpi_request_record *r = request_record(handle);
        if (atomic_load_explicit(&r->handle, memory_order_relaxed) == handle)
            atomic_store_explicit(&r->handle, 0, memory_order_relaxed);
    }
}

static struct mpi_wait_record *enter_wait(const struct mpi_call *call, uint32_t row,
                                          const struct comm *c, const long *args,
                                          enum passed passed)
{
    struct mpi_wait_record *w = own_wait();
    w->call = row;
    w->is[0].peer = w->is[1].peer = UNKNOWN_RANK;
    fill_messages(call, c, args, passed, w->is);
    w->nrequests = w->more = 0;
    if (call->requests != NO)
        note_requests(w, call, args, passed);
    atomic_store_explicit(&w->at_ms, coarse_ms(), memory_order_relaxed);
    atomic_store_explicit(&w->in, 1, memory_order_release);
    return w;
}

/* One that sends and receives is not known by its request. */
static void leave_post(const struct mpi_call *call, const long *args, enum passed passed)
{
    long handle = raw_at((const void *)args[call->requests], 0, passed);
    struct mpi_request_record *r = request_record(handle);
    bool one = call->from == NO || call->to == NO;
    atomic_store_explicit(&r->handle, 0, memory_order_relaxed);
    r->is = posted[0];
    if (one && posted[0].number > 0)
        atomic_store_explicit(&r->handle, handle, memory_order_release);
}

static char nothing; /* a call of which nothing is recorded */

/* The first call of the process; false: nothing is recorded. */
static bool is_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    depth++;
    pthread_once(&once, begin);
    depth--;
    return file != NULL;
}

static void *enter(const struct mpi_call *call, uint32_t row, const long *args,
                   enum passed passed)
{
    if (ends_some(call)) {
        const struct requests its = requests_of(call, args, passed);
        bool waits = call->kind == MPI_CALL_WAIT && (call->all || its.n == 1);
        requests_enter(&its, waits, coarse_ms());
    }
    struct comm *c = call->comm == NO
                         ? NULL
                         : comm_of(handle_at(args[call->comm], passed, mpi.comm_f2c));
    switch (call->kind) {
    case MPI_CALL_MESSAGE:
    case MPI_CALL_PROBE:
    case MPI_CALL_WAIT:
        return enter_wait(call, row, c, args, passed);
    case MPI_CALL_TEST:
        note_requests(own_wait(), call, args, passed);
        break;
    case MPI_CALL_POST:
        fill_messages(call, c, args, passed, posted);
        break;
    case MPI_CALL_COLLECTIVE:
        if (c)
            enter_collective(call, row, c, args, passed);
        return c ? (void *)c : &nothing;
    case MPI_CALL_NAME:
        return c ? (void *)c : &nothing;
    case MPI_CALL_UNCOUNTED:
        file->uncounted = true;
        break;
    }
    return &nothing;
}

/* The handles of MPI 5's ABI are other ones in Fortran, which calls what C calls. */
FOR_BOTH void *ddprun_mpi_enter(uint32_t row, const long *args, enum passed passed)
{
    if (depth > 0 || (!file && !is_ready()) ||
        (passed == PASSED_FORTRAN && mpi.abi == ABI_STANDARD))
        return NULL;
    depth++;
    return enter(&mpi_calls[row], row, args, passed);
}

/* MPI_COMM_NULL for a rank that is not in it. */
static long made_at(long arg, enum passed passed)
{
    return passed == PASSED_FORTRAN ? handle_at(arg, passed, mpi.comm_f2c)
           : mpi.abi == ABI_MPICH   ? *(int *)arg
                                    : *(long *)arg;
}

/* `c`: NULL if it is not recorded. */
static void leave(struct comm *c, const struct mpi_call *call, const long *args,
                  enum passed passed, int rc)
{
    if (c && call->kind == MPI_CALL_NAME) {
        comm_named(c);
    } else if (c) {
        if (rc != 0) { /* it has not met the others */
            c->r->entered--;
            c->r->last.number = 0;
        } else if (call->requests != NO) {
            const struct requests its = requests_of(call, args, passed);
            requests_begin(c->r, its.handle(its.array, 0));
        }
        atomic_store_explicit(&c->r->done, c->r->entered, memory_order_relaxed);
    }
    if (rc == 0 && call->made != NO)
        comm_made(made_at(args[call->made], passed), c, call->same);
}

FOR_BOTH void ddprun_mpi_leave(void *entered, uint32_t row, const long *args,
                               enum passed passed, int rc)
{
    const struct mpi_call *call = &mpi_calls[row];
    if (!entered)
        return;
    if (ends_some(call)) {
        const struct requests its = requests_of(call, args, passed);
        requests_leave(&its);
    }
    if (rc != 0 && (call->from != NO || call->to != NO))
        file->uncounted = true; /* whether it has met another is not known */
    else if (call->kind == MPI_CALL_POST)
        leave_post(call, args, passed);
    else if (call->requests != NO && call->kind != MPI_CALL_COLLECTIVE)
        forget_ended(my_wait, call, args, passed);
    if (entered == my_wait)
        atomic_store_explicit(&my_wait->in, 0, memory_order_relaxed);
    else
        leave(entered == &nothing ? NULL : entered, call, args, passed, rc);
    depth--;
}

/* --- the start ---------------------------------------------------------------------- */

/* NULL: it is removed. Not by unsetenv(), which may be the program's own, as bash's. */
static void set_preload(char *variable)
{
    char **at = environ;
    while (*at && strncmp(*at, "LD_PRELOAD=", strlen("LD_PRELOAD=")) != 0)
        at++;
    if (*at && variable) {
        *at = variable;
        return;
    }
    for (; *at; at++)
        *at = at[1];
}

/* This library is the first one in LD_PRELOAD, but for that for large counts; the others
 * are returned: "" or ":...". NULL: it is not there, as Python has loaded it. */
static const char *find_others(void)
{
    Dl_info own;
    const char *list = getenv("LD_PRELOAD");
    size_t n = list && dladdr((void *)find_others, &own) ? strlen(own.dli_fname) : 0;
    size_t stem = n > strlen(".so") ? n - strlen(".so") : 0;
    if (stem > 0 && strncmp(list, own.dli_fname, stem) == 0 &&
        strncmp(list + stem, LARGE_COUNTS, strlen(LARGE_COUNTS)) == 0)
        list += stem + strlen(LARGE_COUNTS);
    bool ours = n > 0 && strncmp(list, own.dli_fname, n) == 0;
    return ours && (list[n] == '\0' || list[n] == ':') ? list + n : NULL;
}

/* What the rank starts is not to load this library; but for a script, which starts the
 * program of MPI. A rank without the file is not recorded; one with it, but no
 * communicator, has called nothing yet. Python has loaded this for MPI, which follows. */
static __attribute__((constructor)) void start(void)
{
    const char *others = find_others(), *wish = getenv(MPI_CALLS_WISH);
    bool has_mpi = dlsym(RTLD_NEXT, "MPI_Init") != NULL;
    bool keeps = !has_mpi && wish && strcmp(wish, "on") == 0;
    char *list = NULL;
    if (has_mpi || !others)
        map_calls();
    if (!others || keeps)
        return;
    if (!*others || asprintf(&list, "LD_PRELOAD=%s", others + 1) >= 0)
        set_preload(list);
}
