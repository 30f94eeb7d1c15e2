/* worker/group/mpi/shim.c - see shim.h. Compiled with an MPI's own compiler. */
#include "worker/group/mpi/shim.h"

#include <limits.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NTYPES = DDP_I8 + 1, NOPS = DDP_BXOR + 1 };

struct shim_op {
    MPI_Request request;
    void *result; /* borrowed: where what comes to `room` belongs */
    char *room;   /* behind `counts`: its `bytes`; 0: it comes where it belongs */
    size_t bytes;
    int counts[]; /* and places, of what goes out and comes in */
};

static void (*reduce_two)(void *out, const void *a, const void *b, size_t count,
                          enum ddp_type type, enum ddp_op op);
static size_t (*size_of)(enum ddp_type type);
static MPI_Comm world = MPI_COMM_NULL;
static MPI_Datatype types[NTYPES] = {
    [DDP_F32] = MPI_FLOAT,   [DDP_F64] = MPI_DOUBLE, [DDP_I32] = MPI_INT32_T,
    [DDP_I64] = MPI_INT64_T, [DDP_U8] = MPI_UINT8_T, [DDP_I8] = MPI_INT8_T,
}; /* the short floats are made */
static const MPI_Op mpi_ops[NOPS] = {
    [DDP_SUM] = MPI_SUM, [DDP_PRODUCT] = MPI_PROD, [DDP_MAX] = MPI_MAX,
    [DDP_MIN] = MPI_MIN, [DDP_AVG] = MPI_SUM,      [DDP_BAND] = MPI_BAND,
    [DDP_BOR] = MPI_BOR, [DDP_BXOR] = MPI_BXOR,
};
static MPI_Op our_ops[DDP_MIN + 1];
static int given_up;
static pid_t initialised; /* the process that has called MPI_Init() here */

static int fail(struct ddp_err *why, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(why->text, sizeof why->text, format, ap);
    va_end(ap);
    return -1;
}

static int check(int rc, const char *what, struct ddp_err *why)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (rc == MPI_SUCCESS)
        return 0;
    MPI_Error_string(rc, text, &n);
    return fail(why, "%s: %.400s", what, text);
}

/* ---- our own operations: where MPI has no such type, or forgets a NaN ---- */

static void combine(void *in, void *inout, int n, MPI_Datatype type, enum ddp_op op)
{
    for (int t = 0; t < NTYPES; t++) {
        if (types[t] == type)
            reduce_two(inout, in, inout, (size_t)n, (enum ddp_type)t, op);
    }
}

#define OUR_OP(name, op)                                                \
    static void name(void *in, void *inout, int *n, MPI_Datatype *type) \
    {                                                                   \
        combine(in, inout, *n, *type, op);                              \
    }

OUR_OP(our_sum, DDP_SUM)
OUR_OP(our_product, DDP_PRODUCT)
OUR_OP(our_max, DDP_MAX)
OUR_OP(our_min, DDP_MIN)

static MPI_Op op_of(enum ddp_type type, enum ddp_op op)
{
    int is_short = type == DDP_F16 || type == DDP_BF16;
    int loses_nan =
        (type == DDP_F32 || type == DDP_F64) && (op == DDP_MAX || op == DDP_MIN);
    if (!is_short && !loses_nan)
        return mpi_ops[op];
    return our_ops[op == DDP_AVG ? DDP_SUM : op];
}

/* ---- life ---- */

static void at_end(void)
{
    int over = 0;
    if (getpid() != initialised) /* a forked child */
        return;
    if (MPI_Finalized(&over) != MPI_SUCCESS || over || given_up)
        return;
    for (int t = DDP_F16; t <= DDP_BF16; t++)
        MPI_Type_free(&types[t]);
    for (int i = DDP_SUM; i <= DDP_MIN; i++)
        MPI_Op_free(&our_ops[i]);
    MPI_Comm_free(&world);
    MPI_Finalize();
}

static int begin(int *rank, int *size, struct ddp_err *why)
{
    static MPI_User_function *const functions[] = {our_sum, our_product, our_max,
                                                   our_min};
    int begun = 0, level;
    MPI_Initialized(&begun);
    if (!begun) {
        if (check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init",
                  why) < 0)
            return -1;
        initialised = getpid();
        atexit(at_end);
    }
    if (world == MPI_COMM_NULL) {
        for (int t = DDP_F16; t <= DDP_BF16; t++) {
            MPI_Type_contiguous(2, MPI_BYTE, &types[t]);
            MPI_Type_commit(&types[t]);
        }
        for (int i = DDP_SUM; i <= DDP_MIN; i++)
            MPI_Op_create(functions[i], 1, &our_ops[i]);
        if (check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup", why) < 0)
            return -1;
        MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(world, rank);
    MPI_Comm_size(world, size);
    return 0;
}

static int threads(void)
{
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    return level >= MPI_THREAD_SERIALIZED;
}

static int gather_world(const void *mine, void *all, int bytes, struct ddp_err *why)
{
    return check(MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, world),
                 "MPI_Allgather", why);
}

static int comm_make(const int *ranks, int n, void **comm, struct ddp_err *why)
{
    MPI_Group all, some;
    MPI_Comm *made = malloc(sizeof *made);
    MPI_Comm_group(world, &all);
    MPI_Group_incl(all, n, ranks, &some);
    int rc =
        check(MPI_Comm_create_group(world, some, 0, made), "MPI_Comm_create_group", why);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    if (rc == 0)
        MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
    else
        free(made);
    *comm = rc == 0 ? made : NULL;
    return rc;
}

static void comm_free(void *comm)
{
    if (!given_up)
        MPI_Comm_free(comm);
    free(comm);
}

static void give_up(void)
{
    given_up = 1;
}

/* ---- collectives ---- */

static const void *element(const struct coll *c, const void *base, size_t i)
{
    return (const char *)base + i * size_of(c->type);
}

/* Counts and places of n blocks; they live as long as the operation does. */
static void lay_out(int *counts, const struct coll *c, const size_t *starts, int n)
{
    for (int i = 0; i < n; i++) {
        struct range b = coll_block_in(c, starts, i);
        counts[i] = (int)b.n;
        counts[n + i] = (int)b.at;
    }
}

static int start_call(MPI_Comm comm, const struct coll *c, int me, int n,
                      struct shim_op *o)
{
    int *in = o->counts, *out = o->counts + 2 * n, count = (int)c->count;
    MPI_Datatype type = types[c->type];
    struct range mine = coll_block(c, me);
    const void *send = c->send;
    void *recv = c->recv;
    lay_out(out, c, c->starts, n);
    lay_out(in, c, c->starts_in ? c->starts_in : c->starts, n);
    switch (c->kind) {
    case COLL_BROADCAST:
        return MPI_Ibcast(recv, count, type, c->root, comm, &o->request);
    case COLL_ALL_REDUCE:
        return MPI_Iallreduce(MPI_IN_PLACE, recv, count, type, op_of(c->type, c->op),
                              comm, &o->request);
    case COLL_REDUCE:
        send = me == c->root && send == recv ? MPI_IN_PLACE : send;
        return MPI_Ireduce(send, recv, count, type, op_of(c->type, c->op), c->root, comm,
                           &o->request);
    case COLL_ALL_GATHER:
        send = send == element(c, recv, mine.at) ? MPI_IN_PLACE : send;
        return MPI_Iallgatherv(send, (int)mine.n, type, recv, out, out + n, type, comm,
                               &o->request);
    case COLL_REDUCE_SCATTER:
        return MPI_Ireduce_scatter(send, o->room, out, type, op_of(c->type, c->op), comm,
                                   &o->request);
    case COLL_GATHER:
        if (me == c->root && send == element(c, recv, mine.at))
            send = MPI_IN_PLACE;
        return MPI_Igatherv(send, count, type, recv, out, out + n, type, c->root, comm,
                            &o->request);
    case COLL_SCATTER:
        if (me == c->root && recv == element(c, send, mine.at))
            recv = MPI_IN_PLACE;
        return MPI_Iscatterv(send, out, out + n, type, recv, count, type, c->root, comm,
                             &o->request);
    case COLL_ALL_TO_ALL:
        return MPI_Ialltoallv(send, out, out + n, type, recv, in, in + n, type, comm,
                              &o->request);
    case COLL_BARRIER:
        break;
    }
    return MPI_Ibarrier(comm, &o->request);
}

static int start(void *comm, const struct coll *c, int me, int n, struct shim_op **op,
                 struct ddp_err *why)
{
    bool blocks =
        c->kind != COLL_BROADCAST && c->kind != COLL_ALL_REDUCE && c->kind != COLL_REDUCE;
    size_t most = c->starts ? c->starts[n] : c->count * (size_t)(blocks ? n : 1);
    if (c->starts_in && c->starts_in[n] > most)
        most = c->starts_in[n];
    if (most > INT_MAX)
        return fail(why, "MPI counts elements up to %d, and these are %zu", INT_MAX,
                    most);
    size_t counts = 4 * (size_t)n * sizeof(int), bytes = 0;
    if (c->kind == COLL_REDUCE_SCATTER) /* its result may lie in what is to be read */
        bytes = coll_block(c, me).n * size_of(c->type);
    struct shim_op *o = malloc(sizeof *o + counts + bytes);
    if (!o)
        return fail(why, "no memory for a collective of MPI");
    o->result = c->recv;
    o->room = (char *)o->counts + counts;
    o->bytes = bytes;
    if (check(start_call(*(MPI_Comm *)comm, c, me, n, o), "MPI", why) < 0) {
        free(o);
        return -1;
    }
    *op = o;
    return 0;
}

static int test(struct shim_op *o, int *done, struct ddp_err *why)
{
    int rc = check(MPI_Test(&o->request, done, MPI_STATUS_IGNORE), "MPI", why);
    if (rc < 0 || !*done)
        return rc;
    if (o->bytes > 0)
        memcpy(o->result, o->room, o->bytes);
    free(o);
    return 0;
}

__attribute__((visibility("default"))) const struct mpi_shim *
ddpgroup_mpi_shim(void (*reduce)(void *out, const void *a, const void *b, size_t count,
                                 enum ddp_type type, enum ddp_op op),
                  size_t (*size)(enum ddp_type type))
{
    static const struct mpi_shim table = {begin,     threads, gather_world, comm_make,
                                          comm_free, start,   test,         give_up};
    reduce_two = reduce;
    size_of = size;
    return &table;
}
