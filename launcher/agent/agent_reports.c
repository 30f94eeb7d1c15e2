/* launcher/agent/agent_reports.c - messages from an agent to the launcher
 *
 * Without a link they are dropped: the launcher is lost, or has sent LEAVE.
 */
#include "launcher/agent/agent_impl.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/agent/machine.h"

#include <stdlib.h>
#include <string.h>

void agent_send(struct agent *a, enum msg_type type, struct pack *k)
{
    if (a->up)
        link_send_pack(a->up, type, a->node, k);
    pack_finish(k);
}

void agent_cannot(struct agent *a, uint32_t rank, int code, const char *text)
{
    char *copy = xstrdup(text);
    struct msg_cannot m = {.rank = rank, .code = (uint32_t)code, .text = copy};
    struct pack k = {0};
    msg_cannot_pack(&m, &k);
    agent_send(a, MSG_CANNOT, &k);
    free(copy);
}

void agent_log(enum log_level level, const char *line, void *arg)
{
    struct agent *a = arg;
    struct pack k = {0};
    pack_u8(&k, (unsigned)level);
    pack_bytes(&k, line, strlen(line));
    agent_send(a, MSG_LOG, &k);
}

void agent_hello(struct agent *a, int fd)
{
    struct msg_hello m;
    struct pack k = {0};
    machine_describe(fd, &m);
    msg_hello_pack(&m, &k);
    agent_send(a, MSG_HELLO, &k);
    msg_hello_finish(&m);
}

/* --- events of the ranks ------------------------------------------------------------ */

static void on_out(int rank, unsigned stream, const void *data, size_t n, void *arg)
{
    struct agent *a = arg;
    struct pack k = {0};
    pack_u32(&k, (uint32_t)rank);
    pack_u8(&k, stream);
    if (a->up)
        link_send(a->up, MSG_OUT, a->node, k.p, k.n, data, n);
    pack_finish(&k);
    if (n == 0)
        agent_drained(a);
}

static void on_error(int rank, const char *text, void *arg)
{
    struct pack k = {0};
    pack_u32(&k, (uint32_t)rank);
    pack_str(&k, text);
    agent_send(arg, MSG_ERROR, &k);
}

static void on_env(uint32_t local, struct strv *env, void *arg)
{
    struct agent *a = arg;
    AGENT_HOOKS(a, rank_env, local, env);
}

static void on_started(uint32_t local, pid_t pid, void *arg)
{
    struct agent *a = arg;
    AGENT_HOOKS(a, rank_started, local, pid);
}

static void on_exited(uint32_t local, const struct msg_exit *how, void *arg)
{
    struct agent *a = arg;
    struct msg_exit m = *how;
    struct pack k = {0};
    m.told = a->state != AGENT_ACTIVE;
    AGENT_HOOKS(a, rank_exited, local, &m);
    msg_exit_pack(&m, &k);
    agent_send(a, MSG_EXIT, &k);
}

static void on_taken(uint32_t n, void *arg)
{
    struct pack k = {0};
    pack_u32(&k, n);
    agent_send(arg, MSG_CREDIT, &k);
}

static void on_spawned(void *arg)
{
    struct pack k = {0};
    pack_u64(&k, (uint64_t)now_ns());
    agent_send(arg, MSG_SPAWNED, &k);
}

static void on_cannot(uint32_t rank, int code, const char *text, void *arg)
{
    agent_cannot(arg, rank, code, text);
}

static void on_send(enum msg_type type, const struct pack *head, const void *data,
                    size_t size, void *arg)
{
    struct agent *a = arg;
    if (a->up)
        link_send(a->up, type, a->node, head->p, head->n, data, size);
}

const struct ranks_events agent_ranks_events = {
    .out = on_out,
    .error = on_error,
    .env = on_env,
    .started = on_started,
    .exited = on_exited,
    .taken = on_taken,
    .spawned = on_spawned,
    .send = on_send,
    .cannot = on_cannot,
};
