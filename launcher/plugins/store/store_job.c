/* launcher/plugins/store/store_job.c - the job's store, on the launcher's side
 *
 * In each attempt the node of rank 0 binds the store's port (STORE), and no rank is
 * started before it has answered with address and port (STORE_READY).
 *
 * The agent that hosts the store asks whether connections come from ranks of the job
 * (VOUCH); the agents of the connecting machines know (VOUCHED). A message has the
 * questions, or the answers, of many connections; here they are sorted by node.
 */
#define LOG_SUBSYS "store"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock_addr.h"
#include "launcher/agent/agent.h"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

/* An IP address, without port, and the nodes that have it: several if it is that of a
 * docker0 on each. */
struct address {
    char addr[INET6_ADDRSTRLEN];
    unsigned *nodes; /* owned */
    size_t n;
    UT_hash_handle hh;
};

struct store_job {
    struct job *job;           /* borrowed */
    struct address *addresses; /* owned: of all nodes, from their HELLO */
};

/* A bit in a question's id: several agents were asked. */
static const uint32_t ASKED_SEVERAL = 0x80000000u;

/* --- the port ----------------------------------------------------------------------- */

/* MASTER_ADDR of -x, or of our environment. */
static const char *users_master_addr(const struct job *j)
{
    const char *text = strv_env_get(&j->job.env, "MASTER_ADDR");
    text = text ? text : getenv("MASTER_ADDR");
    return text && *text ? text : NULL;
}

/* `addr`: the address to use when the user has no wish; NULL: the node chooses. Nothing
 * in the result is owned by it. */
static struct msg_store wanted(const struct job *j, const char *addr)
{
    const struct opts *o = j->opts;
    const char *wish = o->master_addr || o->interface ? NULL : users_master_addr(j);
    if (o->master_addr)
        addr = o->master_addr;
    else if (o->interface)
        addr = NULL;
    return (struct msg_store){.addr = msg_text(addr),
                              .interface = msg_text(o->interface),
                              .port = (uint32_t)o->store_port,
                              .open = o->store_open,
                              .serve = o->store != STORE_RANK0,
                              .separate = job_store_is_separate(j),
                              .wish = msg_text(wish),
                              .alone = j->plan->nnodes == 1 && !j->job.grows};
}

static void store_prepare(void *state)
{
    struct job *j = ((struct store_job *)state)->job;
    /* an address of its machine that others have connected to */
    unsigned master = job_store_node(j);
    const char *addr = j->nodes[master].hello.addr;
    if (j->plan->nnodes == 1 && !j->job.grows)
        addr = "127.0.0.1";
    else if (!addr && j->nodes[master].host->local)
        addr = j->here; /* else NULL: the node chooses */
    struct msg_store m = wanted(j, addr);
    job_hold(j);
    job_send(j, master, MSG_STORE, &m);
}

static void store_local_orders(void *state, struct agent_orders *orders)
{
    struct msg_store m = wanted(((struct store_job *)state)->job, "127.0.0.1");
    agent_orders_add(orders, MSG_STORE, &m);
}

static int handle_ready(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct job *j = ((struct store_job *)state)->job;
    struct msg_store_ready *m = f->m;
    log_info("MASTER_ADDR=%s MASTER_PORT=%u", m->addr, m->port);
    free(j->job.master_addr);
    j->job.master_addr = msg_take(&m->addr);
    j->job.master_port = m->port;
    j->job.rank0_port = m->rank0_port;
    unsigned far;
    OWNED char *why = j->restart.attempt > 0 ? NULL
                                             : job_unreachable(j, job_store_node(j),
                                                               j->job.master_addr, &far);
    if (why)
        log_warn("ranks on %s %s", j->alloc->nodes[far].name, why);
    job_release(j);
    return 0;
}

/* --- admission ---------------------------------------------------------------------- */

static void add_address(struct store_job *s, const char *addr, unsigned node)
{
    struct address *e;
    HASH_FIND_STR(s->addresses, addr, e);
    if (!e) {
        e = xcalloc(1, sizeof *e);
        snprintf(e->addr, sizeof e->addr, "%s", addr);
        HASH_ADD_STR(s->addresses, addr, e);
    }
    if (e->n > 0 && e->nodes[e->n - 1] == node)
        return; /* two interfaces of one node */
    e->nodes = xrealloc(e->nodes, e->n + 1, sizeof *e->nodes);
    e->nodes[e->n++] = node;
}

static void store_node_joined(void *state, unsigned node)
{
    struct store_job *s = state;
    const struct strv *addrs = &s->job->nodes[node].hello.addrs;
    for (size_t i = 0; i < addrs->n; i++)
        add_address(s, addrs->v[i], node);
}

/* A question and one of the nodes that have its address. */
struct inquiry {
    unsigned node;
    const struct question *question; /* borrowed */
    bool several;
};

static int by_node(const void *a, const void *b)
{
    const struct inquiry *x = a, *y = b;
    return (x->node > y->node) - (x->node < y->node);
}

/* Ask each node once for all of its questions. */
static void ask_nodes(struct job *j, struct inquiry *asked, size_t n)
{
    struct question list[VOUCH_MAX];
    uint32_t k = 0;
    if (n > 0) /* else there is no list */
        qsort(asked, n, sizeof *asked, by_node);
    for (size_t i = 0; i < n; i++) {
        list[k] = *asked[i].question;
        list[k++].id |= asked[i].several ? ASKED_SEVERAL : 0;
        if (i + 1 < n && asked[i + 1].node == asked[i].node && k < VOUCH_MAX)
            continue;
        job_send(j, asked[i].node, MSG(vouch, list, k));
        k = 0;
    }
}

static char *unknown_address(const char *addr)
{
    return xasprintf("no process on the job's hosts has the other end at %s; a container "
                     "needs its host's network (docker run --network host)",
                     addr);
}

/* If several machines have an address (a docker0 on each), all are asked: the id gets
 * ASKED_SEVERAL, and only a yes is passed back. */
static int handle_vouch(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct store_job *s = state;
    const struct msg_vouch *m = f->m;
    struct verdict no[VOUCH_MAX];
    OWNED struct inquiry *asked = NULL;
    size_t nasked = 0, room = 0;
    uint32_t nno = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        char addr[INET6_ADDRSTRLEN];
        const struct address *at;
        sock_addr((const struct sockaddr *)&m->list[i].peer, addr, sizeof addr);
        HASH_FIND_STR(s->addresses, addr, at);
        size_t first = nasked;
        for (size_t k = 0; at && k < at->n; k++) {
            if (at->nodes[k] == node)
                continue;
            asked = xroom(asked, nasked, &room, sizeof *asked);
            asked[nasked++] = (struct inquiry){at->nodes[k], &m->list[i], false};
        }
        for (size_t k = first; k < nasked; k++)
            asked[k].several = nasked - first > 1;
        if (nasked == first)
            no[nno++] = (struct verdict){m->list[i].id, false, unknown_address(addr)};
    }
    ask_nodes(s->job, asked, nasked);
    if (nno > 0)
        job_send(s->job, node, MSG(vouched, no, nno));
    for (uint32_t i = 0; i < nno; i++)
        free(no[i].why);
    return 0;
}

static int handle_vouched(void *state, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    struct job *j = ((struct store_job *)state)->job;
    const struct msg_vouched *m = f->m;
    struct verdict list[VOUCH_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        list[n] = m->list[i];
        list[n].id &= ~ASKED_SEVERAL;
        n += m->list[i].yes || !(m->list[i].id & ASKED_SEVERAL);
    }
    if (j->plan && n > 0)
        job_send(j, job_store_node(j), MSG(vouched, list, n));
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static int store_open(void *state, struct ddp_err *err)
{
    struct job *j = ((struct store_job *)state)->job;
    if (j->opts->store_open && !j->instead)
        job_say(j,
                "ddprun: --store-open: any process that can reach the store's port can "
                "read and change its keys");
    return 0;
}

static void store_fini(void *state)
{
    struct store_job *s = state;
    struct address *at, *next;
    HASH_ITER (hh, s->addresses, at, next) {
        HASH_DEL(s->addresses, at);
        free(at->nodes);
        free(at);
    }
}

static const struct job_message messages[] = {
    {MSG_STORE_READY, handle_ready},
    {MSG_VOUCH, handle_vouch},
    {MSG_VOUCHED, handle_vouched},
    {0},
};

const struct job_plugin store_job = {
    .name = "store",
    .state_size = sizeof(struct store_job),
    .open = store_open,
    .fini = store_fini,
    .node_joined = store_node_joined,
    .prepare = store_prepare,
    .local_orders = store_local_orders,
    .messages = messages,
};
