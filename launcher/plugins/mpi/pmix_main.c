/* launcher/plugins/mpi/pmix_main.c - ddprun-pmix: the PMIx server of a node's agent
 *
 * Started by the agent only: descriptor 0 is its link to the agent, 1 the listening
 * socket for the ranks, CHILD_EXTRA_FD the first rank's connection, if there is one yet.
 * It exits when the agent closes the link.
 */
#define LOG_SUBSYS "pmix"
#include "common/err.h"
#include "common/log.h"
#include "launcher/contract.h"
#include "launcher/plugins/mpi/pmix_listener.h"
#include "launcher/plugins/mpi/pmix_server.h"
#include "launcher/transport/child.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

struct server {
    struct loop *loop;
    struct link *link;
    struct pmix_server *pmix; /* NULL: nothing to serve yet */
};

static void on_log_line(enum log_level level, const char *line, void *arg)
{
    struct server *s = arg;
    link_send_msg(s->link, 0, MSG(log, (uint32_t)level, msg_text(line)));
}

static int handle(struct server *s, const struct frame *f, struct ddp_err *err)
{
    struct msg_serve *m = f->m;
    if (f->type != MSG_SERVE)
        return s->pmix ? pmix_server_on_frame(s->pmix, f, err)
                       : err_set(err, "unexpected frame '%s'", msg_name(f->type));
    if (s->pmix || m->node >= m->map.n)
        return err_set(err, "an unexpected 'serve'");
    s->pmix = pmix_server_create(s->loop, s->link, m, err);
    return s->pmix ? 0 : -1;
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct server *s = arg;
    struct ddp_err err = {""};
    union msg_any m;
    struct frame decoded = *f;
    int rc = msg_decode(&decoded, &m, &err);
    if (rc == 0) {
        rc = handle(s, &decoded, &err);
        msg_finish(f->type, &m);
    }
    if (rc < 0)
        link_send_msg(s->link, 0, MSG(spawn_failed, UINT32_MAX, 0, err.text));
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    struct server *s = arg;
    log_sink(NULL, NULL);
    loop_stop(s->loop, 0);
}

/* Remove an outer launcher's PMIx variables, which would make libpmix a client of it; and
 * use the settings that are already in the ranks' environment (contract.c). */
static void settle_environment(void)
{
    char name[256];
    for (char **e = environ; *e;) {
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "PMIX_", 5) == 0 && strncmp(*e, "PMIX_MCA_", 9) != 0 &&
            n < sizeof name) {
            memcpy(name, *e, n);
            name[n] = '\0';
            unsetenv(name);
        } else {
            e++;
        }
    }
    setenv("PMIX_MCA_gds", CONTRACT_PMIX_STORE, 1);
    setenv("PMIX_MCA_psec", CONTRACT_PMIX_SECURITY, 1);
    setenv("PMIX_SECURITY_MODE", CONTRACT_PMIX_SECURITY, 1);
    setenv("PMIX_BFROP_BUFFER_TYPE", CONTRACT_PMIX_BUFFERS, 1);
}

int main(int argc, char **argv)
{
    static const struct link_events events = {on_frame, on_closed, NULL};
    struct ddp_err err;
    struct server s = {0};
    if (argc > 1) {
        printf("ddprun-pmix %s: started by ddprun for MPI programs, not by users\n",
               DDPRUN_VERSION);
        return strcmp(argv[1], "--version") == 0 ? 0 : 2;
    }
    prctl(PR_SET_PDEATHSIG, 0); /* exit on a closed link instead, after removing files */
    signal(SIGPIPE, SIG_IGN);
    settle_environment();
    int link_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int listen_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0 || link_fd < 0 || listen_fd < 0 ||
        !(s.loop = loop_create(&err)))
        return 1;
    int first_fd = fcntl(CHILD_EXTRA_FD, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (first_fd >= 0)
        close(CHILD_EXTRA_FD);
    pmix_listener_set(listen_fd, first_fd, getppid());
    s.link = link_create(s.loop, link_fd, FRAME_DOWN, NULL, &events, &s);
    log_sink(on_log_line, &s);
    loop_run(s.loop);
    if (s.pmix)
        pmix_server_destroy(s.pmix);
    _exit(0); /* libpmix's threads still run: no exit handlers, no destructors */
}
