/* launcher/mpi_calls/record.c - see record.h
 *
 * The handle of a communicator is found in a table, whose entries are never unlinked: one
 * that is freed is used again for the next of its row, so that threads need no lock to
 * read it. MPI tells by an attribute that a communicator is freed.
 *
 * Ranks have to give a communicator the same name. What a collective makes is named after
 * the parent and its number there; one made in another way (MPI_Comm_create_group,
 * MPI_Intercomm_merge) after its members. Communicators between two groups, and those
 * with ranks of other jobs, or of one rank only, are not recorded.
 */
#include "launcher/mpi_calls/record.h"

#include "common/arrivals.h"
#include "common/fnv.h"
#include "common/mpi_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ROW_BITS = 6, ROWS = 1 << ROW_BITS, NAME_MAX_MPI = 1024, UNKNOWN_RANK = -2 };

/* As in the mpi.h of each. */
enum abi { ABI_MPICH, ABI_OPEN_MPI, ABI_STANDARD };
#define MPICH_WORLD    0x44000000
#define MPICH_NULL     0x04000000
#define STANDARD_WORLD 0x101
#define STANDARD_NULL  0x100

struct comm {
    _Atomic long handle; /* 0: not in use; set last */
    int size;
    int *world;                /* owned: the job's rank of each of its ranks */
    struct mpi_comm_record *r; /* NULL: it is not recorded */
    uint64_t nmade;            /* communicators that its collectives have made */
    long type;                 /* whose name is in `r`; 0: none */
    struct comm *next;
};

static struct mpi {
    enum abi abi;
    long world, null;
    int size, keyval;
    long group; /* of all ranks */
    int (*comm_size)(long comm, int *size);
    int (*comm_test_inter)(long comm, int *flag);
    int (*comm_group)(long comm, long *group);
    int (*comm_get_name)(long comm, char *name, int *n);
    int (*comm_set_attr)(long comm, int keyval, void *value);
    int (*comm_create_keyval)(int (*copy)(long comm, int keyval, void *extra, void *in,
                                          void *out, int *flag),
                              int (*forget)(long comm, int keyval, void *value,
                                            void *extra),
                              int *keyval, void *extra);
    int (*group_free)(long *group);
    int (*group_translate_ranks)(long group, int n, const int *ranks, long to, int *out);
    int (*type_get_name)(long type, char *name, int *n);
    int (*type_size)(long type, int *size);
    int (*initialized)(int *flag);
    long (*comm_f2c)(int comm), (*type_f2c)(int type); /* Open MPI's */
} mpi;

static struct mpi_calls_file *_Atomic file; /* NULL: nothing is recorded */
static struct arrivals_file *arrivals;
static struct comm *_Atomic rows[ROWS];
/* To add and to free entries and records. MPI is not called with it: it may hold a lock
 * of its own when it calls on_freed(). */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint nthreads;
/* Of this thread: how deep in calls of MPI it is; where it records waits. */
static __thread __attribute__((tls_model("initial-exec"))) int depth;
static __thread
    __attribute__((tls_model("initial-exec"))) struct mpi_wait_record *my_wait;

/* --- the library behind this one ---------------------------------------------------- */

/* Python loads an MPI that is not searched for us: found by its name. */
struct search {
    const char *name;
    void *found;
};

static int find_in(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *s = arg;
    const char *base = strrchr(info->dlpi_name, '/');
    if (!base || strncmp(base, "/libmpi", strlen("/libmpi")) != 0)
        return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    s->found = library ? dlsym(library, s->name) : NULL;
    return s->found != NULL;
}

static void *next_or_null(const char *name)
{
    struct search s = {name, dlsym(RTLD_NEXT, name)};
    if (!s.found)
        dl_iterate_phdr(find_in, &s);
    return s.found;
}

/* A function, or an object of Open MPI. Of objects a program may have a copy, which is
 * then the library's, too: nothing of ours has the name. */
static void *object(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    return found ? found : next_or_null(name);
}

void *record_next(const char *name)
{
    void *found = next_or_null(name);
    if (found)
        return found;
    fprintf(stderr, "ddprun: this program's MPI library has no %s\n", name);
    abort();
}

/* False: it lacks something, and nothing is recorded. */
static bool find_functions(void)
{
    const struct {
        const char *name;
        void **to;
    } needed[] = {
        {"PMPI_Comm_size", (void **)&mpi.comm_size},
        {"PMPI_Comm_test_inter", (void **)&mpi.comm_test_inter},
        {"PMPI_Comm_group", (void **)&mpi.comm_group},
        {"PMPI_Comm_get_name", (void **)&mpi.comm_get_name},
        {"PMPI_Comm_set_attr", (void **)&mpi.comm_set_attr},
        {"PMPI_Comm_create_keyval", (void **)&mpi.comm_create_keyval},
        {"PMPI_Group_free", (void **)&mpi.group_free},
        {"PMPI_Group_translate_ranks", (void **)&mpi.group_translate_ranks},
        {"PMPI_Type_get_name", (void **)&mpi.type_get_name},
        {"PMPI_Type_size", (void **)&mpi.type_size},
        {"PMPI_Initialized", (void **)&mpi.initialized},
        {"PMPI_Comm_f2c", (void **)&mpi.comm_f2c}, /* Open MPI's only, from here */
        {"PMPI_Type_f2c", (void **)&mpi.type_f2c},
        {"ompi_mpi_comm_null", (void **)&mpi.null},
    };
    size_t n = sizeof needed / sizeof *needed - (mpi.abi == ABI_OPEN_MPI ? 0 : 3);
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        *needed[i].to = object(needed[i].name);
        all &= *needed[i].to != NULL;
    }
    return all;
}

static bool find_mpi(void)
{
    Dl_info library = {0};
    void *open_mpi = object("ompi_mpi_comm_world"), *size = object("PMPI_Comm_size");
    mpi.abi = ABI_MPICH;
    mpi.world = MPICH_WORLD;
    mpi.null = MPICH_NULL;
    if (open_mpi) {
        mpi.abi = ABI_OPEN_MPI;
        mpi.world = (long)open_mpi;
    } else if (size && dladdr(size, &library) &&
               strstr(library.dli_fname, "libmpi_abi")) {
        mpi.abi = ABI_STANDARD;
        mpi.world = STANDARD_WORLD;
        mpi.null = STANDARD_NULL;
    }
    return find_functions();
}

/* --- the file ----------------------------------------------------------------------- */

static int64_t coarse_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* With its memory: to write where /dev/shm has none left would end the rank. */
static void *map_file(const char *suffix, size_t size)
{
    const char *stem = getenv("DDPRUN_DIAGNOSE");
    char path[4096];
    if (!stem || snprintf(path, sizeof path, "%s.%d.%s", stem, (int)getpid(), suffix) >=
                     (int)sizeof path)
        return NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *p = fd >= 0 && posix_fallocate(fd, 0, (off_t)size) == 0
                  ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return p == MAP_FAILED ? NULL : p;
}

/* --- communicators ------------------------------------------------------------------ */

static int do_not_copy(long comm, int keyval, void *extra, void *in, void *out, int *flag)
{
    *flag = 0;
    return 0;
}

static int on_freed(long comm, int keyval, void *value, void *extra)
{
    struct comm *c = value;
    pthread_mutex_lock(&lock);
    if (c->r)
        c->r->id = 0;
    free(c->world);
    *c = (struct comm){.next = c->next};
    pthread_mutex_unlock(&lock);
    return 0;
}

static struct comm *_Atomic *row_of(long handle)
{
    return &rows[(uint64_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> (64 - ROW_BITS)];
}

static struct comm *find(long handle)
{
    struct comm *c = atomic_load_explicit(row_of(handle), memory_order_acquire);
    while (c && atomic_load_explicit(&c->handle, memory_order_acquire) != handle)
        c = c->next;
    return c;
}

/* "0-3,8" in the order of the communicator; "" if it does not fit. */
static void print_members(const struct comm *c, char *text, size_t room)
{
    size_t n = 0;
    for (int i = 0, first; i < c->size && n < room; i++) {
        first = c->world[i];
        while (i + 1 < c->size && c->world[i + 1] == c->world[i] + 1)
            i++;
        n +=
            (size_t)snprintf(text + n, room - n, c->world[i] > first ? "%s%d-%d" : "%s%d",
                             n ? "," : "", first, c->world[i]);
    }
    if (n >= room)
        text[0] = '\0';
}

static bool id_is_used(uint64_t id)
{
    for (size_t i = 0; i < MPI_CALLS_COMMS; i++) {
        if (file->comm[i].id == id)
            return true;
    }
    return false;
}

static void get_name(long handle, char name[MPI_CALLS_NAME])
{
    char all[NAME_MAX_MPI] = "";
    int n = 0;
    mpi.comm_get_name(handle, all, &n);
    snprintf(name, MPI_CALLS_NAME, "%s", all);
}

/* With the lock. `id` 0: named after its members. */
static void take_record(struct comm *c, uint64_t id, const char *name)
{
    struct mpi_comm_record *r = file->comm;
    while (r < file->comm + MPI_CALLS_COMMS && r->id != 0)
        r++;
    if (r == file->comm + MPI_CALLS_COMMS)
        return;
    id = fnv1a(id ? id : FNV1A, c->world, (size_t)c->size * sizeof *c->world);
    while (id == 0 || id_is_used(id))
        id++;
    r->entered = r->done = 0;
    r->size = (uint32_t)c->size;
    r->all = c->size == mpi.size;
    memcpy(r->name, name, sizeof r->name);
    r->members[0] = '\0';
    if (!r->all)
        print_members(c, r->members, sizeof r->members);
    r->id = id;
    c->r = r;
}

/* The job's rank of each of its ranks; NULL: some are of other jobs. */
static int *ranks_of(long handle, int size)
{
    int *ours = malloc(2 * (size_t)size * sizeof *ours), *world = ours + size;
    long group = 0;
    if (!ours)
        return NULL;
    for (int i = 0; i < size; i++)
        ours[i] = i;
    mpi.comm_group(handle, &group);
    mpi.group_translate_ranks(group, size, ours, mpi.group, world);
    mpi.group_free(&group);
    memcpy(ours, world, (size_t)size * sizeof *ours);
    for (int i = 0; i < size; i++) {
        if (ours[i] < 0 || ours[i] >= mpi.size) {
            free(ours);
            return NULL;
        }
    }
    return ours;
}

/* With the lock. Takes `world` over. */
static struct comm *take_entry(long handle, int size, int *world)
{
    struct comm *_Atomic *row = row_of(handle);
    struct comm *c = *row;
    while (c && c->handle != 0)
        c = c->next;
    if (!c && (c = calloc(1, sizeof *c))) {
        c->next = *row;
        *row = c;
    }
    if (c) {
        c->size = size;
        c->world = world;
    } else {
        free(world);
    }
    return c;
}

static struct comm *add(long handle, uint64_t id)
{
    char name[MPI_CALLS_NAME];
    int inter = 0, size = 0;
    mpi.comm_test_inter(handle, &inter);
    mpi.comm_size(handle, &size);
    int *world = inter || size < 2 ? NULL : ranks_of(handle, size);
    get_name(handle, name);
    pthread_mutex_lock(&lock);
    struct comm *other = find(handle); /* of another thread, by now */
    struct comm *c = other ? NULL : take_entry(handle, size, world);
    if (c && world)
        take_record(c, id, name);
    if (c)
        c->handle = handle;
    if (other)
        free(world);
    pthread_mutex_unlock(&lock);
    if (c)
        mpi.comm_set_attr(handle, mpi.keyval, c);
    return other ? other : c;
}

/* NULL: it is not recorded. */
static struct comm *comm_of(long handle)
{
    if (handle == mpi.null || handle == 0)
        return NULL;
    struct comm *c = find(handle);
    if (!c)
        c = add(handle, 0);
    return c && c->r ? c : NULL;
}

/* --- calls -------------------------------------------------------------------------- */

/* The first call of a rank: MPI_Init has been called, or it would be an error. MPI's
 * sessions have no MPI_COMM_WORLD. */
static void begin(void)
{
    int initialized = 0;
    if (!find_mpi() || mpi.initialized(&initialized) != 0 || !initialized)
        return;
    mpi.comm_size(mpi.world, &mpi.size);
    mpi.comm_group(mpi.world, &mpi.group);
    mpi.comm_create_keyval(do_not_copy, on_freed, &mpi.keyval, NULL);
    struct mpi_calls_file *f = map_file("mpi", sizeof *f);
    if (!f)
        return;
    f->comms = MPI_CALLS_COMMS;
    f->threads = MPI_CALLS_THREADS;
    f->version = MPI_CALLS_VERSION;
    if (getenv("DDPRUN_ARRIVALS") &&
        (arrivals = map_file("arrivals", sizeof *arrivals))) {
        arrivals->room = ARRIVALS;
        arrivals->version = ARRIVALS_VERSION;
    }
    file = f;
}

/* With `fortran` the MPI is Open MPI. */
static long handle_at(long arg, bool fortran, long (*f2c)(int handle))
{
    return fortran ? f2c(*(int *)arg) : mpi.abi == ABI_MPICH ? (int)arg : arg;
}

static int int_at(long arg, bool fortran)
{
    return fortran ? *(int *)arg : (int)arg;
}

static void note_type(struct comm *c, long type)
{
    char name[NAME_MAX_MPI] = "";
    int n = 0, bytes = 0;
    mpi.type_get_name(type, name, &n);
    mpi.type_size(type, &bytes);
    snprintf(c->r->type, sizeof c->r->type, "%s", name);
    c->r->bytes = (uint32_t)bytes;
    c->type = type;
}

static void note_arrival(const struct mpi_comm_record *r, uint64_t number)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    arrivals_add(arrivals, r->id, number, t.tv_sec * INT64_C(1000000000) + t.tv_nsec);
}

static void enter_collective(const struct mpi_call *call, uint32_t row, struct comm *c,
                             const long *args, bool fortran)
{
    struct mpi_comm_record *r = c->r;
    uint64_t number = r->entered + 1;
    r->root = call->root == NO ? -1 : int_at(args[call->root], fortran);
    r->count = call->count == NO ? -1 : int_at(args[call->count], fortran);
    if (call->count != NO) {
        long type = handle_at(args[call->type], fortran, mpi.type_f2c);
        if (c->type != type) /* most programs use one with a communicator */
            note_type(c, type);
    }
    atomic_store_explicit(&r->call, row, memory_order_relaxed);
    atomic_store_explicit(&r->at_ms, coarse_ms(), memory_order_relaxed);
    atomic_store_explicit(&r->entered, number, memory_order_release);
    if (arrivals)
        note_arrival(r, number);
}

static struct mpi_wait_record *enter_wait(const struct mpi_call *call, uint32_t row,
                                          const long *args, bool fortran)
{
    struct mpi_wait_record *w = my_wait;
    if (!w)
        w = my_wait = &file->wait[atomic_fetch_add(&nthreads, 1) % MPI_CALLS_THREADS];
    w->call = row;
    w->peer = UNKNOWN_RANK;
    if (call->kind == MPI_CALL_MESSAGE) {
        struct comm *c = comm_of(handle_at(args[call->comm], fortran, mpi.comm_f2c));
        int peer = int_at(args[call->peer], fortran);
        w->peer = peer < 0 ? -1 : c && peer < c->size ? c->world[peer] : UNKNOWN_RANK;
        w->tag = int_at(args[call->tag], fortran);
    }
    atomic_store_explicit(&w->at_ms, coarse_ms(), memory_order_relaxed);
    atomic_store_explicit(&w->in, 1, memory_order_release);
    return w;
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
                   bool fortran)
{
    if (call->kind == MPI_CALL_MESSAGE || call->kind == MPI_CALL_WAITING)
        return enter_wait(call, row, args, fortran);
    struct comm *c = comm_of(handle_at(args[call->comm], fortran, mpi.comm_f2c));
    if (c && call->kind != MPI_CALL_NAMED)
        enter_collective(call, row, c, args, fortran);
    return c ? (void *)c : &nothing;
}

void *record_enter(uint32_t row, const long *args, bool fortran)
{
    if (depth > 0 || (!file && !is_ready()) || (fortran && mpi.abi != ABI_OPEN_MPI))
        return NULL; /* MPICH's Fortran calls what C calls */
    depth++;
    return enter(&mpi_calls[row], row, args, fortran);
}

/* A communicator has been made: MPI_COMM_NULL for a rank that is not in it. */
static void name_made(struct comm *parent, long arg, bool fortran)
{
    uint64_t parts[] = {parent->r->id, ++parent->nmade};
    long made = fortran                ? mpi.comm_f2c(*(int *)arg)
                : mpi.abi == ABI_MPICH ? *(int *)arg
                                       : *(long *)arg;
    if (made != mpi.null)
        add(made, fnv1a(FNV1A, parts, sizeof parts));
}

static void leave(struct comm *c, const struct mpi_call *call, const long *args,
                  bool fortran, int rc)
{
    if (call->kind == MPI_CALL_NAMED)
        get_name(c->handle, c->r->name);
    else
        atomic_store_explicit(&c->r->done, c->r->entered, memory_order_relaxed);
    if (call->kind == MPI_CALL_MADE && rc == 0)
        name_made(c, args[call->made], fortran);
}

void record_leave(void *entered, uint32_t row, const long *args, bool fortran, int rc)
{
    const struct mpi_call *call = &mpi_calls[row];
    if (!entered)
        return;
    if (call->kind == MPI_CALL_MESSAGE || call->kind == MPI_CALL_WAITING)
        atomic_store_explicit(&((struct mpi_wait_record *)entered)->in, 0,
                              memory_order_relaxed);
    else if (entered != &nothing)
        leave(entered, call, args, fortran, rc);
    depth--;
}

/* --- the environment ---------------------------------------------------------------- */

/* What the rank starts is not to load this library, which is the first in LD_PRELOAD; but
 * for a script, which starts the program of MPI. */
static __attribute__((constructor)) void restore_variable(void)
{
    Dl_info own;
    const char *list = getenv("LD_PRELOAD"), *wish = getenv(MPI_CALLS_WISH);
    size_t n = list && dladdr((void *)restore_variable, &own) ? strlen(own.dli_fname) : 0;
    if (n == 0 || strncmp(list, own.dli_fname, n) != 0 ||
        (wish && strcmp(wish, "on") == 0 && !dlsym(RTLD_NEXT, "MPI_Init")))
        return;
    if (list[n] == '\0')
        unsetenv("LD_PRELOAD");
    else if (list[n] == ':')
        setenv("LD_PRELOAD", strdup(list + n + 1), 1);
}
