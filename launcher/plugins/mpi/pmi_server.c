/* launcher/plugins/mpi/pmi_server.c - see pmi_server.h
 *
 * A client waits for each answer before its next request, so an answer always fits into
 * the socket's buffer.
 */
#define LOG_SUBSYS "pmi"
#include "launcher/plugins/mpi/pmi_server.h"

#include "common/apps.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/mpi/pmi_impl.h"
#include "launcher/plugins/mpi/shm_cleanup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

/* --- answers ------------------------------------------------------------------------ */

void pmi_answer(struct pmi_client *c, const char *fmt, ...)
{
    char text[PMI_REQUEST_MAX + 16], *body = text + (c->pmi2 ? 6 : 0);
    char length[7];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(body, PMI_REQUEST_MAX, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= PMI_REQUEST_MAX) {
        log_debug("rank %u asks for an answer that is too long", c->rank);
        loop_close_fd(&c->readable, &c->fd);
        return;
    }
    if (c->pmi2) {
        snprintf(length, sizeof length, "%6d", n);
        memcpy(text, length, 6);
        n += 6;
    }
    if (c->fd >= 0 && send(c->fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n) {
        log_debug("rank %u does not read its answer", c->rank);
        loop_close_fd(&c->readable, &c->fd);
    }
}

/* --- the barrier -------------------------------------------------------------------- */

void pmi_put(struct pmi_server *s, const char *key, const char *value)
{
    pmi_keys_put(&s->keys, key, value);
    pack_str(&s->unsent, key);
    pack_str(&s->unsent, value);
}

static void barrier_over(struct pmi_server *s)
{
    s->waiting = 0;
    for (uint32_t i = 0; i < s->nlocal; i++) {
        struct pmi_client *c = &s->clients[i];
        if (!c->waits)
            continue;
        c->waits = false;
        pmi_dialect_of(c)->barrier_over(c);
    }
}

static void barrier_check(struct pmi_server *s)
{
    if (s->waiting < s->nlocal)
        return;
    uint32_t number = s->barriers++;
    if (s->job->nnodes == 1) {
        pack_finish(&s->unsent);
        barrier_over(s);
        return;
    }
    uint8_t key[4] = {(uint8_t)(number >> 24), (uint8_t)(number >> 16),
                      (uint8_t)(number >> 8), (uint8_t)number};
    agent_send(s->agent,
               MSG(fence, .service = SERVICE_PMI, .key = key, .nkey = sizeof key,
                   .data = s->unsent.p, .ndata = (uint32_t)s->unsent.n));
    pack_finish(&s->unsent);
}

void pmi_barrier_enter(struct pmi_client *c, const struct pmi_request *r)
{
    if (c->waits)
        return;
    c->waits = true;
    c->parked = c->thread;
    c->thread = NULL;
    c->server->waiting++;
    barrier_check(c->server);
}

int pmi_server_on_frame(struct pmi_server *s, const struct frame *f, struct ddp_err *err)
{
    const struct msg_fence *m = f->m;
    if (f->type == MSG_SPAWN_RESULT) {
        pmi_spawn_result(s, f->m);
        return 0;
    }
    if (f->type == MSG_RELATED)
        return pmi_name_message(s, f->m, err);
    if (f->type != MSG_FENCE)
        return err_set(err, "a frame '%s' is not for PMI", msg_name(f->type));
    struct unpack u = {.p = m->data, .n = m->ndata};
    while (u.n > 0 && !u.bad) {
        OWNED char *key = unpack_str(&u), *value = unpack_str(&u);
        if (key && value)
            pmi_keys_put(&s->keys, key, value);
    }
    if (u.bad)
        return err_set(err, "truncated PMI data from another node");
    barrier_over(s);
    return 0;
}

/* --- requests of both versions ------------------------------------------------------ */

static void client_forget_waits(struct pmi_client *c)
{
    struct pmi_wait *w, *next;
    LL_FOREACH_SAFE(c->waits_node, w, next)
    {
        free(w->key);
        free(w->thread);
        free(w);
    }
    c->waits_node = NULL;
}

void pmi_join(struct pmi_client *c, bool joined)
{
    struct pmi_server *s = c->server;
    c->joined = joined;
    c->program += joined;
    pmi_spawn_forget(c);
    pmi_name_forget(c);
    client_forget_waits(c); /* of this program, or of one that exited without finalize */
    s->member((uint32_t)(c - s->clients), joined, s->arg);
}

unsigned pmi_appnum(const struct pmi_client *c)
{
    unsigned first;
    return apps_of(&c->server->job->apps, c->rank, &first);
}

void pmi_abort(struct pmi_client *c, int code, const char *text)
{
    struct pmi_server *s = c->server;
    OWNED char *line = xasprintf("called MPI_Abort with code %d%s%.200s%s", code,
                                 *text ? " and '" : "", text, *text ? "'" : "");
    pmi_join(c, false);
    agent_send(s->agent, MSG(abort, c->rank, code, now_ns(), line));
}

/* --- reading ------------------------------------------------------------------------ */

static void handle(struct pmi_client *c, struct pmi_request *r)
{
    const char *name = pmi_word(r, "cmd");
    if (!name)
        return;
    const char *thread = c->pmi2 ? pmi_word(r, "thrid") : NULL;
    free(c->thread);
    c->thread = xstrdup(thread);
    c->server->used = true;
    const struct pmi_command *k = pmi_dialect_of(c)->commands;
    while (k->name && strcmp(k->name, name) != 0)
        k++;
    log_trace("rank %u: %s", c->rank, name);
    if (k->handle)
        k->handle(c, r);
    else
        pmi_dialect_of(c)->unknown(c, name);
}

static void read_requests(struct pmi_client *c)
{
    size_t done = 0;
    for (;;) {
        long n = pmi_request_size(c->buffer + done, c->fill - done, c->pmi2);
        if (n < 0) {
            log_warn(
                "rank %u wrote to its PMI_FD what is not PMI: the connection is closed",
                c->rank);
            loop_close_fd(&c->readable, &c->fd);
        }
        if (n <= 0)
            break;
        struct pmi_request r;
        char *text = c->buffer + done;
        done += (size_t)n;
        if (!c->pmi2 && pmi_spawn_line(c, text, (size_t)n))
            continue;
        pmi_request_read(&r, text, (size_t)n, c->pmi2);
        handle(c, &r);
    }
    c->fill -= done;
    memmove(c->buffer, c->buffer + done, c->fill);
}

/* Returns whether more may come. */
static bool receive(struct pmi_client *c)
{
    ssize_t n =
        recv(c->fd, c->buffer + c->fill, PMI_REQUEST_MAX + 16 - c->fill, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        /* the other end is closed */
        loop_close_fd_later(c->server->agent->loop, &c->readable, &c->fd);
        return false;
    }
    c->fill += (size_t)n;
    read_requests(c);
    return true;
}

/* receive(), with a buffer that is freed unless it has the beginning of a request. */
static bool client_read(struct pmi_client *c)
{
    if (c->fd < 0)
        return false;
    if (!c->buffer)
        c->buffer = xcalloc(PMI_REQUEST_MAX + 16, 1);
    bool more = receive(c);
    if (c->fill == 0) {
        free(c->buffer);
        c->buffer = NULL;
    }
    return more;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    client_read(arg);
}

/* --- creation and destruction ------------------------------------------------------- */

int pmi_server_open(struct pmi_server *s, uint32_t local)
{
    int pair[2];
    struct pmi_client *c = &s->clients[local];
    loop_close_fd(&c->readable, &c->fd); /* left by a failed start of this rank */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        log_warn("rank %u gets no PMI: %s%s", c->rank, strerror(errno),
                 errno == EMFILE ? "; see 'ulimit -n'" : "");
        return -1;
    }
    c->fd = pair[0];
    c->readable = loop_watch(s->agent->loop, c->fd, EV_READ | EV_PERSIST, on_readable, c);
    return pair[1];
}

bool pmi_server_exited(struct pmi_server *s, uint32_t local)
{
    struct pmi_client *c = &s->clients[local];
    while (client_read(c))
        ; /* requests sent before it exited */
    return c->joined;
}

/* "KEY=VALUE" */
static void put_entry(struct pmi_server *s, const char *entry)
{
    size_t n = strcspn(entry, "=");
    OWNED char *key = xstrndup(entry, n);
    pmi_keys_put(&s->keys, key, entry + n + (entry[n] == '='));
}

struct pmi_server *
pmi_server_create(struct agent *a, const char *mapping,
                  void (*member)(uint32_t local, bool joined, void *arg), void *arg)
{
    const struct msg_job *job = &a->job;
    const struct msg_share *share = &a->share;
    struct pmi_server *s = xcalloc(1, sizeof *s);
    *s = (struct pmi_server){.agent = a,
                             .job = job,
                             .nlocal = share->nlocal,
                             .node_rank = share->node_rank,
                             .member = member,
                             .arg = arg};
    s->kvsname = xasprintf("ddprun_%.100s_%u", job->id, job->attempt);
    s->clients = xcalloc(share->nlocal, sizeof *s->clients);
    for (uint32_t i = 0; i < share->nlocal; i++)
        s->clients[i] =
            (struct pmi_client){.server = s, .rank = share->ranks[i].rank, .fd = -1};
    if (mapping)
        pmi_keys_put(&s->keys, "PMI_process_mapping", mapping);
    for (size_t i = 0; i < job->pmi_keys.n; i++)
        put_entry(s, job->pmi_keys.v[i]);
    return s;
}

void pmi_server_destroy(struct pmi_server *s)
{
    if (!s)
        return;
    if (s->used)
        shm_cleanup_mpich(s->kvsname, s->node_rank); /* names are not reused */
    for (uint32_t i = 0; i < s->nlocal; i++) {
        struct pmi_client *c = &s->clients[i];
        loop_close_fd(&c->readable, &c->fd);
        free(c->buffer);
        client_forget_waits(c);
        pmi_spawn_forget(c);
        pmi_name_forget(c);
        free(c->thread);
        free(c->parked);
    }
    pmi_keys_clear(&s->keys);
    pmi_keys_clear(&s->node);
    pmi_keys_clear(&s->names);
    pack_finish(&s->unsent);
    free(s->clients);
    free(s->kvsname);
    free(s);
}
