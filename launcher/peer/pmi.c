/* launcher/peer/pmi.c - see pmi.h */
#include "launcher/peer/pmi.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_ = 1024 };

static int read_line(int fd, char *line, size_t size, int64_t deadline_ms)
{
    size_t n = 0;
    while (n < size - 1) {
        if (sock_await(fd, POLLIN, deadline_ms) < 0)
            return -1;
        ssize_t got = read(fd, line + n, 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return -1;
        if (line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
    return 0;
}

/* Send a request and read the response, which must begin with `expected`. */
static int ask(int fd, const char *question, const char *expected, char *line,
               size_t size, int64_t deadline_ms, struct ddp_err *err)
{
    size_t n = strlen(question);
    if (write(fd, question, n) != (ssize_t)n ||
        read_line(fd, line, size, deadline_ms) < 0)
        return err_errno(err, "PMI_FD=%d does not answer", fd);
    if (strncmp(line, expected, strlen(expected)) != 0)
        return err_set(err, "PMI_FD=%d answers '%.80s' to '%.*s'", fd, line, (int)n - 1,
                       question);
    return 0;
}

char *pmi_space_name(int64_t deadline_ms, struct ddp_err *err)
{
    char line[LINE_MAX_], rest[LINE_MAX_];
    const char *text = getenv("PMI_FD");
    int fd = text ? atoi(text) : -1;
    if (fd < 0) {
        err_set(err, "PMI_SIZE is set, but no PMI_FD to ask who belongs together");
        return NULL;
    }
    if (ask(fd, "cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init", line,
            sizeof line, deadline_ms, err) < 0 ||
        ask(fd, "cmd=get_my_kvsname\n", "cmd=my_kvsname", line, sizeof line, deadline_ms,
            err) < 0 ||
        ask(fd, "cmd=finalize\n", "cmd=finalize_ack", rest, sizeof rest, deadline_ms,
            err) < 0)
        return NULL;
    const char *name = strstr(line, " kvsname="); /* Hydra 5 says rc=0 before it */
    if (!name) {
        err_set(err, "PMI_FD=%d does not name its store: '%.80s'", fd, line);
        return NULL;
    }
    name += strlen(" kvsname=");
    return xasprintf("hydra %.*s", (int)strcspn(name, " "), name);
}
