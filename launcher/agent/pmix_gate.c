/* launcher/agent/pmix_gate.c - see pmix_gate.h */
#define LOG_SUBSYS "pmix"
#include "launcher/agent/pmix_gate.h"

#include "common/duration.h"
#include "launcher/door/door.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int gate = -1;   /* owned until libpmix has taken it */
static int theirs = -1; /* the number libpmix has for it */
static struct door *door;

/* Those who are inside, by the numbers libpmix has for them. More than an fd_set holds
 * it cannot have. */
static fd_set inside;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these */
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_open;

static bool stays(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void note(int fd)
{
    pthread_mutex_lock(&lock);
    if (fd < FD_SETSIZE)
        FD_SET(fd, &inside);
    pthread_mutex_unlock(&lock);
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
        bool waits = FD_ISSET(fd, &inside) && stays(fd);
        pthread_mutex_unlock(&lock);
        if (waits && now_ms() >= deadline_ms)
            return false;
        if (waits)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        else
            fd++;
    }
    return true;
}

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
    if (getpeername(s, (struct sockaddr *)&peer, &npeer) == 0 &&
        getsockname(s, (struct sockaddr *)&here, &nhere) == 0 &&
        door_check(door, (struct sockaddr *)&peer, (struct sockaddr *)&here, &why) == 0) {
        note(s);
        return s;
    }
    close(s);
    errno = ECONNABORTED;
    return -1;
}
