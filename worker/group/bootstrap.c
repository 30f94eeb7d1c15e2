/* worker/group/bootstrap.c - see bootstrap.h */
#include "worker/group/bootstrap.h"

#include "common/ambient_launcher.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "include/ddprun/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bootstrap_pause(struct bootstrap *m, int *pause_ms, int most_ms)
{
    int64_t began_ms = now_ms();
    sleep_ms(*pause_ms);
    limit_extend(&m->deadline_ms, began_ms, most_ms);
    *pause_ms = 2 * *pause_ms < most_ms ? 2 * *pause_ms : most_ms;
}

/* ---- the store ---- */

/* A rank may run several programs one after the other (sh -c './a; ./b'): the store
 * counts those that have come, so that none reads what an earlier one has left. */
static int bootstrap_store(struct bootstrap *m, struct ddp_err *err)
{
    size_t n = (size_t)m->size;
    int64_t left = m->deadline_ms - now_ms(), programs;
    struct ddp_store *store =
        ddp_store_connect(*m->addr ? m->addr : NULL, m->port, left > 1 ? left : 1, err);
    if (!store)
        return -1;
    OWNED struct ddp_value *values = xcalloc(n, sizeof *values);
    OWNED char *name = xasprintf("%s/programs/%d", m->name, m->rank);
    int rc = ddp_store_add(store, name, 1, &programs, err);
    if (rc == 0) {
        free(name);
        name = xasprintf("%s.%lld", m->name, (long long)programs);
        rc = ddp_store_fence(store, name, m->rank, m->size, m->card, sizeof *m->card,
                             values, err);
    }
    for (size_t r = 0; r < n && rc == 0; r++) {
        if (values[r].size == sizeof *m->cards)
            memcpy(&m->cards[r], values[r].data, sizeof *m->cards);
    }
    if (rc == 0)
        ddp_values_free(values, n);
    ddp_store_close(store);
    return rc;
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

/* MASTER_ADDR and MASTER_PORT mean what they mean to PyTorch: where the launcher says so
 * (ddprun, torchrun), a store runs there; else rank 0 listens at that port. */
static const char *default_place(struct bootstrap *m)
{
    const struct ambient_launcher *by = ambient_launcher_find(ambient_launcher_env);
    const char *addr = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    const char *served = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool store = served && strcmp(served, "True") == 0;
    bool named = !by || by == &ambient_launchers[0]; /* by RANK, if at all */
    if (*m->addr || (named && addr && (store || !port || !*port)))
        return "env://";
    if (!addr || !*addr || !port || !*port)
        return "launcher://";
    snprintf(m->made, sizeof m->made, strchr(addr, ':') ? "tcp://[%s]:%s" : "tcp://%s:%s",
             addr, port);
    return m->made;
}

/* "host:port" or "[address]:port" */
static int parse_address(struct bootstrap *m, struct ddp_err *err)
{
    const char *from = m->place, *colon = strrchr(from, ':'), *end = colon;
    if (colon && from[0] == '[' && end > from && end[-1] == ']') {
        from++;
        end--;
    }
    if (!colon || end == from || end - from > 255 ||
        !number_whole(colon + 1, 1, 65535, &m->port))
        return err_set(err, "'%s' is not host:port", m->place);
    snprintf(m->addr, sizeof m->addr, "%.*s", (int)(end - from), from);
    return 0;
}

bootstrap_fn bootstrap_find(struct bootstrap *m, const char *url, struct ddp_err *err)
{
    const char *master = getenv("MASTER_ADDR");
    url = url ? url : default_place(m);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        size_t n = strlen(places[i].scheme);
        if (strncmp(url, places[i].scheme, n) != 0)
            continue;
        m->place = url + n;
        if (places[i].meet != bootstrap_store)
            m->addr[0] = '\0';
        else if (!*m->addr && master)
            snprintf(m->addr, sizeof m->addr, "%s", master);
        if (places[i].meet == bootstrap_tcp && parse_address(m, err) < 0)
            return NULL;
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
