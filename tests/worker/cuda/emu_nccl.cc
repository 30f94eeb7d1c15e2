/* tests/worker/cuda/emu_nccl.cc - see emu.h: libnccl.so.2 for ranks of one host
 *
 * The unique id names a file in /dev/shm with one slot per rank. A collective is a small
 * machine that is asked again until it has finished, so that the caller can see it hang
 * when a rank is missing, as it would on a GPU.
 *
 * Faults by environment, "what:rank": EMU_NCCL=init:1 (ncclCommInitRank fails there),
 * absent:1 (it waits there for ever, and so do the others in theirs),
 * async:1 (the twelfth collective there never ends and an asynchronous error appears),
 * late:1 (it never ends, and nothing is said), both also of another: late:1:3 is the
 * third; grouped:1 (a collective of a group fails there); old (version 2.17).
 *
 * ncclCommDestroy() waits for what was put on streams, which, when others do not take
 * part, is for ever; a communicator that is left behind is told at the end, and so is a
 * group.
 */
#include "tests/worker/cuda/emu.h"
#include "tests/worker/cuda/emu_check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

static const size_t SLOT = size_t(64) << 20; /* bytes of data a rank can put up */
enum { MOST = 16 };

struct board {
    std::atomic<int> here;
    std::atomic<long> put_up[MOST], taken[MOST];
    struct {
        int what;
        bool doubles;
        size_t count;
        long recorded;
    } calls[MOST]; /* the call that each rank has announced */
};

struct ncclComm {
    int rank, size, device;
    board *b;
    char *slots;
    size_t mapped;
    char path[64];
    long calls = 0, recorded = 0;
    bool broken = false;
    std::atomic<bool> aborted = false;
    std::shared_ptr<void> graphs = std::make_shared<int>(); /* each keeps one */
};

/* The rank at which `what` is to go wrong, or -1. */
static int fault_at(const char *what)
{
    const char *text = getenv("EMU_NCCL");
    size_t n = strlen(what);
    return text && strncmp(text, what, n) == 0 && text[n] == ':' ? atoi(text + n + 1)
                                                                 : -1;
}

/* The collective with which it goes wrong. */
static long faulty_call()
{
    const char *text = getenv("EMU_NCCL"), *rank = text ? strchr(text, ':') : nullptr;
    const char *call = rank ? strchr(rank + 1, ':') : nullptr;
    return call ? atol(call + 1) : 12;
}

/* Communicators that are not ended; aborts are made in threads of their own. */
static std::set<ncclComm_t> open_comms;
static std::mutex comms_lock;

static void ended(ncclComm_t c)
{
    std::lock_guard<std::mutex> own(comms_lock);
    open_comms.erase(c);
}

static int depth; /* of groups */

static void look_for_open()
{
    if (depth > 0)
        fprintf(stderr, "emulation: a group was not ended\n");
    if (!open_comms.empty())
        fprintf(stderr, "emulation: a communicator was neither destroyed nor aborted\n");
}

extern "C" ncclResult_t ncclGetVersion(int *v)
{
    const char *text = getenv("EMU_NCCL");
    *v = text && strcmp(text, "old") == 0 ? 21705 : 22809;
    return ncclSuccess;
}

extern "C" const char *ncclGetErrorString(ncclResult_t rc)
{
    return rc == ncclSystemError   ? "unhandled system error"
           : rc == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error";
}

extern "C" const char *ncclGetLastError(ncclComm_t c)
{
    return "emulated";
}

extern "C" ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int n;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/emu-nccl.%d.%d", int(getpid()),
             n++);
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id,
                                         int rank)
{
    if (fault_at("init") == rank)
        return ncclSystemError;
    while (fault_at("absent") == rank)
        pause();
    size_t bytes = 4096 + SLOT * size_t(size);
    int fd = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || size > MOST || ftruncate(fd, off_t(bytes)) < 0)
        return ncclSystemError;
    char *at = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return ncclSystemError;
    ncclComm *c = new ncclComm;
    c->rank = rank;
    c->size = size;
    c->device = emu_device();
    c->b = (board *)at;
    c->slots = at + 4096;
    c->mapped = bytes;
    snprintf(c->path, sizeof c->path, "%.60s", id.internal);
    c->b->here++;
    static std::set<std::string> paths;
    if (paths.empty())
        atexit([] { /* where not all of them come */
                    for (const std::string &path : paths)
                        unlink(path.c_str());
        });
    paths.insert(c->path);
    while (c->b->here < size) /* as long as it takes */
        usleep(1000);
    unlink(c->path); /* every rank has it */
    static int told = atexit(look_for_open);
    comms_lock.lock();
    open_comms.insert(c);
    comms_lock.unlock();
    *comm = c;
    return told == 0 ? ncclSuccess : ncclSystemError;
}

static bool all_at(const ncclComm *c, const std::atomic<long> *counters, long least)
{
    for (int r = 0; r < c->size; r++) {
        if (counters[r] < least)
            return false;
    }
    return true;
}

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

/* The sum over the ranks of their elements from `at` on. */
template <typename T> static void add_up(const ncclComm *c, size_t at, size_t n, T *to)
{
    for (size_t i = 0; i < n; i++) {
        T sum = 0;
        for (int r = 0; r < c->size; r++)
            sum += reinterpret_cast<const T *>(c->slots + SLOT * size_t(r))[at + i];
        to[i] = sum;
    }
}

/* One call, however often it is asked. */
struct collective {
    ncclComm *c;
    kind what;
    bool doubles;
    const void *from;
    void *to;
    size_t count;  /* as the caller tells it */
    long recorded; /* its number among those that are in graphs; 0: in none */
    long call = 0; /* drawn when it begins */
    bool up = false;

    size_t sent() const
    {
        return (what == REDUCE_SCATTER ? count * size_t(c->size) : count) *
               (doubles ? sizeof(double) : sizeof(float));
    }

    size_t received() const
    {
        return what == REDUCE_SCATTER ? count * (doubles ? sizeof(double) : sizeof(float))
               : what == ALL_GATHER   ? sent() * size_t(c->size)
                                      : sent();
    }

    /* NCCL hangs, or mixes up their data, where ranks do not call the same; graphs have
     * to be those that all ranks have recorded together ("Using NCCL with CUDA Graphs").
     */
    void compare() const
    {
        for (int r = 0; r < c->size; r++) {
            const auto &other = c->b->calls[r];
            if (other.what == what && other.doubles == doubles && other.count == count &&
                other.recorded == recorded)
                continue;
            fprintf(stderr,
                    "emulation: collective %ld: operation, type, count or graph of "
                    "rank %d differ from those of rank %d\n",
                    call, r, c->rank);
            _exit(99);
        }
    }

    void finish()
    {
        emu_look(to, received(), EMU_WRITE, nullptr);
        size_t at = what == REDUCE_SCATTER ? count * size_t(c->rank) : 0;
        if (what == ALL_GATHER)
            for (int r = 0; r < c->size; r++)
                memcpy(static_cast<char *>(to) + sent() * size_t(r),
                       c->slots + SLOT * size_t(r), sent());
        else if (what == BROADCAST)
            memcpy(to, c->slots, sent());
        else if (doubles)
            add_up(c, at, count, static_cast<double *>(to));
        else
            add_up(c, at, count, static_cast<float *>(to));
    }

    bool go_on()
    {
        if (c->aborted)
            return true;
        if (call == 0)
            call = ++c->calls;
        if (call == faulty_call() &&
            (fault_at("async") == c->rank || fault_at("late") == c->rank)) {
            c->broken = fault_at("async") == c->rank;
            return false;
        }
        if (!up) {
            if (!all_at(c, c->b->taken, call - 1))
                return false;
            emu_look(from, sent(), EMU_READ, nullptr);
            memcpy(c->slots + SLOT * size_t(c->rank), from, sent());
            c->b->calls[c->rank] = {what, doubles, count, recorded};
            c->b->put_up[c->rank] = call;
            up = true;
        }
        if (!all_at(c, c->b->put_up, call))
            return false;
        compare();
        finish();
        c->b->taken[c->rank] = call;
        return true;
    }
};

static ncclResult_t put(kind what, const void *from, void *to, size_t count,
                        ncclDataType_t type, ncclComm_t c, cudaStream_t stream)
{
    long recorded = emu_records(stream) ? ++c->recorded : 0;
    collective call = {c, what, type == ncclDouble, from, to, count, recorded};
    if ((type != ncclFloat && type != ncclDouble) || call.sent() > SLOT ||
        c->device != emu_device_of(stream))
        return ncclInvalidArgument;
    if (depth > 0 && fault_at("grouped") == c->rank)
        return ncclSystemError;
    if (!emu_may_ask(stream, {4 + what, int64_t(count), type}))
        return ncclUnhandledCudaError;
    emu_keep(stream, c->graphs);
    /* in a recording each play is a call of its own: the machine starts anew after its
     * end */
    auto r = std::make_shared<collective>(call);
    emu_put(stream, [=] {
        if (!r->go_on())
            return false;
        r->call = 0;
        r->up = false;
        return true;
    });
    return ncclSuccess;
}

extern "C" ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                                      cudaStream_t stream)
{
    return op != ncclSum ? ncclInvalidArgument
                         : put(ALL_REDUCE, from, to, count, type, c, stream);
}

extern "C" ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count,
                                          ncclDataType_t type, ncclRedOp_t op,
                                          ncclComm_t c, cudaStream_t stream)
{
    return op != ncclSum ? ncclInvalidArgument
                         : put(REDUCE_SCATTER, from, to, count, type, c, stream);
}

extern "C" ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                                      ncclDataType_t type, ncclComm_t c,
                                      cudaStream_t stream)
{
    return put(ALL_GATHER, from, to, count, type, c, stream);
}

extern "C" ncclResult_t ncclBroadcast(const void *from, void *to, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t c,
                                      cudaStream_t stream)
{
    return root != 0 ? ncclInvalidArgument
                     : put(BROADCAST, from, to, count, type, c, stream);
}

/* What process groups use besides; the engine does not. */
extern "C" ncclResult_t ncclReduce(const void *, void *, size_t, ncclDataType_t,
                                   ncclRedOp_t, int, ncclComm_t, cudaStream_t)
{
    return ncclInvalidUsage;
}

extern "C" ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int, ncclComm_t,
                                 cudaStream_t)
{
    return ncclInvalidUsage;
}

extern "C" ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int, ncclComm_t,
                                 cudaStream_t)
{
    return ncclInvalidUsage;
}

extern "C" ncclResult_t ncclGroupStart()
{
    depth++;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclGroupEnd()
{
    return --depth < 0 ? ncclInvalidUsage : ncclSuccess;
}

extern "C" ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    *state = c->broken ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

/* As commDestroySync() of NCCL does, for any caller. */
static void await_graphs(const ncclComm *c)
{
    while (c->graphs.use_count() > 1)
        usleep(1000);
}

extern "C" ncclResult_t ncclCommAbort(ncclComm_t c)
{
    c->aborted = true;
    ended(c);
    await_graphs(c);
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    for (time_t began = time(nullptr); !emu_drained();) {
        if (time(nullptr) - began > 10) {
            fprintf(stderr, "emulation: ncclCommDestroy() waits for ever\n");
            _exit(99);
        }
        usleep(200);
    }
    await_graphs(c);
    ended(c);
    munmap(c->b, c->mapped);
    delete c;
    return ncclSuccess;
}
