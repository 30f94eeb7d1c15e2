/* launcher/peer/join.c - see join.h
 *
 * Until the head has answered, everything here waits in plain sight: one process, one
 * connection, and the usual death by a signal. After that it is an agent and its
 * guardian, as on a host that was reached by ssh.
 */
#define LOG_SUBSYS "peers"
#include "launcher/peer/join.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/connect.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/guard.h"
#include "launcher/envfwd.h"
#include "launcher/peer/allow_list.h"
#include "launcher/spawn/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ms: between two looks for the head; how long its answer may lag behind its own
 * deadline; and for how long a head that is there may be without a card that we can see
 */
enum { LOOK_MS = 100, ANSWER_MS = 15000, CARD_MS = 5000 };

struct member {
    const struct opts *opts; /* borrowed, as all up to `own` */
    const struct ambient_job *outer;
    const struct peer_key *k;
    const char *head; /* NULL: by the card alone */
    int port;
    int64_t deadline_ms, seen_ms; /* seen: the head, but no card */
    struct link_keys keys;
    int fd;
    struct msg_job own; /* owned */
    int mate_gone;      /* borrowed */
    unsigned node;
    bool refused; /* by the head, which has told its own user why */
};

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* --- finding the head --------------------------------------------------------------- */

/* Does a ddprun wait there? Its offer comes unasked. */
static bool somebody_waits(const struct member *m)
{
    char magic[6] = "";
    int fd = sock_connect(m->head, m->port, now_ms() + 2000, false, NULL);
    bool yes = fd >= 0 && sock_read_all(fd, magic, sizeof magic, now_ms() + 2000) == 0 &&
               memcmp(magic, "DDPRUN", sizeof magic) == 0;
    if (fd >= 0)
        close(fd);
    return yes;
}

/* A head without a card: its home is not ours, or its name was written differently. */
static int check_home(struct member *m, struct ddp_err *err)
{
    if (!m->head || (m->seen_ms == 0 && !somebody_waits(m)))
        return 0;
    if (m->seen_ms == 0)
        m->seen_ms = now_ms();
    if (now_ms() - m->seen_ms < CARD_MS)
        return 0;
    return err_set(err,
                   "the head waits at '%s' port %d, but its card is not here ('%s'): if "
                   "the nodes have no common home, give all of them one secret with "
                   "--peer-key FILE or DDPRUN_KEY; and --master-addr must be the same "
                   "text on all",
                   m->head, m->port, meeting_file_path(m->k->card));
}

/* Returns 1 when called, 0 to look again, -1 when there is no use in that. */
static int try_card(struct member *m, struct ddp_err *err)
{
    struct bootstrap s = {0};
    int found = meeting_file_read(m->k->card, &s, err);
    if (found < 0)
        return -1;
    if (found == 0) {
        err_set(err, "the head has left no card at '%s'", meeting_file_path(m->k->card));
        return check_home(m, err) < 0 ? -1 : 0;
    }
    s.node = (unsigned)m->outer->rank;
    s.of_job = true;
    if (m->head) { /* where the user says it is, first */
        struct strv calls = {0};
        strv_pushf(&calls, "%s %d", m->head, m->port);
        strv_push_all(&calls, s.calls.v);
        strv_finish(&s.calls);
        s.calls = calls;
    }
    m->fd = connect_launcher(&s, NULL, m->deadline_ms, &m->keys, err);
    bootstrap_finish(&s);
    return m->fd >= 0;
}

static int try_address(struct member *m, struct ddp_err *err)
{
    struct bootstrap s = {
        .key = m->k->key, .of_job = true, .node = (unsigned)m->outer->rank};
    strv_pushf(&s.calls, "%s %d", m->head, m->port);
    m->fd = connect_launcher(&s, NULL, m->deadline_ms, &m->keys, err);
    strv_finish(&s.calls);
    secret_wipe(&s.key, sizeof s.key);
    return m->fd >= 0;
}

static int find_head(struct member *m, struct ddp_err *err)
{
    int rc = 0;
    while (rc == 0 && now_ms() < m->deadline_ms) {
        rc = m->k->card ? try_card(m, err) : try_address(m, err);
        if (rc == 0)
            pause_ms(LOOK_MS);
    }
    if (rc > 0)
        return 0;
    return rc < 0 ? -1
                  : err_prefix(err, "the head has not been found within %.4g s",
                               (double)m->opts->start_timeout_ms / 1e3);
}

/* --- joining it --------------------------------------------------------------------- */

/* Say who we are, and wait for everybody else to do so. */
static int join(struct member *m, const struct join_request *own, int *code,
                struct ddp_err *err)
{
    unsigned char bytes[JOIN_SIZE];
    struct join_reply answer;
    join_request_seal(own, &m->keys.out, bytes);
    int64_t until = m->deadline_ms + ANSWER_MS;
    if (sock_write_all(m->fd, bytes, sizeof bytes, until) < 0 ||
        sock_read_all(m->fd, bytes, sizeof bytes, until) < 0)
        return err_errno(err, "the head, which was there, has gone");
    if (join_reply_open(bytes, &m->keys.in, &answer, err) < 0)
        return err_prefix(err, "the head");
    m->node = answer.node;
    if (answer.welcome) {
        log_info("this is node %u of %u; its output appears at the head", answer.node,
                 answer.nnodes);
        free(answer.why);
        return 0;
    }
    m->refused = true;
    *code = (int)answer.code;
    err_set(err, "%s", answer.why);
    free(answer.why);
    return -1;
}

/* --- and being the agent ------------------------------------------------------------ */

static int describe(struct member *m, struct ddp_err *err)
{
    const struct opts *o = m->opts;
    struct strv missing = {0};
    envfwd_collect(environ, &o->export_env, false, &m->own.env, &m->own.user_set,
                   &missing);
    strv_finish(&missing);
    strv_push_all(&m->own.argv, o->argv);
    m->own.preload = xstrdup(o->preload);
    m->own.wdir = o->wdir ? realpath(o->wdir, NULL) : get_current_dir_name();
    if (!m->own.wdir)
        return err_errno(err, "cannot tell the directory to start in");
    return 0;
}

static int be_agent(int lifeline, void *arg)
{
    struct member *m = arg;
    struct agent_setup setup = {.fd = m->fd,
                                .node = m->node,
                                .keys = &m->keys,
                                .lifelines = {lifeline, -1},
                                .log_level = m->opts->log_level,
                                .own = &m->own,
                                .mate_gone = m->mate_gone};
    return agent_run(&setup);
}

int join_run(const struct opts *opts, const struct ambient_job *o,
             const struct peer_key *k, const struct join_request *own, const char *head,
             int mate_gone)
{
    struct ddp_err err = {""};
    struct member m = {.opts = opts,
                       .outer = o,
                       .k = k,
                       .head = head,
                       .port = opts->master_port ? opts->master_port : PEER_PORT,
                       .deadline_ms = now_ms() + opts->start_timeout_ms,
                       .fd = -1,
                       .mate_gone = mate_gone};
    int code = EXIT_CANNOT_START;
    if (describe(&m, &err) == 0 && find_head(&m, &err) == 0 &&
        join(&m, own, &code, &err) == 0) {
        if (o->by_hand)
            fprintf(stderr, "ddprun: this is node %u of %d; output appears on node 0\n",
                    m.node, o->size);
        ext_signals_hold(); /* until the agent listens */
        code = guard_part(be_agent, &m, NULL);
    } else if (!m.refused || o->by_hand) {
        fprintf(stderr, "ddprun: %s\n", err.text);
    }
    msg_job_finish(&m.own);
    secret_wipe(&m.keys, sizeof m.keys);
    return code;
}
