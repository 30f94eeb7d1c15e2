/* worker/group/bootstrap.c - see bootstrap.h */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/group/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the store ---- */

static int bootstrap_store(const struct bootstrap *m, const char *card,
                           struct ddp_value *cards, struct ddp_err *err)
{
    const char *addr = m->master_addr ? m->master_addr : getenv("MASTER_ADDR");
    if (!addr || (m->master_port == 0 && !getenv("MASTER_PORT")))
        return err_set(err,
                       "%s is not set: rank %d of %d does not know where to meet the "
                       "others; start under ddprun, or give the address of a ddpstored",
                       addr ? "MASTER_PORT" : "MASTER_ADDR", m->rank, m->size);
    int64_t left = m->deadline_ms - now_ms();
    struct ddp_store *store =
        ddp_store_connect(addr, m->master_port, left > 1 ? left : 1, err);
    if (!store)
        return -1;
    int rc =
        ddp_store_fence(store, m->name, m->rank, m->size, card, strlen(card), cards, err);
    ddp_store_close(store);
    return rc;
}

int bootstrap_late(const struct bootstrap *m, const char *scheme,
                   const struct ddp_value *cards, struct ddp_err *err)
{
    enum { LISTED = 8 };
    char text[256] = "";
    size_t at = 0;
    int missing = 0;
    for (int r = 0; r < m->size; r++) {
        if (r != m->rank && !cards[r].data && missing++ < LISTED)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d",
                                   missing > 1 ? ", " : "", r);
    }
    return err_set(err, "%d of %d ranks have not come to %s%s in time: %s%s", missing,
                   m->size, scheme, m->place, text, missing > LISTED ? ", ..." : "");
}

/* ---- the table ---- */

static const struct {
    const char *scheme;
    bootstrap_fn meet;
} places[] = {
    {"env://", bootstrap_store},
    {"tcp://", bootstrap_tcp},
    {"file://", bootstrap_file},
    {"launcher://", bootstrap_launcher},
};

/* Under ddprun and torchrun, and where the user has set RANK, a store runs at
 * MASTER_ADDR. Other launchers have none; then MASTER_ADDR and MASTER_PORT, which scripts
 * for PyTorch export, mean what they mean there: rank 0 listens at that port. */
static const char *default_place(struct bootstrap *m)
{
    const char *addr = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (m->master_addr)
        return "env://";
    if (!env_makes_no_store(env_get))
        return addr ? "env://" : "launcher://";
    if (!addr || !*addr || !port || !*port)
        return "launcher://";
    snprintf(m->made, sizeof m->made, strchr(addr, ':') ? "tcp://[%s]:%s" : "tcp://%s:%s",
             addr, port);
    return m->made;
}

bootstrap_fn bootstrap_find(struct bootstrap *m, const char *url, char host[256],
                            const char **toward, struct ddp_err *err)
{
    int port;
    url = url ? url : default_place(m);
    *toward = NULL;
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        size_t n = strlen(places[i].scheme);
        if (strncmp(url, places[i].scheme, n) != 0)
            continue;
        m->place = url + n;
        if (places[i].meet == bootstrap_store)
            *toward = m->master_addr ? m->master_addr : getenv("MASTER_ADDR");
        if (places[i].meet == bootstrap_tcp) {
            if (bootstrap_parse_address(m->place, host, &port, err) < 0)
                return NULL;
            *toward = host;
        }
        if (places[i].meet == bootstrap_file && m->place[0] != '/') {
            err_set(err, "'%s' is not file:///path", url);
            return NULL;
        }
        return places[i].meet;
    }
    err_set(err,
            "'%s' is not a place to meet: env://, tcp://host:port, "
            "file:///path or launcher://",
            url);
    return NULL;
}
