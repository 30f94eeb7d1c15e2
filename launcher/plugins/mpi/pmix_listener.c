/* launcher/plugins/mpi/pmix_listener.c - see pmix_listener.h */
#include "launcher/plugins/mpi/pmix_listener.h"

#include "common/duration.h"
#include "common/refusals.h"
#include "common/scoped.h"
#include "common/thread.h"
#include "launcher/admission/admission.h"
#include "launcher/plugins/mpi/pmix_sessions.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int listen_fd = -1;  /* owned: the listening socket, until libpmix's bind() */
static int library_fd = -1; /* libpmix's descriptor for it */
static struct admission *admission;
static struct refusals refusals; /* of the thread that accepts */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static bool is_open;
static char *refused;   /* owned: a line for the loop to log; NULL: none */
static bool connecting; /* the thread connect_for_waiting() runs */
static int own_port;    /* local port of its connection in flight; 0: none */
static int first = -1;  /* owned: the agent's accepted connection, until admitted */

/* Waits for 1 ms only, and libpmix retries: since libpmix 5 the listening thread also
 * handles the ranks' messages, so it must not block. */
static bool wait_open(void)
{
    pthread_mutex_lock(&lock);
    bool is = is_open;
    pthread_mutex_unlock(&lock);
    if (!is)
        sleep_ms(1);
    return is;
}

char *pmix_listener_refused(void)
{
    LOCKED(&lock);
    char *line = refused;
    refused = NULL;
    return line;
}

bool pmix_listener_empties(int64_t deadline_ms)
{
    for (int fd = 0; fd < FD_SETSIZE;) {
        bool waits = sessions_active(fd);
        if (waits && now_ms() >= deadline_ms)
            return false;
        if (waits)
            sleep_ms(1);
        else
            fd++;
    }
    return true;
}

/* ---- connections that were accepted before ----
 *
 * libpmix calls accept() only when a connection arrives. So, to hand over the agent's
 * first connection or a queued one, this process connects to itself, and accept() returns
 * the handed-over connection in place of its own. */

static void set_own_port(int port)
{
    LOCKED(&lock);
    own_port = port;
}

static void connect_self(void)
{
    struct sockaddr_in to, from = {.sin_family = AF_INET};
    socklen_t n = sizeof to, nfrom = sizeof from;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SCOPED(close_fd) int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return; /* the caller retries */
    if (getsockname(library_fd, (struct sockaddr *)&to, &n) == 0 &&
        syscall(SYS_bind, s, &from, sizeof from) == 0 &&
        getsockname(s, (struct sockaddr *)&from, &nfrom) == 0) {
        set_own_port(ntohs(from.sin_port));
        if (connect(s, (struct sockaddr *)&to, n) < 0)
            set_own_port(0);
    }
}

static bool is_own(const struct sockaddr_storage *peer)
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)peer;
    LOCKED(&lock);
    bool is = own_port && peer->ss_family == AF_INET && ntohs(in->sin_port) == own_port;
    own_port = is ? 0 : own_port;
    return is;
}

static void *connect_for_waiting(void *arg)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        bool under_way = own_port != 0;
        bool has_first = first >= 0;
        connecting = under_way || has_first || sessions_queued() > 0;
        bool go_on = connecting;
        pthread_mutex_unlock(&lock);
        if (!go_on)
            return NULL;
        if (!under_way && (has_first || sessions_ready()))
            connect_self();
        sleep_ms(1);
    }
}

static void begin_connecting(void)
{
    LOCKED(&lock);
    if (!connecting)
        connecting = thread_start(NULL, connect_for_waiting, NULL) == 0;
}

void pmix_listener_open(void)
{
    pthread_mutex_lock(&lock);
    is_open = true;
    bool has_first = first >= 0;
    pthread_mutex_unlock(&lock);
    if (has_first)
        begin_connecting();
}

/* ---- overrides of C library functions, for libpmix ---- */

/* glibc declares the second parameter as a union of pointers that C callers never see */
#define EXPORT __attribute__((visibility("default")))
EXPORT int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len);
EXPORT int accept(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len);

void pmix_listener_set(int fd, int first_fd, pid_t ancestor)
{
    listen_fd = fd;
    first = first_fd;
    admission = admission_create(ancestor);
}

int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
    if (listen_fd < 0 || addr.__sockaddr__->sa_family != AF_INET)
        return (int)syscall(SYS_bind, fd, addr.__sockaddr__, len);
    if (dup3(listen_fd, fd, O_CLOEXEC) < 0)
        return -1;
    close(listen_fd);
    listen_fd = -1;
    library_fd = fd;
    return 0;
}

/* Whether a process of the job, `who`, is at the other end of `s`. */
static bool admitted(int s, pid_t *who)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    struct ddp_err why;
    if (getpeername(s, (struct sockaddr *)&peer, &size) < 0)
        return false;
    if (admission_accepted(admission, s, (struct sockaddr *)&peer, who, &why) == 0)
        return true;
    char *line = refusals_line(&refusals, (struct sockaddr *)&peer, "PMIx", why.text);
    if (line) {
        LOCKED(&lock);
        free(refused);
        refused = line;
    }
    return false;
}

/* Takes ownership of `s`. Returns it if it may enter now, else -1: closed or queued. */
static int admit(int s)
{
    pid_t who;
    if (!admitted(s, &who)) {
        close(s);
        return -1;
    }
    if (sessions_admit(s, who))
        return s;
    begin_connecting();
    return -1;
}

static int take_first(void)
{
    pthread_mutex_lock(&lock);
    int s = first;
    first = -1;
    pthread_mutex_unlock(&lock);
    return s >= 0 ? admit(s) : -1;
}

/* Called by libpmix's listening thread only, which continues after EAGAIN. */
int accept(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len)
{
    if (fd != library_fd)
        return (int)syscall(SYS_accept4, fd, addr.__sockaddr__, len, SOCK_CLOEXEC);
    if (!wait_open()) {
        errno = EAGAIN;
        return -1;
    }
    struct sockaddr_storage peer = {0};
    socklen_t npeer = sizeof peer;
    int s = (int)syscall(SYS_accept4, fd, &peer, &npeer, SOCK_CLOEXEC);
    if (s < 0)
        return s;
    if (is_own(&peer)) {
        close(s);
        s = take_first();
        if (s < 0)
            s = sessions_take();
    } else {
        s = admit(s);
    }
    if (s < 0)
        errno = EAGAIN;
    else
        getpeername(s, addr.__sockaddr__, len);
    return s;
}
