/* common/pmi_client.c - see pmi_client.h */
#include "common/pmi_client.h"

#include "common/err.h"
#include "common/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Up to the newline, which is removed; what follows it stays in the socket. */
static int read_line(int fd, char *line, int64_t *deadline_ms, struct ddp_err *err)
{
    for (size_t n = 0; n < PMI_CLIENT_LINE - 1;) {
        size_t room = PMI_CLIENT_LINE - 1 - n;
        if (sock_await_extend(fd, POLLIN, deadline_ms) < 0)
            return err_set(err, "the launcher's PMI does not answer: not all ranks have "
                                "joined in time");
        ssize_t got = recv(fd, line + n, room, MSG_PEEK);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        const char *end = got > 0 ? memchr(line + n, '\n', (size_t)got) : NULL;
        size_t used = end ? (size_t)(end - line) - n + 1 : (size_t)got;
        if (got <= 0 || recv(fd, line + n, used, 0) != (ssize_t)used)
            return err_set(err, "the launcher's PMI has closed the connection");
        n += used;
        if (end) {
            line[n - 1] = '\0';
            return 0;
        }
    }
    return err_set(err, "the launcher's PMI has sent a line without an end");
}

int pmi_client_ask(int fd, const char *request, const char *reply,
                   char line[PMI_CLIENT_LINE], int64_t *deadline_ms, struct ddp_err *err)
{
    size_t n = strlen(request), len = strlen(reply);
    if (send(fd, request, n, MSG_NOSIGNAL) != (ssize_t)n)
        return err_errno(err, "the launcher's PMI takes no requests");
    if (read_line(fd, line, deadline_ms, err) < 0)
        return -1;
    const char *rc = strstr(line, " rc=");
    if (strncmp(line, "cmd=", 4) != 0 || strncmp(line + 4, reply, len) != 0 ||
        (rc && rc[4] != '0'))
        return err_set(err, "the launcher's PMI answers '%.100s' to '%.*s'", line,
                       (int)strcspn(request, " \n"), request);
    return 0;
}

int pmi_client_begin(int fd, char name[PMI_CLIENT_LINE], int64_t *deadline_ms,
                     struct ddp_err *err)
{
    char line[PMI_CLIENT_LINE];
    if (pmi_client_ask(fd, "cmd=init pmi_version=1 pmi_subversion=1\n",
                       "response_to_init", line, deadline_ms, err) < 0 ||
        pmi_client_ask(fd, "cmd=get_my_kvsname\n", "my_kvsname", line, deadline_ms, err) <
            0)
        return -1;
    const char *found = strstr(line, " kvsname="); /* Hydra 5 puts rc=0 before it */
    if (!found)
        return err_set(err, "the launcher's PMI does not name its store: '%.80s'", line);
    found += strlen(" kvsname=");
    snprintf(name, PMI_CLIENT_LINE, "%.*s", (int)strcspn(found, " "), found);
    return 0;
}
