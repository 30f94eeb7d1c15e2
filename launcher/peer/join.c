/* launcher/peer/join.c - see join.h
 *
 * Until the head has replied this is one process with one connection and default signal
 * actions. After that it is an agent and its guard process, as on a host reached by ssh.
 */
#define LOG_SUBSYS "peers"
#include "launcher/peer/join.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/limit.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/guard.h"
#include "launcher/envfwd.h"
#include "launcher/peer/listener.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* ms: between attempts to find the head; without an answer of the head's host; a
 * listening head may be this long without a visible meeting file */
enum { POLL_MS = 100, CUT_MS = 30000, FILE_MS = 5000, LISTEN_MS = 2000, STEP_MS = 1000 };
enum { KEEPALIVE_S = 3 };

struct joiner {
    const struct opts *opts; /* borrowed, as all up to `head` */
    const struct ambient_job *job;
    const struct peer_key *k;
    const char *head; /* NULL: only the meeting file has its address */
    int port;
    int64_t left_ms;        /* of --start-timeout; time in which this process ran */
    bool listens;           /* the head, without a meeting file ... */
    int64_t no_file_ms;     /* ... for so long */
    struct ddp_err refusal; /* a head closed the connection: it has another key */
    struct link_keys keys;
    int fd;
    struct msg_job own;    /* owned */
    int local_gone_fd;     /* borrowed */
    unsigned node, nnodes; /* this one, and how many the head has */
    bool lost;             /* the connection, before the head's reply */
    bool refused;          /* by the head, which has told its user why */
};

/* --- finding the head --------------------------------------------------------------- */

/* Does a ddprun listen there? A listener sends its offer first. */
static bool head_listens(struct joiner *m, struct ddp_err *why)
{
    char magic[6] = "";
    int64_t began_ms = now_ms(), until = began_ms + LISTEN_MS;
    SCOPED(close_fd) int fd = sock_connect(m->head, m->port, until, false, why);
    bool yes = fd >= 0 && sock_read_all(fd, magic, sizeof magic, until) == 0 &&
               memcmp(magic, "DDPRUN", sizeof magic) == 0;
    if (fd >= 0 && !yes)
        err_set(why, "'%s' port %d is not that of a ddprun", m->head, m->port);
    m->left_ms -= limit_count_ms(now_ms() - began_ms, LISTEN_MS);
    return yes;
}

/* No meeting file is visible. If the head listens, the directory is not shared, or the
 * file name differs (--master-addr is part of it). */
static int check_no_file(struct joiner *m, struct ddp_err *err)
{
    struct ddp_err why = {""};
    const char *path = meeting_file_path(m->k->meeting_file);
    m->listens = m->listens || (m->head && head_listens(m, &why));
    m->no_file_ms += m->listens ? POLL_MS : 0;
    if (m->no_file_ms < FILE_MS) {
        err_set(err, "it has written no file '%s'%s%s", path, why.text[0] ? "; " : "",
                why.text);
        return 0;
    }
    return err_set(
        err,
        "the head listens at '%s' port %d, but its file '%s' is not visible here: if "
        "the nodes have no common home, give all of them one secret with "
        "--peer-key FILE or DDPRUN_KEY; and --master-addr must be the same "
        "text on all",
        m->head, m->port, path);
}

/* Returns 1 when connected, 0 to try again, -1 on a permanent error. */
static int try_meeting_file(struct joiner *m, struct ddp_err *err)
{
    SCOPED(bootstrap_finish) struct bootstrap s = {0};
    int found = meeting_file_read(m->k->meeting_file, &s, err);
    if (found <= 0)
        return found < 0 ? -1 : check_no_file(m, err);
    s.node = (unsigned)m->job->rank;
    handshake_node_key(&s.key, s.node, &s.key);
    if (m->head) { /* the user's address first */
        struct strv calls = {0};
        strv_pushf(&calls, "%s %d", m->head, m->port);
        strv_push_all(&calls, s.calls.v);
        strv_finish(&s.calls);
        s.calls = calls;
    }
    m->fd = bootstrap_connect(&s, &m->left_ms, &m->keys, err);
    return m->fd >= 0;
}

static int try_address(struct joiner *m, struct ddp_err *err)
{
    struct bootstrap s = {.node = (unsigned)m->job->rank};
    handshake_node_key(&m->k->key, s.node, &s.key);
    strv_pushf(&s.calls, "%s %d", m->head, m->port);
    m->fd = bootstrap_connect(&s, &m->left_ms, &m->keys, err);
    if (m->fd < 0 && errno == ECONNRESET)
        m->refusal = *err; /* it may have ended at the next attempt */
    strv_finish(&s.calls);
    secret_wipe(&s.key, sizeof s.key);
    return m->fd >= 0;
}

static void pause_polls(struct joiner *m)
{
    sleep_ms(POLL_MS);
    m->left_ms -= POLL_MS;
}

static int find_head(struct joiner *m, struct ddp_err *err)
{
    int rc = 0;
    while (rc == 0 && m->left_ms > 0) {
        rc = m->k->meeting_file ? try_meeting_file(m, err) : try_address(m, err);
        if (rc == 0)
            pause_polls(m);
    }
    if (rc > 0)
        return 0;
    if (rc == 0) {
        bool refused = m->refusal.text[0] != '\0';
        struct ddp_err why = refused ? m->refusal : *err;
        err_set(err, "the head has not been found within %.4g s: %.400s; %s",
                (double)m->opts->start_timeout_ms / 1e3, why.text,
                refused ? "is its key (--peer-key, DDPRUN_KEY) the same?"
                : m->job->by_hand
                    ? "is --node-rank 0 started, with the same --master-addr?"
                    : "has rank 0's ddprun been started?");
    }
    return -1;
}

/* --- joining it --------------------------------------------------------------------- */

/* The head replies when all have joined or its own limit is over, and exits otherwise.
 * One that is stopped does so later: only a network that is cut ends the wait. */
static int await_reply(struct joiner *m)
{
    sock_set_keepalive(m->fd, KEEPALIVE_S, KEEPALIVE_S, CUT_MS / 1000 / KEEPALIVE_S);
    for (int64_t cut_ms = 0; cut_ms < CUT_MS;) {
        int64_t began_ms = now_ms();
        if (sock_await(m->fd, POLLIN, began_ms + STEP_MS) == 0)
            return 0;
        int64_t ran_ms = limit_count_ms(now_ms() - began_ms, STEP_MS);
        m->left_ms -= ran_ms;
        cut_ms = sock_unanswered(m->fd) ? cut_ms + ran_ms : 0;
    }
    return -1;
}

/* Send the join request and receive the reply. */
static int ask(struct joiner *m, const struct msg_join *own, int *code,
               struct ddp_err *err)
{
    unsigned char bytes[JOIN_SIZE];
    struct msg_joined reply;
    join_message_seal(MSG_JOIN, own, &m->keys.out, bytes);
    if (sock_write_all(m->fd, bytes, sizeof bytes, now_ms() + CUT_MS) < 0 ||
        await_reply(m) < 0 ||
        sock_read_all(m->fd, bytes, sizeof bytes, now_ms() + CUT_MS) < 0) {
        err_errno(err, "lost the connection to the head, whose output may say why");
        close(m->fd);
        m->lost = true;
        return -1;
    }
    if (join_message_open(MSG_JOINED, bytes, &m->keys.in, &reply, err) < 0)
        return err_prefix(err, "the head");
    m->node = reply.node;
    m->nnodes = reply.nnodes;
    if (!reply.why) {
        log_info("this is node %u of %u; its output appears at the head", reply.node,
                 reply.nnodes);
        return 0;
    }
    m->refused = true;
    *code = (int)reply.code;
    err_set(err, "%s", reply.why);
    msg_joined_finish(&reply);
    return -1;
}

/* With --nnodes MIN:MAX the head closes its first listener when it starts the job. */
static int join(struct joiner *m, const struct msg_join *own, int *code,
                struct ddp_err *err)
{
    bool again = m->job->least < m->job->size;
    for (;;) {
        m->lost = false;
        int rc = find_head(m, err) < 0 ? -1 : ask(m, own, code, err);
        if (rc == 0 || !m->lost || !again || m->left_ms <= 0)
            return rc;
        pause_polls(m);
    }
}

/* --- running as an agent ------------------------------------------------------------ */

static int describe(struct joiner *m, struct ddp_err *err)
{
    const struct opts *o = m->opts;
    SCOPED(strv_finish) struct strv missing = {0};
    envfwd_collect(environ, &o->export_env, false, &m->own.env, &m->own.user_set,
                   &missing);
    strv_push_all(&m->own.argv, o->argv);
    strv_push_all(&m->own.apps, o->apps.v);
    m->own.preload = xstrdup(o->preload);
    m->own.wdir = o->wdir ? realpath(o->wdir, NULL) : get_current_dir_name();
    if (!m->own.wdir)
        return err_errno(err, "cannot tell the directory to start in");
    return 0;
}

static int run_agent(int lifeline, void *arg)
{
    struct joiner *m = arg;
    struct agent_setup setup = {.fd = m->fd,
                                .node = m->node,
                                .keys = &m->keys,
                                .lifelines = {lifeline, -1},
                                .log_level = m->opts->log_level,
                                .own = &m->own,
                                .copies_gone_fd = m->local_gone_fd};
    return agent_run(&setup);
}

int join_run(const struct opts *opts, const struct ambient_job *o,
             const struct peer_key *k, const struct msg_join *own, const char *head,
             int local_gone_fd)
{
    struct ddp_err err = {""};
    struct joiner m = {.opts = opts,
                       .job = o,
                       .k = k,
                       .head = head,
                       .port = opts->master_port ? opts->master_port : PEER_PORT,
                       .left_ms = opts->start_timeout_ms,
                       .fd = -1,
                       .local_gone_fd = local_gone_fd};
    int code = EXIT_CANNOT_START;
    if (describe(&m, &err) == 0 && join(&m, own, &code, &err) == 0) {
        if (o->by_hand)
            fprintf(stderr, "ddprun: this is node %u of %u; output appears on node 0\n",
                    m.node, m.nnodes);
        ext_signals_hold(); /* until the agent handles signals */
        code = guard_part(run_agent, &m, NULL);
    } else if (!m.refused || o->by_hand) {
        fprintf(stderr, "ddprun: %s\n", err.text);
    }
    msg_job_finish(&m.own);
    secret_wipe(&m.keys, sizeof m.keys);
    return code;
}
