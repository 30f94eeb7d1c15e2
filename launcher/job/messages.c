/* launcher/job/messages.c - handlers of the agents' messages, in a table by message type
 *
 * An agent may send for its own node only: a frame is accepted only from the link over
 * which its node is reached. An invalid frame closes the link, and every node reached
 * over it is lost.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/messages.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "launcher/job/describe.h"
#include "launcher/job/gather.h"
#include "launcher/job/heartbeat.h"
#include "launcher/job/hooks.h"
#include "launcher/job/io.h"
#include "launcher/job/losses.h"
#include "launcher/job/nodes.h"
#include "launcher/link/merge.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* the part of a node's credit after which it gets more */
enum { CREDIT_PART = 4 };

bool job_rank_is_of(const struct job *j, uint32_t rank, unsigned node)
{
    return j->plan && rank < (uint32_t)j->plan->nranks &&
           j->plan->ranks[rank].node == j->nodes[node].place;
}

static int handle_output(struct job *j, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    const struct msg_output *m = f->m;
    enum out_stream stream = (enum out_stream)m->stream;
    if (!job_rank_is_of(j, m->rank, node))
        return err_set(err, "output of another node's rank");
    if (m->ndata == 0) {
        j->ranks[m->rank].complete |= (uint8_t)(1U << stream);
        output_end(j->output, (int)m->rank, stream);
        return 0;
    }
    struct job_node *n = &j->nodes[node];
    output_feed(j->output, (int)m->rank, stream, m->data, m->ndata);
    JOB_HOOKS(j, output, (int)m->rank, stream, m->data, m->ndata);
    n->uncredited += m->ndata;
    if (n->uncredited >= j->job.credit / CREDIT_PART && output_room(j->output) > 0) {
        job_send(j, node, MSG(credit, n->uncredited));
        n->uncredited = 0;
    }
    return 0;
}

static int handle_exit(struct job *j, unsigned node, const struct frame *f,
                       struct ddp_err *err)
{
    const struct msg_exit *m = f->m;
    if (!job_rank_is_of(j, m->rank, node) || j->ranks[m->rank].exited)
        return err_set(err, "the exit of another node's rank, or a second one");
    struct job_rank *r = &j->ranks[m->rank];
    r->exited = true;
    r->status = m->status;
    r->at_ns = m->at_ns - j->nodes[node].ahead_ns;
    r->stopped = m->stopped;
    r->peak_kib = m->peak_kib;
    r->oom_kills = m->oom_kills;
    r->cpu_max_s = m->cpu_max_s;
    r->failed = m->status != 0 && !m->stopped;
    job_count_exit(j);
    if (r->at_ns > j->last_exit_ns)
        j->last_exit_ns = r->at_ns;
    log_debug("rank %u has ended with status 0x%x", m->rank, (unsigned)m->status);
    JOB_HOOKS(j, rank_exited, m->rank);
    bool claimed =
        r->failed && j->state == JOB_RUNNING && JOB_HOOKS_ANY(j, rank_failed, m->rank);
    if (r->failed && !claimed)
        job_fail_rank(j, (int)m->rank);
    job_check(j);
    return 0;
}

static int handle_error(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct msg_error *m = f->m;
    if (!job_rank_is_of(j, m->rank, node))
        return err_set(err, "the exception of another node's rank");
    free(j->ranks[m->rank].error);
    j->ranks[m->rank].error = msg_take(&m->text);
    return 0;
}

static int handle_spawn_failed(struct job *j, unsigned node, const struct frame *f,
                               struct ddp_err *err)
{
    struct msg_spawn_failed *m = f->m;
    char *text = msg_take(&m->text);
    if (!job_is_local(j) && !strstr(text, j->nodes[node].host->name)) {
        OWNED char *what = text;
        text = xasprintf("%s: %s", j->nodes[node].host->name, what);
    }
    job_fail_text(j, CAUSE_CANNOT, (int)m->code, text);
    return 0;
}

/* A scheduler has sent the agents a signal to end; ddprun may not get one. */
static int handle_interrupted(struct job *j, unsigned node, const struct frame *f,
                              struct ddp_err *err)
{
    int sig = (int)((const struct msg_interrupted *)f->m)->number;
    log_info("%s was interrupted (%s)", j->nodes[node].host->name, signal_name(sig));
    char *who =
        j->peers ? xasprintf("ddprun on %s was ", j->nodes[node].host->name) : NULL;
    job_fail(j, (struct cause){.kind = CAUSE_SIGNAL,
                               .rank = -1,
                               .status = sig,
                               .code = 128 + sig,
                               .at_ns = now_ns(),
                               .text = who});
    return 0;
}

static int handle_credit(struct job *j, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    uint32_t n = ((const struct msg_credit *)f->m)->bytes;
    if (n > j->nodes[node].input_sent)
        return err_set(err, "more input credit than it was sent");
    j->nodes[node].input_sent -= n;
    job_input_more(j);
    return 0;
}

static int handle_spawned(struct job *j, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    if (j->spawned_ns > 0 || ++j->spawned_nodes < j->plan->nnodes)
        return 0;
    j->spawned_ns = now_ns();
    if (j->ready_ns == 0)
        j->ready_ns = j->spawned_ns;
    JOB_HOOKS(j, ranks_started);
    return 0;
}

static int handle_terminated(struct job *j, unsigned node, const struct frame *f,
                             struct ddp_err *err)
{
    j->nodes[node].ended = true;
    if (j->state != JOB_GATHERING)
        job_give_up_ranks(j, &j->nodes[node]);
    job_check(j);
    return 0;
}

static int handle_log(struct job *j, unsigned node, const struct frame *f,
                      struct ddp_err *err)
{
    job_say(j, "%s", ((const struct msg_log *)f->m)->line);
    return 0;
}

/* Of several hosts the first is named, as the others' processes are mostly the same. */
static int handle_left(struct job *j, unsigned node, const struct frame *f,
                       struct ddp_err *err)
{
    const struct msg_left *m = f->m;
    const char *host = job_is_local(j) ? NULL : j->nodes[node].host->name;
    if (j->cause.kind != CAUSE_NONE)
        return 0;
    j->left++;
    if (j->left == 1)
        job_say(j,
                "ddprun: note: all ranks have exited; ending what they left%s%s: %s (a "
                "rank has to stay in the foreground: 'setsid --wait')",
                host ? " on " : "", host ? host : "", m->text);
    return 0;
}

static int handle_start_failed(struct job *j, unsigned node, const struct frame *f,
                               struct ddp_err *err)
{
    const struct msg_start_failed *m = f->m;
    if (m->node < j->alloc->nnodes)
        job_unreached(j, m->node, m->text);
    return 0;
}

/* An agent has lost the link to one below it. */
static int handle_node_lost(struct job *j, unsigned node, const struct frame *f,
                            struct ddp_err *err)
{
    const struct msg_node_lost *m = f->m;
    if (m->node < j->alloc->nnodes && j->nodes[m->node].via == j->nodes[node].via) {
        j->nodes[m->node].via = NULL;
        if (j->state < JOB_LEAVING)
            job_node_lost(j, m->node, m->text);
        job_check(j);
    }
    return 0;
}

static int (*const handlers[MSG_TYPES])(struct job *j, unsigned node,
                                        const struct frame *f, struct ddp_err *err) = {
    [MSG_SPAWNED] = handle_spawned,
    [MSG_SPAWN_FAILED] = handle_spawn_failed,
    [MSG_OUTPUT] = handle_output,
    [MSG_CREDIT] = handle_credit,
    [MSG_EXIT] = handle_exit,
    [MSG_TERMINATED] = handle_terminated,
    [MSG_LOG] = handle_log,
    [MSG_LEFT] = handle_left,
    [MSG_START_FAILED] = handle_start_failed,
    [MSG_NODE_LOST] = handle_node_lost,
    [MSG_PONG] = job_handle_pong,
    [MSG_LATE] = job_handle_late,
    [MSG_ERROR] = handle_error,
    [MSG_INTERRUPTED] = handle_interrupted,
};

/* The first message of a node: its link becomes the way to the node. */
static int handle_hello(struct job *j, struct link *l, const struct frame *f,
                        struct ddp_err *err)
{
    struct msg_hello m;
    struct job_node *n = &j->nodes[f->node];
    if (n->joined || !n->wanted || (n->via && n->via != l))
        return 0;
    if (msg_hello_unpack(f, &m, err) < 0) {
        n->via = l;
        return -1;
    }
    job_node_joined(j, f->node, l, &m);
    msg_hello_finish(&m);
    return 0;
}

/* 0; 1: its type has no handler; -1: it is invalid. */
static int handle_frame(struct job *j, struct link *l, const struct frame *f,
                        struct ddp_err *err)
{
    union msg_any m;
    struct frame decoded = *f;
    if (f->node >= j->alloc->nnodes)
        return 1;
    if (f->type == MSG_HELLO)
        return handle_hello(j, l, f, err);
    if (j->nodes[f->node].via != l)
        return 1;
    j->nodes[f->node].heard_ms = link_heard_ms(l);
    if (f->type == MSG_ALIVE) /* its arrival is all that counts */
        return 0;
    if (msg_decode(&decoded, &m, err) < 0)
        return -1;
    int rc = handlers[f->type] ? handlers[f->type](j, f->node, &decoded, err)
                               : job_plugins_message(j, f->node, &decoded, err);
    msg_finish(f->type, &m);
    return rc;
}

/* Frames of several nodes, or one. */
struct arrival {
    struct job *j;
    struct link *l;
    int rc; /* of the last frame; < 0: it was invalid, and no more are handled */
    struct ddp_err *err;
};

static void handle_part(const struct frame *f, void *arg)
{
    struct arrival *a = arg;
    if (a->rc >= 0)
        a->rc = handle_frame(a->j, a->l, f, a->err);
    if (a->rc > 0)
        log_debug("unexpected frame '%s' ignored", msg_name(f->type));
}

void job_handle_frame(struct job *j, struct link *l, const struct frame *f)
{
    struct ddp_err err;
    struct arrival a = {.j = j, .l = l, .err = &err};
    if (f->type != MSG_MERGED)
        handle_part(f, &a);
    else if (merge_split(f, handle_part, &a, &err) < 0)
        a.rc = -1;
    if (a.rc < 0)
        job_drop_link(j, l, err.text);
}
