/* launcher/preflight/preflight.c - see preflight.h
 *
 * Three rounds: each host by itself; the ring; and the ring once more for those who were
 * slow in it, since on a network that others use one slow measurement proves nothing.
 */
#define LOG_SUBSYS "preflight"
#include "launcher/preflight/preflight.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/job_impl.h"
#include "launcher/preflight/results.h"
#include "launcher/spawn/program.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A round's: far above what looks may take that are killed one by one. */
enum { ROUND_MS = 90000 };

enum round { ROUND_START, ROUND_NODES, ROUND_RING, ROUND_AGAIN, ROUND_DONE };

struct preflight {
    struct job *job; /* borrowed */
    struct results *board;
    const char **names; /* owned; the names are the allocation's */
    enum round round;
    struct msg_probe ask; /* owned */
    struct pre_node {
        bool asked, answered; /* in this round */
        bool late;            /* once: its answers no longer say to which round */
        char *addr;           /* owned: where its end of the ring listens; NULL */
        uint32_t port;
    } * nodes;          /* owned */
    struct event *late; /* owned */
    int64_t created_ns;
};

static void preflight_next(struct preflight *p);

/* --- findings ----------------------------------------------------------------------- */

static void add(struct preflight *p, unsigned node, enum check_row check,
                struct msg_found f)
{
    f.check = check;
    results_add(p->board, node, &f);
}

/* "no route to it" of "node03: no route to it": the line has the host's name already. */
static const char *without_name(const char *text, const char *name)
{
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2
                                                                          : text;
}

/* Their wall clock beside ours, from how far it is ahead of their monotonic one. */
static int64_t clock_ahead(const struct job_node *n, int64_t theirs)
{
    struct timespec wall, mono;
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    int64_t ours =
        (wall.tv_sec - mono.tv_sec) * 1000000000LL + wall.tv_nsec - mono.tv_nsec;
    return theirs + n->ahead_ns - ours;
}

static void note_port(struct preflight *p, unsigned node, const char *key)
{
    char addr[64] = "";
    struct pre_node *pn = &p->nodes[node];
    const struct job_node *n = &p->job->nodes[node];
    if (sscanf(key, "%u %63s", &pn->port, addr) < 1 || pn->port > 65535)
        return;
    const char *by_link = n->hello.addr      ? n->hello.addr
                          : n->host->local   ? p->job->here
                          : n->hello.addrs.n ? n->hello.addrs.v[0]
                                             : NULL;
    free(pn->addr);
    pn->addr = xstrdup(addr[0] ? addr : by_link);
}

int preflight_hear(struct preflight *p, unsigned node, const struct frame *f,
                   struct ddp_err *err)
{
    struct msg_found m = {0};
    if (msg_found_unpack(f, &m, err) < 0)
        return -1;
    if (m.check == FOUND_END) {
        if (!p->nodes[node].late)
            p->nodes[node].answered = true;
        msg_found_finish(&m);
        preflight_next(p);
        return 0;
    }
    if (m.check >= CHECKS) {
        msg_found_finish(&m);
        return err_set(err, "a finding of an unknown check");
    }
    if (m.key && m.check == CHECK_LATENCY) {
        note_port(p, node, m.key);
        msg_found_finish(&m);
        return 0;
    }
    if (m.check == CHECK_CLOCK && !m.problem)
        m.number = clock_ahead(&p->job->nodes[node], m.number);
    results_add(p->board, node, &m);
    return 0;
}

/* --- rounds ------------------------------------------------------------------------- */

static bool is_there(const struct preflight *p, unsigned node)
{
    return p->job->nodes[node].via && !p->job->nodes[node].lost;
}

static void ask_node(struct preflight *p, unsigned node)
{
    struct pack k = {0};
    p->nodes[node].asked = true;
    p->nodes[node].answered = false;
    msg_probe_pack(&p->ask, &k);
    job_send(p->job, node, MSG_PROBE, &k);
    pack_finish(&k);
}

static void ask_nodes(struct preflight *p)
{
    p->ask.phase = PROBE_NODE;
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++) {
        if (is_there(p, i))
            ask_node(p, i);
    }
}

/* Each about the next that is there and listens; the last about the first. Who was late
 * may answer the others, and is asked nothing more. */
static void ask_ring(struct preflight *p, bool only_odd)
{
    unsigned n = (unsigned)p->job->alloc->nnodes;
    strv_finish(&p->ask.argv);
    strv_finish(&p->ask.env);
    p->ask.phase = PROBE_RING;
    for (unsigned i = 0; i < n; i++) {
        if (!is_there(p, i) || p->nodes[i].late ||
            (only_odd && !results_is_odd(p->board, i, CHECK_LATENCY) &&
             !results_is_odd(p->board, i, CHECK_BANDWIDTH)))
            continue;
        unsigned next = (i + 1) % n;
        while (next != i && (!is_there(p, next) || !p->nodes[next].addr))
            next = (next + 1) % n;
        if (next == i)
            continue;
        p->ask.peer = (char *)(uintptr_t)p->names[next];
        p->ask.addr = p->nodes[next].addr;
        p->ask.port = p->nodes[next].port;
        ask_node(p, i);
    }
    p->ask.peer = p->ask.addr = NULL; /* they were borrowed */
}

static void on_line(const char *line, void *arg)
{
    puts(line);
}

static void on_problem(const char *line, void *arg)
{
    char *text = xasprintf("ddprun: %s", line);
    job_say(arg, text);
    free(text);
}

static void preflight_finish(struct preflight *p)
{
    struct job *j = p->job;
    size_t hosts, all = 0;
    results_judge(p->board);
    results_table(p->board, on_line, NULL);
    if (fflush(stdout) != 0)
        j->verdict = 1;
    results_problems(p->board, on_problem, j);
    size_t faults = results_faults(p->board, &hosts);
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        all += j->nodes[i].wanted;
    if (faults > 0) {
        j->verdict = 1;
        char *line =
            xasprintf("ddprun: preflight: %zu problem%s on %zu of %zu host%s", faults,
                      faults == 1 ? "" : "s", hosts, all, all == 1 ? "" : "s");
        job_say(j, line);
        free(line);
    }
    job_end(j, SIGTERM, 0);
}

static bool all_answered(const struct preflight *p)
{
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++) {
        if (p->nodes[i].asked && !p->nodes[i].answered && is_there(p, i))
            return false;
    }
    return true;
}

static void enter(struct preflight *p, enum round round)
{
    p->round = round;
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++)
        p->nodes[i].asked = false;
    if (round == ROUND_NODES)
        ask_nodes(p);
    else if (round == ROUND_RING || round == ROUND_AGAIN)
        ask_ring(p, round == ROUND_AGAIN);
    else if (round == ROUND_DONE)
        preflight_finish(p);
}

static void preflight_next(struct preflight *p)
{
    while (p->job->state == JOB_PREPARING && p->round < ROUND_DONE && all_answered(p)) {
        job_arm(p->late, ROUND_MS);
        enter(p, p->round + 1);
    }
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
    struct preflight *p = arg;
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++) {
        struct pre_node *pn = &p->nodes[i];
        if (!pn->asked || pn->answered || !is_there(p, i))
            continue;
        pn->answered = pn->late = true;
        add(p, i, CHECK_AGENT,
            (struct msg_found){.problem = xasprintf("has not answered all questions in "
                                                    "%d s; is it overloaded?",
                                                    ROUND_MS / 1000)});
    }
    preflight_next(p);
}

/* --- verbs -------------------------------------------------------------------------- */

void preflight_joined(struct preflight *p, unsigned node)
{
    const struct job_node *n = &p->job->nodes[node];
    if (n->via != p->job->local)
        add(p, node, CHECK_REACHED,
            (struct msg_found){.number = now_ns() - p->created_ns});
    struct msg_found f = {.value = xasprintf("version %s", n->hello.version)};
    if (strcmp(n->hello.version, DDPRUN_VERSION) != 0)
        f.problem = xasprintf("is of version %s, and ddprun here of %s; install one "
                              "version everywhere",
                              n->hello.version, DDPRUN_VERSION);
    add(p, node, CHECK_AGENT, f);
}

void preflight_lost(struct preflight *p, unsigned node, const char *why)
{
    add(p, node, CHECK_AGENT,
        (struct msg_found){.problem = xasprintf("is lost: %s", why)});
    preflight_next(p);
}

static void fill_question(struct preflight *p)
{
    struct job *j = p->job;
    struct msg_probe *m = &p->ask;
    strv_push_all(&m->argv, j->job.argv.v);
    strv_push_all(&m->env, j->job.env.v);
    m->wdir = xstrdup(j->job.wdir);
    m->interface = xstrdup(j->opts->interface);
    m->store_port = (uint32_t)j->opts->store_port;
    for (unsigned i = 0; i < j->alloc->nnodes; i++)
        strv_push(&m->names, j->nodes[i].wanted ? p->names[i] : "");
    /* rank 0 is on the first host that has any */
    while (m->master + 1 < j->alloc->nnodes && !j->nodes[m->master].wanted)
        m->master++;
    for (unsigned i = 0; j->plan && i < j->alloc->nnodes; i++) {
        if (j->nodes[i].place == 0)
            m->master = i;
    }
}

void preflight_begin(struct preflight *p)
{
    struct job *j = p->job;
    struct ddp_err err;
    job_move(j, JOB_PREPARING, "every agent has joined, or will not");
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].trouble)
            add(p, i, CHECK_REACHED,
                (struct msg_found){
                    .problem = xstrdup(without_name(j->nodes[i].trouble, p->names[i]))});
    }
    fill_question(p);
    if (secret_make(&p->ask.token, &err) < 0) {
        job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START, xstrdup(err.text));
        return;
    }
    preflight_next(p);
}

struct preflight *preflight_create(struct job *j)
{
    struct preflight *p = xcalloc(1, sizeof *p);
    *p = (struct preflight){.job = j, .created_ns = now_ns()};
    p->names = xcalloc(j->alloc->nnodes, sizeof *p->names);
    p->nodes = xcalloc(j->alloc->nnodes, sizeof *p->nodes);
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        p->names[i] = j->alloc->nodes[i].name;
    p->board = results_create(p->names, j->alloc->nnodes);
    p->late = evtimer_new(loop_base(j->loop), on_late, p);
    if (!p->late)
        abort(); /* as mem.h does when memory is gone */
    return p;
}

void preflight_destroy(struct preflight *p)
{
    if (!p)
        return;
    event_free(p->late);
    results_destroy(p->board);
    for (size_t i = 0; i < p->job->alloc->nnodes; i++)
        free(p->nodes[i].addr);
    free(p->nodes);
    free(p->names);
    msg_probe_finish(&p->ask);
    free(p);
}
