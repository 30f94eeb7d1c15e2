/* common/hostset.c - see hostset.h */
#include "common/hostset.h"

#include "common/duration.h"
#include "common/hostlist.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "common/sock_addr.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <uthash.h>

/* ms: for all names together, and between two attempts */
enum { LOOK_UP_MS = 2000, RETRY_MS = 5000 };

struct address {
    char text[INET6_ADDRSTRLEN];
    UT_hash_handle hh;
};

struct hostset {
    struct strv unresolved;    /* owned */
    struct address *addresses; /* owned */
    int64_t retry_ms;
};

static void add(struct hostset *s, const struct sockaddr *sa)
{
    struct address *a = xcalloc(1, sizeof *a), *same;
    sock_addr(sa, a->text, sizeof a->text);
    HASH_FIND_STR(s->addresses, a->text, same);
    if (same)
        free(a);
    else
        HASH_ADD_STR(s->addresses, text, a);
}

void hostset_resolve(struct hostset *s)
{
    int64_t until = now_ms() + LOOK_UP_MS;
    SCOPED(strv_finish) struct strv names = s->unresolved;
    s->unresolved = (struct strv){0};
    for (size_t i = 0; i < names.n; i++) {
        struct addrinfo *list;
        if (lookup(names.v[i], NULL, SOCK_STREAM, until, &list) != 0) {
            strv_push(&s->unresolved, names.v[i]);
            continue;
        }
        for (const struct addrinfo *a = list; a; a = a->ai_next)
            add(s, a->ai_addr);
        freeaddrinfo(list);
    }
    s->retry_ms = now_ms() + RETRY_MS;
}

static bool known(const struct hostset *s, const char *text)
{
    struct address *a;
    HASH_FIND_STR(s->addresses, text, a);
    return a != NULL;
}

bool hostset_has(struct hostset *s, const struct sockaddr *addr)
{
    char text[INET6_ADDRSTRLEN];
    sock_addr(addr, text, sizeof text);
    if (!known(s, text) && s->unresolved.n > 0 && now_ms() >= s->retry_ms)
        hostset_resolve(s);
    return known(s, text);
}

char *hostset_unresolved(const struct hostset *s)
{
    const struct strv *names = &s->unresolved;
    return names->n > 0 ? hostlist_compress(names->v, names->n) : NULL;
}

struct hostset *hostset_create(const struct strv *names)
{
    struct hostset *s = xcalloc(1, sizeof *s);
    if (names->n > 0)
        strv_push_all(&s->unresolved, names->v);
    return s;
}

void hostset_destroy(struct hostset *s)
{
    if (!s)
        return;
    struct address *a, *next;
    HASH_ITER (hh, s->addresses, a, next) {
        HASH_DEL(s->addresses, a);
        free(a);
    }
    strv_finish(&s->unresolved);
    free(s);
}
