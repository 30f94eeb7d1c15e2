/* launcher/agent/rank_start.c - see rank_start.h */
#include "launcher/agent/rank_start.h"

#include "common/mem.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static void close_ends(struct rank_start *s)
{
    int saved = errno;
    for (size_t i = 0; i < ARRAY_LEN(s->streams); i++) {
        if (s->streams[i] >= 0)
            close(s->streams[i]);
        s->streams[i] = -1;
    }
    if (s->extra >= 0)
        close(s->extra);
    s->extra = -1;
    errno = saved;
}

void rank_start_run(struct background_call *c)
{
    struct rank_start *s = (struct rank_start *)c;
    const struct child_spec spec = {
        .path = s->program->path,
        .argv = s->program->argv.v,
        .env = s->env.v,
        .in = s->streams[0],
        .out = s->streams[1],
        .err = s->streams[2],
        .extra = s->extra,
        .cpus = s->binding->cpus,
        .cpus_size = s->binding->cpus_size,
        .place = s->place,
        .pidfd = &s->pidfd,
        .group = !s->terminal,
        .session = s->terminal,
        .terminal = s->terminal,
    };
    enum child_step step;
    s->pid = child_spawn(&spec, &step);
    close_ends(s);
    if (s->pid > 0)
        reap_order(s->order_fd, s->pid, s->pidfd);
    else
        s->code = program_failed(s->program->argv.v[0], s->program->path, s->prep->wdir,
                                 s->prep->host, step, &s->err);
}

void rank_start_free(struct rank_start *s)
{
    close_ends(s);
    strv_finish(&s->env);
    free(s);
}
