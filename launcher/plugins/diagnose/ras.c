/* launcher/plugins/diagnose/ras.c - see ras.h
 *
 * NCCL's own client, ncclras, speaks this protocol: lines, each answered by a line, and
 * the state as text, after which NCCL closes the connection. One process of the host
 * answers for all processes of the job, and waits for the others at most as long as
 * TIMEOUT says.
 */
#include "launcher/plugins/diagnose/ras.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECT_MS = 300, ADDRESS_MAX = 255 };

void ras_ask(struct rank_trace *t, const char *folder)
{
    static const char request[] = "CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n";
    struct ddp_err err;
    *t = (struct rank_trace){.sock = -1};
    OWNED char *stem = xasprintf("%s/" RAS_STEM, folder);
    OWNED char *address = rank_file(stem, RAS_SUFFIX, 0, ADDRESS_MAX);
    char *colon = address ? strrchr(address, ':') : NULL;
    if (colon) {
        *colon = '\0';
        t->sock =
            sock_connect(address, atoi(colon + 1), now_ms() + CONNECT_MS, false, &err);
    }
    if (t->sock >= 0 && send(t->sock, request, strlen(request), MSG_NOSIGNAL) !=
                            (ssize_t)strlen(request)) {
        close(t->sock);
        t->sock = -1;
    }
}

/* Past the answers to the first two lines. */
static const char *state_of(const char *answer)
{
    for (int i = 0; i < 2 && answer; i++) {
        answer = strchr(answer, '\n');
        answer = answer ? answer + 1 : NULL;
    }
    return answer;
}

void ras_take(struct rank_trace *t, json_t *rank)
{
    static const char server[] = "SERVER PROTOCOL ";
    close_fd(&t->sock); /* too slow: what has come is used */
    if (!t->answer)
        return;
    t->answer[t->size] = '\0';
    if (strncmp(t->answer, server, strlen(server)) == 0) {
        const char *state = state_of(t->answer);
        json_t *text = state && *state ? json_string(state) : NULL;
        if (text)
            json_object_set_new(rank, "nccl_ras", text);
    }
    free(t->answer);
    t->answer = NULL;
}
