/* launcher/peer/known.c - see known.h */
#include "launcher/peer/known.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/alloc/source.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

struct known {
    struct strv names; /* owned */
};

struct known *known_create(const struct opts *opts, const struct outer *o,
                           struct ddp_err *err)
{
    struct known *k = xcalloc(1, sizeof *k);
    struct alloc a = {0};
    if (o->hosts.n > 0) {
        strv_push_all(&k->names, o->hosts.v);
    } else if (opts->hosts && alloc_hosts_arg.read(opts, &a, err) == 0) {
        for (size_t i = 0; i < a.nnodes; i++)
            strv_push(&k->names, a.nodes[i].name);
    } else if (!opts->hosts) {
        err_set(err, "--peer-key none: -H names the hosts, as nobody else is let in");
    }
    alloc_clear(&a);
    if (k->names.n > 0)
        return k;
    known_destroy(k);
    return NULL;
}

void known_destroy(struct known *k)
{
    if (!k)
        return;
    strv_finish(&k->names);
    free(k);
}

enum { LOOK_UP_MS = 2000 }; /* for all names: others wait meanwhile */

static bool name_has(const char *name, int64_t deadline_ms, const char *from)
{
    struct addrinfo *list;
    char text[INET6_ADDRSTRLEN];
    bool yes = false;
    if (lookup(name, NULL, SOCK_STREAM, deadline_ms, &list) != 0)
        return false;
    for (const struct addrinfo *i = list; i && !yes; i = i->ai_next) {
        sock_addr(i->ai_addr, text, sizeof text);
        yes = strcmp(text, from) == 0;
    }
    freeaddrinfo(list);
    return yes;
}

bool known_has(const struct known *k, const struct sockaddr *from)
{
    char text[INET6_ADDRSTRLEN];
    sock_addr(from, text, sizeof text);
    int64_t until = now_ms() + LOOK_UP_MS;
    for (size_t i = 0; i < k->names.n; i++) {
        if (name_has(k->names.v[i], until, text))
            return true;
    }
    return false;
}
