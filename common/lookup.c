/* common/lookup.c - see lookup.h */
#include "common/lookup.h"

#include "common/duration.h"
#include "common/offload.h"
#include "common/scoped.h"

#include <stdio.h>
#include <string.h>

/* The resolver refuses longer names. */
enum { NAME_MAX_ASKED = 1025 };

/* One query; a late result is never read, and is not freed. */
struct question {
    char name[NAME_MAX_ASKED + 1], service[32];
    bool has_service;
    struct addrinfo hints;
    struct addrinfo *list;
    int rc;
};

static void ask(void *arg)
{
    struct question *q = arg;
    q->rc = getaddrinfo(q->name, q->has_service ? q->service : NULL, &q->hints, &q->list);
}

int lookup(const char *name, const char *service, int type, int64_t deadline_ms,
           struct addrinfo **list)
{
    struct question q = {.has_service = service != NULL,
                         .hints = {.ai_socktype = type, .ai_flags = AI_NUMERICHOST}};
    int rc = getaddrinfo(name, service, &q.hints, list);
    if (rc != EAI_NONAME || strlen(name) > NAME_MAX_ASKED)
        return rc;
    int64_t left = deadline_ms - now_ms();
    if (left <= 0) /* late already: no thread for each of many names */
        return LOOKUP_LATE;
    q.hints.ai_flags = 0;
    snprintf(q.name, sizeof q.name, "%s", name);
    snprintf(q.service, sizeof q.service, "%s", service ? service : "");
    struct offload *a = offload_begin(ask, &q, sizeof q, NULL);
    if (!a) /* no thread: resolve without a deadline */
        return getaddrinfo(name, service, &q.hints, list);
    const struct question *done = offload_wait(a, left);
    rc = done ? done->rc : LOOKUP_LATE;
    if (rc == 0)
        *list = done->list;
    offload_end(a);
    return rc;
}

bool lookup_route(const char *name, int64_t deadline_ms, struct sockaddr_storage *own)
{
    struct addrinfo *list;
    bool found = false;
    if (lookup(name, "9", SOCK_DGRAM, deadline_ms, &list) != 0)
        return false;
    for (const struct addrinfo *a = list; a && !found; a = a->ai_next) {
        socklen_t len = sizeof *own;
        SCOPED(close_fd) int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        found = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)own, &len) == 0;
    }
    freeaddrinfo(list);
    return found;
}

const char *lookup_error(int code)
{
    return code == LOOKUP_LATE
               ? "the name servers do not answer in time; see /etc/resolv.conf"
               : gai_strerror(code);
}
