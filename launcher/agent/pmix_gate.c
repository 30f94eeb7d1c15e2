/* launcher/agent/pmix_gate.c - see pmix_gate.h */
#define LOG_SUBSYS "pmix"
#include "launcher/agent/pmix_gate.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/door/door.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int gate = -1;   /* owned until libpmix has taken it */
static int theirs = -1; /* the number libpmix has for it */
static struct door *door;

enum { TURN_MS = 5000 }; /* for all programs before this one to go */

/* Those who are inside, by the numbers libpmix has for them: the how-manieth program of
 * its rank each is, from 1. More than an fd_set holds it cannot have. */
static unsigned inside[FD_SETSIZE];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these */
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_open;

static bool stays(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void note(int fd, unsigned turn)
{
    pthread_mutex_lock(&lock);
    if (fd < FD_SETSIZE)
        inside[fd] = turn;
    pthread_mutex_unlock(&lock);
}

/* Is one inside whose turn is before this one? libpmix closes a descriptor before it does
 * what follows from it, but in the thread that will also hear who comes in now. */
static bool earlier_inside(unsigned turn)
{
    pthread_mutex_lock(&lock);
    int fd = 0;
    while (fd < FD_SETSIZE && (inside[fd] == 0 || inside[fd] >= turn || !stays(fd)))
        fd++;
    pthread_mutex_unlock(&lock);
    return fd < FD_SETSIZE;
}

static void pause_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void pmix_gate_open(void)
{
    pthread_mutex_lock(&lock);
    is_open = true;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
}

static void wait_until_open(void)
{
    pthread_mutex_lock(&lock);
    while (!is_open)
        pthread_cond_wait(&opened, &lock);
    pthread_mutex_unlock(&lock);
}

bool pmix_gate_empties(int64_t deadline_ms)
{
    for (int fd = 0; fd < FD_SETSIZE;) {
        pthread_mutex_lock(&lock);
        bool waits = inside[fd] > 0 && stays(fd);
        pthread_mutex_unlock(&lock);
        if (waits && now_ms() >= deadline_ms)
            return false;
        if (waits)
            pause_ms();
        else
            fd++;
    }
    return true;
}

/* ---- turns ---- */

/* How many programs of a rank have come in. */
struct visits {
    unsigned rank, n;
    struct visits *next;
};

/* Which rank a process was started as, by what the contract put into its environment. */
static bool rank_of(pid_t pid, unsigned *rank)
{
    char path[48];
    char *text = NULL;
    size_t room = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&text, &room, '\0', f) > 0)
        found = sscanf(text, "PMIX_RANK=%u", rank) == 1;
    if (f)
        fclose(f);
    free(text);
    return found;
}

static unsigned next_turn(pid_t pid)
{
    static struct visits *all; /* owned, until the process ends */
    unsigned rank;
    if (!rank_of(pid, &rank))
        return 1;
    struct visits *v = all;
    while (v && v->rank != rank)
        v = v->next;
    if (!v) {
        v = xcalloc(1, sizeof *v);
        *v = (struct visits){.rank = rank, .next = all};
        all = v;
    }
    return ++v->n;
}

static void wait_for_turn(unsigned turn)
{
    int64_t until = now_ms() + TURN_MS;
    while (turn > 1 && earlier_inside(turn) && now_ms() < until)
        pause_ms();
}

/* ---- between libpmix and the C library ---- */

/* glibc declares the second parameter as a union of pointers that C callers never see */
#define EXPORT __attribute__((visibility("default")))
EXPORT int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len);
EXPORT int accept(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len);

void pmix_gate_set(int fd, pid_t ancestor)
{
    gate = fd;
    door = door_create(ancestor);
}

int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
    if (gate < 0 || addr.__sockaddr__->sa_family != AF_INET)
        return (int)syscall(SYS_bind, fd, addr.__sockaddr__, len);
    if (dup3(gate, fd, O_CLOEXEC) < 0)
        return -1;
    close(gate);
    gate = -1;
    theirs = fd;
    return 0;
}

/* Called by libpmix's listening thread only. */
int accept(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len)
{
    struct sockaddr_storage peer, here;
    socklen_t npeer = sizeof peer, nhere = sizeof here;
    if (fd == theirs)
        wait_until_open();
    int s = (int)syscall(SYS_accept4, fd, addr.__sockaddr__, len, SOCK_CLOEXEC);
    if (s < 0 || fd != theirs)
        return s;
    struct ddp_err why;
    pid_t who;
    if (getpeername(s, (struct sockaddr *)&peer, &npeer) == 0 &&
        getsockname(s, (struct sockaddr *)&here, &nhere) == 0 &&
        door_holder(door, (struct sockaddr *)&peer, (struct sockaddr *)&here, &who,
                    &why) == 0) {
        unsigned turn = next_turn(who);
        note(s, turn); /* the number may have been that of one who has gone */
        wait_for_turn(turn);
        return s;
    }
    close(s);
    errno = ECONNABORTED;
    return -1;
}
