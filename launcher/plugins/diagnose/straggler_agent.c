/* launcher/plugins/diagnose/straggler_agent.c - --stragglers and the collectives of a
 * page, on the nodes' side
 *
 * Passes the launcher's questions on to ddprun-diagnose, which reads what the ranks have
 * put into the folder of diagnose_agent.c.
 */
#define LOG_SUBSYS "diagnose"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/arrivals.h"
#include "launcher/plugins/diagnose/child.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Entries of PyTorch's flight recorder instead of 2,000: an answer of the rank takes 10
 * us for each. Hang reports use the last 16. */
#define RECORDER_ENTRIES "64"

enum { ARRIVALS_Q, BESIDE_Q, CALLS_Q, QUESTIONS };
enum { CALLS_MAX = 3 << 20 }; /* bytes; the message takes more */

struct straggler {
    struct agent *agent; /* borrowed */
    bool on;             /* --stragglers */
    char *folder;        /* owned; NULL: none */
    struct local_rank {
        int rank;
        pid_t pid; /* 0: does not run */
    } * ranks;     /* owned */
    uint32_t nlocal;
    struct straggler_question {
        struct straggler *of;
        struct diagnose_child child;
        struct evbuffer *text; /* owned */
        uint32_t id;           /* of the question; the rank */
        int64_t asked_ns;
        void (*send)(struct straggler_question *q);
    } questions[QUESTIONS];
};

/* --- the ranks ---------------------------------------------------------------------- */

static int straggler_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    ((struct straggler *)state)->on = job->stragglers;
    return 0;
}

/* DDPRUN_DIAGNOSE is a file in it. */
static void note_folder(struct straggler *s, const struct strv *env)
{
    const char *stem = s->folder ? NULL : strv_env_get(env, "DDPRUN_DIAGNOSE");
    if (!stem || !strrchr(stem, '/'))
        return;
    s->folder = xstrdup(stem);
    *strrchr(s->folder, '/') = '\0';
}

static void straggler_rank_env(void *state, uint32_t local, struct strv *env)
{
    static const char *const sizes[] = {"TORCH_FR_BUFFER_SIZE",
                                        "TORCH_NCCL_TRACE_BUFFER_SIZE"};
    struct straggler *s = state;
    if (local >= s->nlocal) {
        s->ranks = xrealloc(s->ranks, local + 1, sizeof *s->ranks);
        while (s->nlocal <= local)
            s->ranks[s->nlocal++] = (struct local_rank){-1, 0};
    }
    s->ranks[local].rank = (int)s->agent->share.ranks[local].rank;
    note_folder(s, env);
    if (!s->on)
        return;
    strv_env_set(env, "DDPRUN_ARRIVALS", "1");
    if (!strv_env_get(env, sizes[0]) && !strv_env_get(env, sizes[1]))
        strv_env_set(env, sizes[0], RECORDER_ENTRIES);
}

static void straggler_rank_started(void *state, uint32_t local, pid_t pid)
{
    struct straggler *s = state;
    if (local < s->nlocal)
        s->ranks[local].pid = pid;
}

static void straggler_rank_exited(void *state, uint32_t local, const struct msg_exit *how)
{
    straggler_rank_started(state, local, 0);
}

/* --- questions ---------------------------------------------------------------------- */

static void send_arrivals(struct straggler_question *q)
{
    size_t n = evbuffer_get_length(q->text) / sizeof(struct arrivals_record);
    const struct arrivals_record *r = (void *)evbuffer_pullup(q->text, -1);
    struct call_arrival *list = xcalloc(n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct call_arrival){r[i].rank, r[i].group, r[i].number, r[i].at_ns};
    agent_send(q->of->agent, MSG(arrivals, .id = q->id, .asked_ns = q->asked_ns,
                                 .sent_ns = now_ns(), .n = (uint32_t)n, .list = list));
    free(list);
}

static void send_beside(struct straggler_question *q)
{
    evbuffer_add(q->text, "", 1);
    agent_send(q->of->agent,
               MSG(beside, .rank = q->id, .text = (char *)evbuffer_pullup(q->text, -1)));
}

static void send_calls(struct straggler_question *q)
{
    bool fits = evbuffer_get_length(q->text) <= CALLS_MAX;
    evbuffer_add(q->text, "", 1);
    agent_send(q->of->agent,
               MSG(calls, .id = q->id,
                   .text = fits ? (char *)evbuffer_pullup(q->text, -1) : NULL));
}

static void on_out(const void *data, size_t n, void *arg)
{
    struct straggler_question *q = arg;
    if (n > 0)
        evbuffer_add(q->text, data, n);
    else
        q->send(q);
}

/* `first`: this rank comes first; -1: any. */
static void ask(struct straggler_question *q, const char *part, uint32_t id, int first)
{
    struct straggler *s = q->of;
    struct strv args = {0};
    struct ddp_err why;
    strv_push(&args, part);
    strv_push(&args, s->folder ? s->folder : "/nonexistent");
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < s->nlocal; i++) {
            if (s->ranks[i].pid > 0 && (s->ranks[i].rank == first) == (turn == 0))
                strv_pushf(&args, "%d:%d", s->ranks[i].rank, (int)s->ranks[i].pid);
        }
    }
    q->id = id;
    q->asked_ns = now_ns();
    evbuffer_drain(q->text, evbuffer_get_length(q->text));
    if (diagnose_child_start(&q->child, s->agent->loop, &args, -1, &why) < 0) {
        log_info("--stragglers: %s", why.text);
        on_out(NULL, 0, q);
    }
    strv_finish(&args);
}

static int handle_ask_arrivals(void *state, const struct frame *f, struct ddp_err *err)
{
    struct straggler *s = state;
    ask(&s->questions[ARRIVALS_Q], "arrivals",
        ((const struct msg_ask_arrivals *)f->m)->id, -1);
    return 0;
}

static int handle_ask_calls(void *state, const struct frame *f, struct ddp_err *err)
{
    struct straggler *s = state;
    ask(&s->questions[CALLS_Q], "calls", ((const struct msg_ask_calls *)f->m)->id, -1);
    return 0;
}

static int handle_ask_beside(void *state, const struct frame *f, struct ddp_err *err)
{
    struct straggler *s = state;
    uint32_t rank = ((const struct msg_ask_beside *)f->m)->rank;
    ask(&s->questions[BESIDE_Q], "beside", rank, (int)rank);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static bool straggler_spares(const void *state, pid_t pid)
{
    const struct straggler *s = state;
    for (size_t i = 0; i < QUESTIONS; i++) {
        pid_t child = s->questions[i].child.pid; /* it ends with us */
        if (child > 0 && (pid == 0 || pid == child))
            return true;
    }
    return false;
}

static int straggler_init(struct agent *a, void **state, struct ddp_err *err)
{
    static void (*const send[])(struct straggler_question * q) = {
        [ARRIVALS_Q] = send_arrivals, [BESIDE_Q] = send_beside, [CALLS_Q] = send_calls};
    struct straggler *s = xcalloc(1, sizeof *s);
    s->agent = a;
    for (size_t i = 0; i < QUESTIONS; i++) {
        struct straggler_question *q = &s->questions[i];
        *q = (struct straggler_question){
            .of = s,
            .child = {.reap = a->reap, .fd = -1, .out = on_out, .arg = q},
            .text = evbuffer_new(),
            .send = send[i]};
    }
    *state = s;
    return 0;
}

static void straggler_fini(void *state)
{
    struct straggler *s = state;
    for (size_t i = 0; i < QUESTIONS; i++) {
        diagnose_child_kill(&s->questions[i].child);
        evbuffer_free(s->questions[i].text);
    }
    free(s->folder);
    free(s->ranks);
    free(s);
}

static const struct agent_message messages[] = {{MSG_ASK_ARRIVALS, handle_ask_arrivals},
                                                {MSG_ASK_BESIDE, handle_ask_beside},
                                                {MSG_ASK_CALLS, handle_ask_calls},
                                                {0}};

const struct agent_plugin straggler_agent = {
    .name = "straggler",
    .init = straggler_init,
    .fini = straggler_fini,
    .prepare = straggler_prepare,
    .rank_env = straggler_rank_env,
    .rank_started = straggler_rank_started,
    .rank_exited = straggler_rank_exited,
    .spares = straggler_spares,
    .messages = messages,
};
