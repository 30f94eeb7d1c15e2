/* tests/worker/cuda/emu_nccl.cc - see emu.h: libnccl.so.2 for ranks of one host
 *
 * The unique id names a file in /dev/shm with one slot per rank. An all-reduce is a small
 * machine that is asked again until it has finished, so that the caller can see it hang
 * when a rank is missing, as it would on a GPU.
 *
 * Faults by environment, "what:rank": EMU_NCCL=init:1 (ncclCommInitRank fails there),
 * async:1 (the third all-reduce there never ends and an asynchronous error appears),
 * late:1 (it never ends, and nothing is said), old (version 2.17).
 */
#include "tests/worker/cuda/emu.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t SLOT = size_t(16) << 20; /* bytes of data a rank can put up */
enum { MOST = 16 };

struct board {
    std::atomic<int> here;
    std::atomic<long> put_up[MOST], taken[MOST];
};

struct ncclComm {
    int rank, size;
    board *b;
    char *slots;
    size_t mapped;
    char path[64];
    long calls = 0;
    bool aborted = false, broken = false;
};

/* The rank at which `what` is to go wrong, or -1. */
static int fault_at(const char *what)
{
    const char *text = getenv("EMU_NCCL");
    size_t n = strlen(what);
    return text && strncmp(text, what, n) == 0 && text[n] == ':' ? atoi(text + n + 1)
                                                                  : -1;
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
    size_t bytes = 4096 + SLOT * size_t(size);
    int fd = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || size > MOST || ftruncate(fd, off_t(bytes)) < 0)
        return ncclSystemError;
    char *at =
        (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return ncclSystemError;
    ncclComm *c = new ncclComm;
    c->rank = rank;
    c->size = size;
    c->b = (board *)at;
    c->slots = at + 4096;
    c->mapped = bytes;
    snprintf(c->path, sizeof c->path, "%.60s", id.internal);
    c->b->here++;
    for (int ms = 0; c->b->here < size; ms++) {
        if (ms > 20000) {
            unlink(c->path);
            return ncclRemoteError;
        }
        usleep(1000);
    }
    unlink(c->path); /* everybody has it */
    *comm = c;
    return ncclSuccess;
}

static bool all_at(const ncclComm *c, const std::atomic<long> *counters, long least)
{
    for (int r = 0; r < c->size; r++) {
        if (counters[r] < least)
            return false;
    }
    return true;
}

/* One call, however often it is asked. */
struct reduction {
    ncclComm *c;
    const float *from;
    float *to;
    size_t count;
    long call = 0; /* drawn when it begins */
    bool up = false;

    bool go_on()
    {
        if (c->aborted)
            return true;
        if (call == 0)
            call = ++c->calls;
        if (call == 3 && (fault_at("async") == c->rank || fault_at("late") == c->rank)) {
            c->broken = fault_at("async") == c->rank;
            return false;
        }
        if (!up) {
            if (!all_at(c, c->b->taken, call - 1))
                return false;
            memcpy(c->slots + SLOT * size_t(c->rank), from, count * sizeof *from);
            c->b->put_up[c->rank] = call;
            up = true;
        }
        if (!all_at(c, c->b->put_up, call))
            return false;
        for (size_t i = 0; i < count; i++) {
            float sum = 0;
            for (int r = 0; r < c->size; r++)
                sum += ((const float *)(c->slots + SLOT * size_t(r)))[i];
            to[i] = sum;
        }
        c->b->taken[c->rank] = call;
        return true;
    }
};

extern "C" ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                                      cudaStream_t stream)
{
    if (type != ncclFloat || op != ncclSum || count * sizeof(float) > SLOT)
        return ncclInvalidArgument;
    const float *f = static_cast<const float *>(from);
    float *t = static_cast<float *>(to);
    /* in a recording each play is a call of its own: the machine starts anew after its end */
    auto r = std::make_shared<reduction>(reduction{c, f, t, count});
    emu_put(stream, [=] {
        if (!r->go_on())
            return false;
        r->call = 0;
        r->up = false;
        return true;
    });
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    *state = c->broken ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommAbort(ncclComm_t c)
{
    c->aborted = true;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    munmap(c->b, c->mapped);
    delete c;
    return ncclSuccess;
}
