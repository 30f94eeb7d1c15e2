/* launcher/agent/agent_reports.c - messages from an agent to the launcher
 *
 * Without a link they are dropped: the launcher is lost, or has sent SHUTDOWN.
 */
#include "launcher/agent/agent_impl.h"

#include "common/duration.h"
#include "launcher/agent/machine.h"

void agent_send(struct agent *a, enum msg_type type, const void *m)
{
    if (a->relay && msg_merge(type) != MERGE_PASS)
        relay_send(a->relay, type, m);
    else if (a->up)
        link_send_msg(a->up, a->node, type, m);
}

void agent_cannot(struct agent *a, uint32_t rank, int code, const char *text)
{
    agent_send(a, MSG(spawn_failed, rank, (uint32_t)code, msg_text(text)));
}

void agent_log(enum log_level level, const char *line, void *arg)
{
    agent_send(arg, MSG(log, (uint32_t)level, msg_text(line)));
}

void agent_hello(struct agent *a, int fd)
{
    struct msg_hello m;
    machine_describe(fd, &m);
    m.at_ns = now_ns();
    agent_send(a, MSG_HELLO, &m);
    msg_hello_finish(&m);
}

/* --- ranks -------------------------------------------------------------------------- */

void agent_out(struct agent *a, int rank, unsigned stream, const void *data, size_t n)
{
    agent_send(a, MSG(output, (uint32_t)rank, stream, data, (uint32_t)n));
}

void agent_exited(struct agent *a, uint32_t local, const struct msg_exit *how)
{
    struct msg_exit m = *how;
    m.stopped = a->state != AGENT_ACTIVE;
    AGENT_HOOKS(a, rank_exited, local, &m);
    agent_send(a, MSG_EXIT, &m);
}
