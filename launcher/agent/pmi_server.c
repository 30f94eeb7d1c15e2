/* launcher/agent/pmi_server.c - see pmi_server.h
 *
 * A table from command to verb for each dialect. A client waits for each answer before it
 * asks again, so that an answer always fits into its socket.
 */
#define LOG_SUBSYS "pmi"
#include "launcher/agent/pmi_server.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/pmi_wire.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uthash.h>

struct entry {
    char *key, *value; /* owned */
    UT_hash_handle hh;
};

/* One rank. */
struct client {
    struct pmi_server *server; /* borrowed */
    uint32_t rank;
    int fd, theirs;         /* owned; -1: closed */
    struct event *readable; /* owned */
    char *buffer;           /* owned: what has come, when it is not whole; or NULL */
    size_t fill;
    bool second;  /* speaks PMI-2 */
    bool joined;  /* and has not left */
    bool waits;   /* in the barrier */
    char *wanted; /* owned: PMI-2: waits for this attribute of its node */
    char *thread; /* owned: of the request that is being answered, PMI-2's "thrid" */
    char *parked; /* owned: the same of the one that waits */
};

struct pmi_server {
    struct loop *loop;             /* borrowed */
    const struct msg_job *job;     /* borrowed */
    const struct msg_share *share; /* borrowed */
    struct pmi_events events;
    void *arg;
    struct client *clients; /* owned, by local rank */
    struct entry *keys;     /* owned: of all ranks, since the last barrier */
    struct entry *node;     /* owned: of this node alone, PMI-2 */
    struct pack news;       /* what was put here since then */
    uint32_t waiting;       /* clients in the barrier */
    uint32_t barriers;
};

/* --- keys --------------------------------------------------------------------------- */

static void put(struct entry **table, const char *key, const char *value)
{
    struct entry *e;
    HASH_FIND_STR(*table, key, e);
    if (!e) {
        e = xcalloc(1, sizeof *e);
        e->key = xstrdup(key);
        HASH_ADD_KEYPTR(hh, *table, e->key, strlen(e->key), e);
    }
    free(e->value);
    e->value = xstrdup(value);
}

static const char *get(struct entry *table, const char *key)
{
    struct entry *e;
    HASH_FIND_STR(table, key, e);
    return e ? e->value : NULL;
}

static void clear(struct entry **table)
{
    struct entry *e, *next;
    HASH_ITER (hh, *table, e, next) {
        HASH_DEL(*table, e);
        free(e->key);
        free(e->value);
        free(e);
    }
}

static void put_own(struct pmi_server *s, const char *key, const char *value)
{
    put(&s->keys, key, value);
    pack_str(&s->news, key);
    pack_str(&s->news, value);
}

/* --- answers ------------------------------------------------------------------------ */

static void client_close(struct client *c)
{
    if (c->readable)
        event_free(c->readable);
    c->readable = NULL;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static void answer(struct client *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void answer(struct client *c, const char *fmt, ...)
{
    char text[PMI_REQUEST_MAX + 16], *body = text + (c->second ? 6 : 0);
    char length[7];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(body, PMI_REQUEST_MAX, fmt, ap);
    va_end(ap);
    if (c->second) {
        snprintf(length, sizeof length, "%6d", n);
        memcpy(text, length, 6);
        n += 6;
    }
    if (c->fd >= 0 && send(c->fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n) {
        log_debug("rank %u does not read its answer", c->rank);
        client_close(c);
    }
}

/* PMI-2: "cmd=NAME-response;thrid=...;" and the rest; values that may hold a ';' are the
 * caller's to double. */
static void answer2(struct client *c, const char *name, const char *rest)
{
    answer(c, "cmd=%s-response;%s%s%s%s", name, c->thread ? "thrid=" : "",
           c->thread ? c->thread : "", c->thread ? ";" : "", rest);
}

static char *doubled(const char *value)
{
    char *text = xcalloc(2 * strlen(value) + 1, 1), *to = text;
    for (const char *p = value; *p; p++) {
        if (*p == ';')
            *to++ = ';';
        *to++ = *p;
    }
    return text;
}

static void answer_value(struct client *c, const char *name, const char *value)
{
    if (!value) {
        answer2(c, name, "found=FALSE;rc=0;");
        return;
    }
    char *safe = doubled(value), *rest = xasprintf("found=TRUE;value=%s;rc=0;", safe);
    answer2(c, name, rest);
    free(rest);
    free(safe);
}

/* --- the barrier -------------------------------------------------------------------- */

static void barrier_over(struct pmi_server *s)
{
    s->waiting = 0;
    for (uint32_t i = 0; i < s->share->nlocal; i++) {
        struct client *c = &s->clients[i];
        if (!c->waits)
            continue;
        c->waits = false;
        if (c->second) {
            free(c->thread);
            c->thread = c->parked;
            c->parked = NULL;
            answer2(c, "kvs-fence", "rc=0;");
        } else {
            answer(c, "cmd=barrier_out\n");
        }
    }
}

static void barrier_check(struct pmi_server *s)
{
    if (s->waiting < s->share->nlocal)
        return;
    uint32_t number = s->barriers++;
    if (s->job->nnodes == 1) {
        pack_finish(&s->news);
        barrier_over(s);
        return;
    }
    uint8_t key[4] = {(uint8_t)(number >> 24), (uint8_t)(number >> 16),
                      (uint8_t)(number >> 8), (uint8_t)number};
    struct msg_fence m = {.service = SERVICE_PMI, .key = key, .nkey = sizeof key};
    struct pack k = {0};
    msg_fence_pack_head(&m, &k);
    s->events.send(MSG_FENCE, &k, s->news.p, s->news.n, s->arg);
    pack_finish(&k);
    pack_finish(&s->news);
}

static void barrier_enter(struct client *c)
{
    if (c->waits)
        return;
    c->waits = true;
    c->parked = c->thread;
    c->thread = NULL;
    c->server->waiting++;
    barrier_check(c->server);
}

int pmi_server_hear(struct pmi_server *s, const struct frame *f, struct ddp_err *err)
{
    struct msg_fence m = {0};
    if (f->type != MSG_FENCE)
        return err_set(err, "a frame '%s' is not for PMI", msg_name(f->type));
    if (msg_fence_unpack(f, &m, err) < 0)
        return -1;
    struct unpack u = {.p = m.data, .n = m.ndata};
    while (u.n > 0 && !u.bad) {
        char *key = unpack_str(&u), *value = unpack_str(&u);
        if (key && value)
            put(&s->keys, key, value);
        free(key);
        free(value);
    }
    msg_fence_finish(&m);
    if (u.bad)
        return err_set(err, "what another node has put is cut short");
    barrier_over(s);
    return 0;
}

/* --- requests of both --------------------------------------------------------------- */

static const char *word(const struct pmi_request *r, const char *name)
{
    const char *value = pmi_word(r, name);
    return value ? value : "";
}

static void refuse_spawn(struct client *c)
{
    log_error(
        "rank %u asks for more processes: MPI_Comm_spawn is not supported, start all "
        "ranks at once",
        c->rank);
}

static void be_aborted(struct client *c, int code, const char *text)
{
    struct pmi_server *s = c->server;
    char *line = xasprintf("called MPI_Abort with code %d%s%.200s%s", code,
                           *text ? " and '" : "", text, *text ? "'" : "");
    c->joined = false;
    s->events.abort(c->rank, code, line, s->arg);
    free(line);
}

/* --- PMI-1 -------------------------------------------------------------------------- */

static void one_init(struct client *c, const struct pmi_request *r)
{
    bool second = strcmp(word(r, "pmi_version"), "2") == 0;
    c->joined = true;
    answer(c, "cmd=response_to_init pmi_version=%d pmi_subversion=%d rc=0\n",
           second ? 2 : 1, second ? 0 : 1);
    c->second = second;
}

static void one_maxes(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d rc=0\n", PMI_NAME_MAX,
           PMI_KEY_MAX, PMI_VALUE_MAX);
}

static void one_appnum(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=appnum appnum=0 rc=0\n");
}

static void one_name(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=my_kvsname kvsname=ddprun_%.100s rc=0\n", c->server->job->id);
}

static void one_universe(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=universe_size size=%u rc=0\n", c->server->job->nranks);
}

static void one_put(struct client *c, const struct pmi_request *r)
{
    const char *key = word(r, "key"), *value = word(r, "value");
    bool good = *key && strlen(key) < PMI_KEY_MAX && strlen(value) < PMI_VALUE_MAX;
    if (good)
        put_own(c->server, key, value);
    answer(c, "cmd=put_result rc=%d msg=%s\n", good ? 0 : -1,
           good ? "success" : "key_or_value_too_long");
}

static void one_get(struct client *c, const struct pmi_request *r)
{
    const char *value = get(c->server->keys, word(r, "key"));
    if (value)
        answer(c, "cmd=get_result rc=0 msg=success value=%s\n", value);
    else
        answer(c, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
}

static void one_barrier(struct client *c, const struct pmi_request *r)
{
    barrier_enter(c);
}

static void one_finalize(struct client *c, const struct pmi_request *r)
{
    c->joined = false;
    answer(c, "cmd=finalize_ack rc=0\n");
}

static void one_abort(struct client *c, const struct pmi_request *r)
{
    be_aborted(c, atoi(word(r, "exitcode")), "");
}

static void one_spawn(struct client *c, const struct pmi_request *r)
{
    /* lines "mcmd=spawn", words, "endcmd": the words are not known and pass unanswered */
    refuse_spawn(c);
    answer(c, "cmd=spawn_result rc=-1 status=not_supported\n");
}

static void one_publish(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=publish_result info=failed rc=-1 msg=not_supported\n");
}

static void one_unpublish(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=unpublish_result info=failed rc=-1 msg=not_supported\n");
}

static void one_lookup(struct client *c, const struct pmi_request *r)
{
    answer(c, "cmd=lookup_result info=failed rc=-1 msg=not_supported\n");
}

/* --- PMI-2 -------------------------------------------------------------------------- */

static void two_fullinit(struct client *c, const struct pmi_request *r)
{
    char *rest = xasprintf("pmi-version=2;pmi-subversion=0;rank=%u;size=%u;appnum=0;"
                           "debugged=FALSE;pmiverbose=FALSE;rc=0;",
                           c->rank, c->server->job->nranks);
    answer2(c, "fullinit", rest);
    free(rest);
}

static void two_getid(struct client *c, const struct pmi_request *r)
{
    char *rest = xasprintf("jobid=ddprun_%.100s;rc=0;", c->server->job->id);
    answer2(c, "job-getid", rest);
    free(rest);
}

static void two_jobattr(struct client *c, const struct pmi_request *r)
{
    char size[16];
    const char *key = word(r, "key");
    snprintf(size, sizeof size, "%u", c->server->job->nranks);
    answer_value(c, "info-getjobattr",
                 strcmp(key, "universeSize") == 0 ? size : get(c->server->keys, key));
}

static void two_putnode(struct client *c, const struct pmi_request *r)
{
    struct pmi_server *s = c->server;
    const char *key = word(r, "key"), *value = word(r, "value");
    put(&s->node, key, value);
    answer2(c, "info-putnodeattr", "rc=0;");
    for (uint32_t i = 0; i < s->share->nlocal; i++) {
        struct client *o = &s->clients[i];
        if (!o->wanted || strcmp(o->wanted, key) != 0)
            continue;
        free(o->wanted);
        free(o->thread);
        o->wanted = NULL;
        o->thread = o->parked;
        o->parked = NULL;
        answer_value(o, "info-getnodeattr", value);
    }
}

static void two_getnode(struct client *c, const struct pmi_request *r)
{
    const char *value = get(c->server->node, word(r, "key"));
    if (value || strcmp(word(r, "wait"), "TRUE") != 0) {
        answer_value(c, "info-getnodeattr", value);
        return;
    }
    free(c->wanted);
    free(c->parked);
    c->wanted = xstrdup(word(r, "key"));
    c->parked = c->thread;
    c->thread = NULL;
}

static void two_put(struct client *c, const struct pmi_request *r)
{
    const char *key = word(r, "key"), *value = word(r, "value");
    bool good = *key && strlen(key) <= PMI_KEY_MAX && strlen(value) <= PMI_VALUE_MAX;
    if (good)
        put_own(c->server, key, value);
    answer2(c, "kvs-put", good ? "rc=0;" : "rc=-1;errmsg=key or value too long;");
}

static void two_get(struct client *c, const struct pmi_request *r)
{
    answer_value(c, "kvs-get", get(c->server->keys, word(r, "key")));
}

static void two_finalize(struct client *c, const struct pmi_request *r)
{
    c->joined = false;
    answer2(c, "finalize", "rc=0;");
    c->second = false; /* the next program on it begins anew */
}

static void two_abort(struct client *c, const struct pmi_request *r)
{
    be_aborted(c, 1, word(r, "msg"));
}

static void two_spawn(struct client *c, const struct pmi_request *r)
{
    refuse_spawn(c);
    answer2(c, "spawn", "rc=-1;errmsg=not supported;");
}

static void two_publish(struct client *c, const struct pmi_request *r)
{
    answer2(c, "name-publish", "rc=-1;errmsg=not supported;");
}

static void two_unpublish(struct client *c, const struct pmi_request *r)
{
    answer2(c, "name-unpublish", "rc=-1;errmsg=not supported;");
}

static void two_lookup(struct client *c, const struct pmi_request *r)
{
    answer2(c, "name-lookup", "rc=-1;errmsg=not supported;");
}

/* --- commands ----------------------------------------------------------------------- */

static const struct command {
    const char *name;
    void (*verb)(struct client *c, const struct pmi_request *r);
} first_commands[] =
    {
        {"init", one_init},
        {"get_maxes", one_maxes},
        {"get_appnum", one_appnum},
        {"get_my_kvsname", one_name},
        {"get_universe_size", one_universe},
        {"put", one_put},
        {"get", one_get},
        {"barrier_in", one_barrier},
        {"finalize", one_finalize},
        {"abort", one_abort},
        {"spawn", one_spawn},
        {"publish_name", one_publish},
        {"unpublish_name", one_unpublish},
        {"lookup_name", one_lookup},
        {0},
},
  second_commands[] = {
      {"fullinit", two_fullinit},
      {"job-getid", two_getid},
      {"info-getjobattr", two_jobattr},
      {"info-putnodeattr", two_putnode},
      {"info-getnodeattr", two_getnode},
      {"kvs-put", two_put},
      {"kvs-get", two_get},
      {"kvs-fence", one_barrier},
      {"finalize", two_finalize},
      {"abort", two_abort},
      {"spawn", two_spawn},
      {"name-publish", two_publish},
      {"name-unpublish", two_unpublish},
      {"name-lookup", two_lookup},
      {0},
};

static void handle(struct client *c, struct pmi_request *r)
{
    const char *name = pmi_word(r, "cmd");
    if (!name && !c->second)
        name = pmi_word(r, "mcmd");
    if (!name)
        return; /* a line of a request of many */
    const char *thread = c->second ? pmi_word(r, "thrid") : NULL;
    free(c->thread);
    c->thread = xstrdup(thread);
    const struct command *k = c->second ? second_commands : first_commands;
    while (k->name && strcmp(k->name, name) != 0)
        k++;
    log_trace("rank %u: %s", c->rank, name);
    if (k->name)
        k->verb(c, r);
    else if (c->second)
        answer2(c, name, "rc=-1;errmsg=not known;");
    else
        answer(c, "cmd=%.60s_result rc=-1 msg=not_known\n", name);
}

static void read_requests(struct client *c)
{
    size_t done = 0;
    for (;;) {
        long n = pmi_request_size(c->buffer + done, c->fill - done, c->second);
        if (n < 0) {
            log_debug("rank %u says what is not PMI", c->rank);
            client_close(c);
        }
        if (n <= 0)
            break;
        struct pmi_request r;
        char *text = c->buffer + done;
        done += (size_t)n;
        pmi_request_read(&r, text, (size_t)n, c->second);
        handle(c, &r);
    }
    c->fill -= done;
    memmove(c->buffer, c->buffer + done, c->fill);
}

/* Returns whether more may come. */
static bool client_read(struct client *c)
{
    if (c->fd < 0)
        return false;
    if (!c->buffer)
        c->buffer = xcalloc(PMI_REQUEST_MAX + 16, 1);
    ssize_t n =
        recv(c->fd, c->buffer + c->fill, PMI_REQUEST_MAX + 16 - c->fill, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        client_close(c); /* nobody has the other end any more */
        return false;
    }
    c->fill += (size_t)n;
    read_requests(c);
    if (c->fill == 0) {
        free(c->buffer);
        c->buffer = NULL;
    }
    return true;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    client_read(arg);
}

/* --- life --------------------------------------------------------------------------- */

int pmi_server_open(struct pmi_server *s, uint32_t local)
{
    int pair[2];
    struct client *c = &s->clients[local];
    client_close(c); /* of a start that has come to nothing */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        log_warn("rank %u gets no PMI: %s", c->rank, strerror(errno));
        return -1;
    }
    c->fd = pair[0];
    c->theirs = pair[1];
    c->readable =
        event_new(loop_base(s->loop), c->fd, EV_READ | EV_PERSIST, on_readable, c);
    if (!c->readable || event_add(c->readable, NULL) < 0)
        abort();
    return c->theirs;
}

void pmi_server_started(struct pmi_server *s, uint32_t local)
{
    struct client *c = &s->clients[local];
    if (c->theirs >= 0)
        close(c->theirs);
    c->theirs = -1;
}

bool pmi_server_exited(struct pmi_server *s, uint32_t local)
{
    struct client *c = &s->clients[local];
    while (client_read(c))
        ; /* its last words */
    return c->joined;
}

struct pmi_server *pmi_server_create(struct loop *loop, const struct msg_job *job,
                                     const struct msg_share *share,
                                     const struct pmi_events *events, void *arg)
{
    struct rankmap map;
    struct ddp_err err;
    if (rankmap_read(&map, &job->map, job->nranks, &err) < 0) {
        log_error("%s", err.text);
        return NULL;
    }
    struct pmi_server *s = xcalloc(1, sizeof *s);
    *s = (struct pmi_server){
        .loop = loop, .job = job, .share = share, .events = *events, .arg = arg};
    s->clients = xcalloc(share->nlocal, sizeof *s->clients);
    for (uint32_t i = 0; i < share->nlocal; i++)
        s->clients[i] = (struct client){
            .server = s, .rank = share->ranks[i].rank, .fd = -1, .theirs = -1};
    char *mapping = pmi_mapping(&map);
    if (mapping)
        put(&s->keys, "PMI_process_mapping", mapping);
    free(mapping);
    rankmap_finish(&map);
    return s;
}

void pmi_server_destroy(struct pmi_server *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->share->nlocal; i++) {
        struct client *c = &s->clients[i];
        client_close(c);
        pmi_server_started(s, i);
        free(c->buffer);
        free(c->wanted);
        free(c->thread);
        free(c->parked);
    }
    clear(&s->keys);
    clear(&s->node);
    pack_finish(&s->news);
    free(s->clients);
    free(s);
}
