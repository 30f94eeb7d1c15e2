/* launcher/job/messages.c - handlers of the agents' messages, in a table by message type
 *
 * An agent may send for its own node only: a frame is accepted only from the link over
 * which its node is reached. An invalid frame closes the link, and every node reached
 * over it is lost.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "launcher/transport/program.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* bytes of output after which a node gets credit for them */
enum { UNCREDITED_MAX = OUTPUT_CREDIT / 4 };

bool job_rank_is_of(const struct job *j, uint32_t rank, unsigned node)
{
    return j->plan && rank < (uint32_t)j->plan->nranks &&
           j->plan->ranks[rank].node == j->nodes[node].place;
}

static int handle_out(struct job *j, unsigned node, const struct frame *f,
                      struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t rank = unpack_u32(&u);
    unsigned stream = unpack_u8(&u);
    if (u.bad || !job_rank_is_of(j, rank, node) || stream > OUT_STDERR)
        return err_set(err, "output of another node's rank");
    if (u.n == 0) {
        output_end(j->output, (int)rank, (enum out_stream)stream);
        return 0;
    }
    struct job_node *n = &j->nodes[node];
    output_feed(j->output, (int)rank, (enum out_stream)stream, u.p, u.n);
    n->uncredited += (uint32_t)u.n;
    if (n->uncredited >= UNCREDITED_MAX && output_room(j->output) > 0) {
        struct pack k = {0};
        pack_u32(&k, n->uncredited);
        n->uncredited = 0;
        job_send(j, node, MSG_CREDIT, &k);
        pack_finish(&k);
    }
    return 0;
}

static int handle_exit(struct job *j, unsigned node, const struct frame *f,
                       struct ddp_err *err)
{
    struct msg_exit m;
    if (msg_exit_unpack(f, &m, err) < 0)
        return -1;
    if (!job_rank_is_of(j, m.rank, node) || j->ranks[m.rank].state == RANK_EXITED)
        return err_set(err, "the exit of another node's rank, or a second one");
    struct job_rank *r = &j->ranks[m.rank];
    r->state = RANK_EXITED;
    r->status = m.status;
    r->at_ns = m.at_ns - j->nodes[node].ahead_ns;
    r->stopped = m.told;
    r->failed = m.status != 0 && !m.told;
    j->running--;
    if (r->at_ns > j->last_exit_ns)
        j->last_exit_ns = r->at_ns;
    log_debug("rank %u has ended with status 0x%x", m.rank, (unsigned)m.status);
    JOB_HOOKS(j, rank_exited, m.rank);
    if (r->failed)
        job_fail(j, (struct cause){.kind = CAUSE_EXIT,
                                   .rank = (int)m.rank,
                                   .status = m.status,
                                   .code = cause_exit_code(m.status),
                                   .at_ns = r->at_ns,
                                   .peak_kib = m.peak_kib});
    job_check(j);
    return 0;
}

static int handle_error(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t rank = unpack_u32(&u);
    char *text = unpack_str(&u);
    if (unpack_end(&u, f->type, err) < 0 || !job_rank_is_of(j, rank, node)) {
        free(text);
        return err_set(err, "the exception of another node's rank");
    }
    free(j->ranks[rank].error);
    j->ranks[rank].error = text;
    return 0;
}

static int handle_cannot(struct job *j, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    struct msg_cannot m = {0};
    if (msg_cannot_unpack(f, &m, err) < 0)
        return -1;
    job_fail_text(j, CAUSE_CANNOT, (int)m.code, m.text);
    return 0;
}

/* A scheduler has sent the agents a signal to end; ddprun may not get one. */
static int handle_told(struct job *j, unsigned node, const struct frame *f,
                       struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    int sig = (int)unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0 || sig < 1 || sig >= NSIG)
        return err_set(err, "an invalid signal");
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
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t n = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (n > j->nodes[node].input_sent)
        return err_set(err, "more input credit than it was sent");
    j->nodes[node].input_sent -= n;
    job_input_more(j);
    return 0;
}

static int handle_spawned(struct job *j, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    if (++j->spawned_nodes == j->plan->nnodes)
        j->spawned_ns = now_ns();
    if (j->restart.attempt == 0)
        j->ready_ns = j->spawned_ns;
    if (j->spawned_nodes == j->plan->nnodes)
        JOB_HOOKS(j, ranks_started);
    return 0;
}

static int handle_ended(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct job_node *n = &j->nodes[node];
    n->ended = true;
    for (int i = 0; i < job_ranks_on(j, n) && j->state != JOB_GATHERING; i++) {
        struct job_rank *r = &j->ranks[j->plan->nodes[n->place].ranks[i]];
        if (r->state == RANK_EXITED)
            continue;
        r->state = RANK_EXITED; /* it survived SIGKILL */
        r->left_behind = j->spawned_ns > 0;
        j->running--;
    }
    job_check(j);
    return 0;
}

static int handle_saved(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    return msg_saved_unpack(f, &j->nodes[node].saved, err);
}

static int handle_log(struct job *j, unsigned node, const struct frame *f,
                      struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    unpack_u8(&u);
    char *line = xstrndup((const char *)u.p, u.n);
    job_say(j, line);
    free(line);
    return 0;
}

static int handle_unreached(struct job *j, unsigned node, const struct frame *f,
                            struct ddp_err *err)
{
    struct msg_node m = {0};
    if (msg_node_unpack(f, &m, err) < 0)
        return -1;
    if (m.node < j->alloc->nnodes)
        job_unreached(j, m.node, m.text);
    msg_node_finish(&m);
    return 0;
}

/* An agent has lost the link to one below it. */
static int handle_lost(struct job *j, unsigned node, const struct frame *f,
                       struct ddp_err *err)
{
    struct msg_node m = {0};
    if (msg_node_unpack(f, &m, err) < 0)
        return -1;
    if (m.node < j->alloc->nnodes && j->nodes[m.node].via == j->nodes[node].via) {
        j->nodes[m.node].via = NULL;
        if (j->state < JOB_LEAVING)
            job_node_lost(j, m.node, m.text);
        job_check(j);
    }
    msg_node_finish(&m);
    return 0;
}

static int handle_hello(struct job *j, unsigned node, struct link *l,
                        const struct frame *f)
{
    struct ddp_err err;
    struct msg_hello m = {0};
    struct job_node *n = &j->nodes[node];
    if (n->joined || !n->wanted || (n->via && n->via != l))
        return 0;
    if (msg_hello_unpack(f, &m, &err) < 0) {
        n->via = l;
        job_drop_link(j, l, err.text);
        return -1;
    }
    job_node_joined(j, node, l, &m);
    return 0;
}

static int (*const handlers[MSG_TYPES])(struct job *j, unsigned node,
                                        const struct frame *f, struct ddp_err *err) = {
    [MSG_SPAWNED] = handle_spawned,   [MSG_CANNOT] = handle_cannot,
    [MSG_OUT] = handle_out,           [MSG_CREDIT] = handle_credit,
    [MSG_EXIT] = handle_exit,         [MSG_ENDED] = handle_ended,
    [MSG_LOG] = handle_log,           [MSG_UNREACHED] = handle_unreached,
    [MSG_LOST] = handle_lost,         [MSG_PONG] = job_handle_pong,
    [MSG_ERROR] = handle_error,       [MSG_TOLD] = handle_told,
    [MSG_FENCE] = job_handle_fence,   [MSG_PEER] = job_handle_peer,
    [MSG_ABORT] = job_handle_abort,   [MSG_SAVED] = handle_saved,
    [MSG_MEMBER] = job_handle_member,
};

void job_handle_frame(struct job *j, struct link *l, const struct frame *f)
{
    struct ddp_err err;
    if (f->node < j->alloc->nnodes && f->type == MSG_HELLO) {
        handle_hello(j, f->node, l, f);
        return;
    }
    int rc = 1;
    if (f->node < j->alloc->nnodes && j->nodes[f->node].via == l) {
        j->nodes[f->node].heard_ms = now_ms();
        rc = handlers[f->type] ? handlers[f->type](j, f->node, f, &err)
                               : job_plugins_message(j, f->node, f, &err);
    }
    if (rc < 0)
        job_drop_link(j, l, err.text);
    else if (rc > 0)
        log_debug("unexpected frame '%s' ignored", msg_name(f->type));
}
