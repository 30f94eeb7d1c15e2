/* launcher/plugins/store/store_agent.c - the job's store, on the nodes' side
 *
 * The agent of rank 0's node hosts it, in its own loop: the server is that of
 * rendezvous/; added here is admission. A connection is looked up in this machine's
 * kernel, and if it comes from elsewhere, the agents of the nodes with its address are
 * asked (VOUCH): every agent vouches for connections that come from its machine.
 *
 * Connections whose node has to be asked wait in a table for the answer, and are refused
 * after ASK_MS. The server's own deadline is longer, so a ticket is never used after it
 * has expired. All that arrive in one iteration of the loop are asked about together.
 */
#define LOG_SUBSYS "store"
#include "launcher/agent/plugin.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/refusals.h"
#include "common/sock.h"
#include "launcher/admission/admission.h"
#include "launcher/plugins/plugins.h"
#include "launcher/transport/program.h"
#include "rendezvous/server/server.h"

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <uthash.h>

/* a link that is cut for a while delays the answer; a lost node ends the job */
enum { ASK_MS = 60000, SERVER_ASK_MS = 75000, ID_MASK = 0x7fffffff };

struct query {
    struct server_ticket *ticket;
    uint32_t id;
    unsigned scope; /* of the attempt it was asked in */
    int64_t deadline_ms;
    UT_hash_handle hh;
};

struct store_node {
    struct agent *agent;     /* borrowed */
    struct store_host *host; /* owned; NULL except on the master node */
    bool alone;              /* it is for ranks of this node only */
};

/* On the master node: the server of rendezvous/, and who may connect to it. */
struct store_host {
    struct agent *agent;      /* borrowed */
    struct server *server;    /* owned; NULL when only a port was wanted */
    char *addr;               /* owned: for the ranks */
    char *listen;             /* owned: the same in numbers; NULL: every interface */
    int port, wanted_port;    /* MASTER_PORT; the latter 0: any */
    int store_port;           /* the server's, if MASTER_PORT is left to the rank; or 0 */
    int rank0_port, rank0_fd; /* reserved; owned */
    int claim_fd;             /* owned: keeps other jobs from `port` */
    unsigned scope;           /* of this attempt's keys; 0 for an open store */
    struct refusals refusals;
    uint32_t last_id;
    struct query *queries;  /* owned, by id, the oldest first */
    struct event *late;     /* owned: at the deadline of the oldest */
    struct question *fresh; /* owned: room for VOUCH_MAX that are not sent yet; NULL */
    uint32_t nfresh;
};

static void query_end(struct store_host *h, struct query *q, bool yes, const char *why)
{
    HASH_DEL(h->queries, q);
    server_admit(q->ticket, yes, q->scope, why);
    free(q);
}

static void watch_deadline(struct store_host *h)
{
    if (!h->queries || evtimer_pending(h->late, NULL))
        return;
    int64_t ms = h->queries->deadline_ms - now_ms();
    loop_arm(h->late, ms > 0 ? ms : 0);
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
    struct store_host *h = arg;
    while (h->queries && h->queries->deadline_ms <= now_ms())
        query_end(h, h->queries, false, "no answer from the node it comes from");
    watch_deadline(h);
}

static int handle_vouched(void *state, const struct frame *f, struct ddp_err *err)
{
    struct store_host *h = ((struct store_node *)state)->host;
    const struct msg_vouched *answer = f->m;
    for (uint32_t i = 0; h && i < answer->n; i++) {
        const struct verdict *v = &answer->list[i];
        struct query *q;
        HASH_FIND(hh, h->queries, &v->id, sizeof v->id, q);
        if (q)
            query_end(h, q, v->yes, v->why ? v->why : "not of this job");
    }
    return 0;
}

static void ask_fresh(void *arg)
{
    struct store_host *h = arg;
    agent_send(h->agent, MSG(vouch, .list = h->fresh, .n = h->nfresh));
    h->nfresh = 0;
}

static void copy_address(struct sockaddr_storage *to, const struct sockaddr *from)
{
    *to = (struct sockaddr_storage){0};
    memcpy(to, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                      : sizeof(struct sockaddr_in6));
}

static void ask_other_nodes(struct store_host *h, struct server_ticket *ticket,
                            const struct sockaddr *peer, const struct sockaddr *local)
{
    struct query *q = xcalloc(1, sizeof *q);
    *q = (struct query){.ticket = ticket,
                        .id = ++h->last_id & ID_MASK,
                        .scope = h->scope,
                        .deadline_ms = now_ms() + ASK_MS};
    HASH_ADD(hh, h->queries, id, sizeof q->id, q);
    watch_deadline(h);
    if (!h->fresh)
        h->fresh = xcalloc(VOUCH_MAX, sizeof *h->fresh);
    if (h->nfresh == 0)
        loop_post(h->agent->loop, ask_fresh, h);
    struct question *ask = &h->fresh[h->nfresh++];
    ask->id = q->id;
    copy_address(&ask->peer, peer);
    copy_address(&ask->local, local);
    if (h->nfresh == VOUCH_MAX) {
        loop_unpost(h->agent->loop, h);
        ask_fresh(h);
    }
}

static void on_connection(struct server_ticket *ticket, const struct sockaddr *peer,
                          const struct sockaddr *local, void *arg)
{
    struct store_host *h = arg;
    struct ddp_err err = {""};
    int answer = admission_check(agent_admission(h->agent), peer, local, &err);
    if (answer == ADMISSION_ELSEWHERE)
        ask_other_nodes(h, ticket, peer, local);
    else
        server_admit(ticket, answer == 0, h->scope, err.text);
}

static void on_notice(const char *line, void *arg)
{
    log_info("%s", line);
}

static void on_refused(const struct sockaddr *peer, const char *why, void *arg)
{
    struct store_host *h = arg;
    OWNED char *line = refusals_line(&h->refusals, peer, "the store", why);
    if (line)
        log_warn("%s", line);
}

/* `addr` is what the ranks connect to, `own` the local address to listen on. NULL: every
 * interface, for a name that resolves to loopback here only (Debian writes 127.0.1.1 into
 * /etc/hosts). PyTorch compares MASTER_ADDR as text with lower-case names. */
static void set_addr(struct store_host *h, const char *addr, const char *own)
{
    h->addr = xstrdup(addr);
    for (char *p = h->addr; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    h->listen = xstrdup(own);
}

/* ms, for all names: the lookup blocks the loop, and with it the heartbeats. */
enum { LOOKUP_MS = 3000 };

/* The user's MASTER_ADDR: kept if all ranks reach this machine by it. */
static bool take_user_addr(struct store_host *h, const struct msg_store *want,
                           int64_t until)
{
    char own[INET6_ADDRSTRLEN];
    if (!want->wish)
        return false;
    enum sock_own is = sock_own_addr(want->wish, until, own, sizeof own);
    if (is == SOCK_OWN || (is == SOCK_LOOPBACK && want->alone)) {
        set_addr(h, want->wish, own);
        return true;
    }
    log_warn("MASTER_ADDR=%s is ignored: %s; --master-addr overrides this", want->wish,
             is == SOCK_LOOPBACK  ? "other hosts cannot reach this one by it"
             : is == SOCK_FOREIGN ? "it is not an address of rank 0's host"
                                  : "it cannot be resolved on rank 0's host");
    return false;
}

static int choose_addr(struct store_host *h, const struct msg_store *want,
                       struct ddp_err *err)
{
    char text[INET6_ADDRSTRLEN];
    int64_t until = now_ms() + LOOKUP_MS;
    if (take_user_addr(h, want, until))
        return 0;
    if (want->addr) {
        enum sock_own is = sock_own_addr(want->addr, until, text, sizeof text);
        bool hidden = !want->alone && is == SOCK_LOOPBACK && strcmp(text, want->addr);
        if (is == SOCK_UNKNOWN)
            return err_set(err, "--master-addr '%s' cannot be resolved on rank 0's host",
                           want->addr);
        set_addr(h, want->addr, hidden ? NULL : is == SOCK_OWN ? text : want->addr);
        return 0;
    }
    if (sock_interface_addr(want->interface, text, sizeof text, err) < 0)
        return err_prefix(err, "rank 0's host");
    set_addr(h, text, text);
    return 0;
}

static const char port_advice[] = "the store cannot use this port (without --store-port "
                                  "and --master-port it takes a free one)";

/* MASTER_ADDR is another machine's. */
static int not_here(const struct msg_store *want, struct ddp_err *err)
{
    return err_set(err,
                   "'%s' is no address of rank 0's host; --master-addr and --interface "
                   "choose another",
                   want->addr);
}

/* Reserves h->port among the jobs of this host: an abstract socket has its name in the
 * network namespace of the port. */
static int claim_port(struct store_host *h, struct ddp_err *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int n = snprintf(sa.sun_path + 1, sizeof sa.sun_path - 1, "ddprun-port-%d", h->port);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    close_fd(&h->claim_fd);
    h->claim_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (h->claim_fd >= 0 && bind(h->claim_fd, (struct sockaddr *)&sa, size) < 0 &&
        errno == EADDRINUSE)
        return err_set(err, "port %d is left to rank 0 of another job", h->port);
    return 0;
}

static int listen_as(struct store_host *h, const struct msg_store *want,
                     struct ddp_err *err)
{
    struct server_options options = {
        .addr = h->listen,
        .port = want->separate ? 0 : (int)want->port,
        .ask = want->open ? NULL : on_connection,
        .ask_arg = h,
        .ask_timeout_ms = SERVER_ASK_MS,
        .notice = on_notice,
        .refused = on_refused,
        .notice_arg = h,
    };
    h->server = server_create(h->agent->loop, &options, err);
    if (!h->server && errno == EADDRNOTAVAIL && want->addr)
        return not_here(want, err);
    if (!h->server && want->port && !want->separate)
        return err_prefix(err, port_advice);
    if (!h->server)
        return err_prefix(err, "the store cannot listen");
    h->port = server_port(h->server);
    h->store_port = want->separate ? h->port : 0;
    if (want->port && !want->separate && claim_port(h, err) < 0)
        return err_prefix(err, port_advice);
    return 0;
}

/* A random port below the range that the kernel assigns from; 0: no such port. */
static int port_to_try(void)
{
    enum { LEAST = 20000 };
    char text[64];
    unsigned drawn;
    int first; /* of that range */
    if (read_start("/proc/sys/net/ipv4/ip_local_port_range", text, sizeof text) <= 0 ||
        sscanf(text, "%d", &first) != 1 || first <= LEAST ||
        getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
        return 0;
    return LEAST + (int)(drawn % (unsigned)(first - LEAST));
}

static int take_port(struct store_host *h, int port, bool unclaimed, struct ddp_err *err)
{
    SCOPED(close_fd) int fd = sock_listen(NULL, port, &h->port, err);
    if (fd < 0)
        return -1;
    return claim_port(h, err) < 0 && unclaimed ? -1 : 0;
}

/* A port for rank 0 to listen on, at all addresses, as PyTorch does. It is free now;
 * other processes rarely bind a port outside the kernel's range, and no other job claims
 * it, so it should be free when rank 0 binds it. If another user has claimed them all,
 * the kernel chooses a port, without a claim. */
static int find_port(struct store_host *h, struct ddp_err *err)
{
    enum { TRIES = 10 };
    int rc = -1;
    for (int i = 0; i < TRIES && !h->wanted_port && rc < 0; i++)
        rc = take_port(h, port_to_try(), true, err);
    if (rc < 0)
        rc = take_port(h, h->wanted_port, h->wanted_port > 0, err);
    return rc < 0 && h->wanted_port ? err_prefix(err, port_advice) : rc;
}

/* Can rank 0, which serves the store itself, listen at MASTER_ADDR? */
static int check_addr(struct store_host *h, const struct msg_store *want,
                      struct ddp_err *err)
{
    int port;
    SCOPED(close_fd) int fd = sock_listen(h->listen, 0, &port, err);
    return fd >= 0 ? 0 : errno == EADDRNOTAVAIL && want->addr ? not_here(want, err) : -1;
}

static void host_destroy(struct store_host *h)
{
    if (!h)
        return;
    while (h->queries)
        query_end(h, h->queries, false, "the job has ended");
    loop_unpost(h->agent->loop, h);
    loop_free(h->late);
    free(h->fresh);
    server_destroy(h->server);
    close_fd(&h->rank0_fd);
    close_fd(&h->claim_fd);
    free(h->addr);
    free(h->listen);
    free(h);
}

/* With `want->serve` the store listens when this returns; otherwise only a free port is
 * chosen. */
static struct store_host *host_create(struct agent *a, const struct msg_store *want,
                                      struct ddp_err *err)
{
    struct store_host *h = xcalloc(1, sizeof *h);
    *h = (struct store_host){.agent = a,
                             .wanted_port = (int)want->port,
                             .rank0_fd = -1,
                             .claim_fd = -1,
                             .scope = want->open ? 0 : 1};
    bool left = !want->serve || want->separate;
    h->late = loop_timer(a->loop, on_late, h);
    if ((h->rank0_fd = sock_reserve(&h->rank0_port, err)) < 0 ||
        choose_addr(h, want, err) < 0 ||
        (want->serve ? listen_as : check_addr)(h, want, err) < 0 ||
        (left && find_port(h, err) < 0)) {
        host_destroy(h);
        return NULL;
    }
    log_debug("%s port %d %s", h->addr, h->port,
              left ? "is left to rank 0" : "serves the store");
    if (h->store_port)
        log_debug("%s port %d serves the store", h->addr, h->store_port);
    return h;
}

/* For another attempt: drops the keys of the earlier one; if rank 0 serves at
 * MASTER_PORT, chooses another free port. */
static int host_renew(struct store_host *h, struct ddp_err *err)
{
    if ((!h->server || h->store_port) && find_port(h, err) < 0)
        return -1;
    if (!h->server)
        return 0;
    server_drop_scope(h->server, h->scope);
    if (h->scope > 0)
        h->scope++;
    return 0;
}

/* --- messages ----------------------------------------------------------------------- */

static void serve(struct store_node *s, const struct msg_store *want)
{
    struct ddp_err err;
    int rc = 0;
    if (s->host && s->alone && !want->alone) { /* the job has grown */
        host_destroy(s->host);
        s->host = NULL;
    }
    if (s->host)
        rc = host_renew(s->host, &err);
    else
        s->host = host_create(s->agent, want, &err);
    s->alone = want->alone;
    if (!s->host || rc < 0) {
        agent_cannot(s->agent, UINT32_MAX, EXIT_CANNOT_START, err.text);
        return;
    }
    agent_send(s->agent, MSG(store_ready, msg_text(s->host->addr),
                             (uint32_t)s->host->port, (uint32_t)s->host->rank0_port));
}

static int handle_store(void *state, const struct frame *f, struct ddp_err *err)
{
    struct store_node *s = state;
    if (s->host && s->agent->state != AGENT_ENDED)
        return err_set(err, "a second 'store'");
    serve(s, f->m);
    return 0;
}

/* In a job on this machine alone, only this agent knows the port. */
static int store_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    const struct store_node *s = state;
    if (job->master_port)
        return 0;
    if (!s->host)
        return err_set(err, "the store has no port");
    free(job->master_addr);
    job->master_addr = xstrdup(s->host->addr);
    job->master_port = (uint32_t)s->host->port;
    job->rank0_port = (uint32_t)s->host->rank0_port;
    return 0;
}

static void store_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    const struct store_node *s = state;
    facts->store_port = s->host ? s->host->store_port : 0;
}

static int handle_vouch(void *state, const struct frame *f, struct ddp_err *err)
{
    struct store_node *s = state;
    const struct msg_vouch *m = f->m;
    struct verdict verdicts[VOUCH_MAX];
    for (uint32_t i = 0; i < m->n; i++) {
        const struct question *q = &m->list[i];
        struct ddp_err why = {""};
        bool yes =
            admission_check(agent_admission(s->agent), (const struct sockaddr *)&q->peer,
                            (const struct sockaddr *)&q->local, &why) == 0;
        verdicts[i] = (struct verdict){q->id, yes, yes ? NULL : xstrdup(why.text)};
    }
    agent_send(s->agent, MSG(vouched, verdicts, m->n));
    for (uint32_t i = 0; i < m->n; i++)
        free(verdicts[i].why);
    return 0;
}

static void store_fini(void *state)
{
    host_destroy(((struct store_node *)state)->host);
}

static const struct agent_message messages[] = {
    {MSG_STORE, handle_store},
    {MSG_VOUCH, handle_vouch},
    {MSG_VOUCHED, handle_vouched},
    {0},
};

const struct agent_plugin store_agent = {
    .name = "store",
    .state_size = sizeof(struct store_node),
    .fini = store_fini,
    .prepare = store_prepare,
    .rank_facts = store_rank_facts,
    .messages = messages,
};
