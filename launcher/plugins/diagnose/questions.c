/* launcher/plugins/diagnose/questions.c - see questions.h */
#define LOG_SUBSYS "diagnose"
#include "launcher/plugins/diagnose/questions.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/agent/ranks.h"
#include "launcher/plugins/diagnose/arrivals.h"

#include <event2/buffer.h>
#include <stdlib.h>

enum { CALLS_MAX = 3 << 20 }; /* bytes; the message takes more */

struct rank_question {
    struct agent *agent; /* borrowed */
    struct diagnose_child child;
    struct evbuffer *text; /* owned */
    uint32_t id;           /* of the question; the rank */
    int64_t asked_ns;
    void (*send)(struct rank_question *q);
};

struct questions {
    struct rank_question arrivals, beside, calls;
};

int diagnose_start(struct diagnose_child *c, const struct agent *a, const char *part,
                   const char *folder, int64_t first, struct ddp_err *err)
{
    struct strv args = {0};
    diagnose_child_kill(c);
    strv_push(&args, part);
    strv_push(&args, folder ? folder : "/nonexistent");
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < a->share.nlocal; i++) {
            uint32_t rank = a->share.ranks[i].rank;
            pid_t pid = ranks_pid(a->ranks, i);
            if (pid > 0 && (rank == first) == (turn == 0))
                strv_pushf(&args, "%u:%d", rank, (int)pid);
        }
    }
    int rc = args.n > 2;
    if (rc && diagnose_child_start(c, a->loop, &args, -1, err) < 0)
        rc = -1;
    strv_finish(&args);
    return rc;
}

/* --- questions ---------------------------------------------------------------------- */

static void send_arrivals(struct rank_question *q)
{
    size_t n = evbuffer_get_length(q->text) / sizeof(struct arrivals_record);
    const struct arrivals_record *r = (void *)evbuffer_pullup(q->text, -1);
    struct call_arrival *list = xcalloc(n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct call_arrival){r[i].rank, r[i].group, r[i].number, r[i].at_ns};
    agent_send(q->agent, MSG(arrivals, .id = q->id, .asked_ns = q->asked_ns,
                             .sent_ns = now_ns(), .n = (uint32_t)n, .list = list));
    free(list);
}

static void send_beside(struct rank_question *q)
{
    evbuffer_add(q->text, "", 1);
    agent_send(q->agent,
               MSG(beside, .rank = q->id, .text = (char *)evbuffer_pullup(q->text, -1)));
}

static void send_calls(struct rank_question *q)
{
    bool fits = evbuffer_get_length(q->text) <= CALLS_MAX;
    evbuffer_add(q->text, "", 1);
    agent_send(q->agent, MSG(calls, .id = q->id,
                             .text = fits ? (char *)evbuffer_pullup(q->text, -1) : NULL));
}

static void on_out(const void *data, size_t n, void *arg)
{
    struct rank_question *q = arg;
    if (n > 0)
        evbuffer_add(q->text, data, n);
    else
        q->send(q);
}

static void ask(struct rank_question *q, const char *part, const char *folder,
                uint32_t id, int64_t first)
{
    struct ddp_err why;
    q->id = id;
    q->asked_ns = now_ns();
    evbuffer_drain(q->text, evbuffer_get_length(q->text));
    int rc = diagnose_start(&q->child, q->agent, part, folder, first, &why);
    if (rc < 0)
        log_info("no answer about the ranks here: %s", why.text);
    if (rc <= 0)
        q->send(q);
}

void questions_ask(struct questions *s, const struct frame *f, const char *folder)
{
    if (f->type == MSG_ASK_ARRIVALS) {
        const struct msg_ask_arrivals *m = f->m;
        ask(&s->arrivals, "arrivals", folder, m->id, -1);
    } else if (f->type == MSG_ASK_CALLS) {
        const struct msg_ask_calls *m = f->m;
        ask(&s->calls, "calls", folder, m->id, -1);
    } else {
        const struct msg_ask_beside *m = f->m;
        ask(&s->beside, "beside", folder, m->rank, m->rank);
    }
}

/* --- life --------------------------------------------------------------------------- */

static void begin(struct rank_question *q, struct agent *a,
                  void (*send)(struct rank_question *q))
{
    *q = (struct rank_question){
        .agent = a,
        .child = {.reap = a->reap, .fd = -1, .out = on_out, .arg = q},
        .text = evbuffer_new(),
        .send = send};
}

static void end(struct rank_question *q)
{
    diagnose_child_kill(&q->child);
    evbuffer_free(q->text);
}

struct questions *questions_create(struct agent *a)
{
    struct questions *s = xcalloc(1, sizeof *s);
    begin(&s->arrivals, a, send_arrivals);
    begin(&s->beside, a, send_beside);
    begin(&s->calls, a, send_calls);
    return s;
}

void questions_destroy(struct questions *s)
{
    end(&s->arrivals);
    end(&s->beside);
    end(&s->calls);
    free(s);
}

bool questions_spares(const struct questions *s, pid_t pid)
{
    return diagnose_child_is(&s->arrivals.child, pid) ||
           diagnose_child_is(&s->beside.child, pid) ||
           diagnose_child_is(&s->calls.child, pid);
}
