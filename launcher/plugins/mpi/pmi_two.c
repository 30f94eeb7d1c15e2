/* launcher/plugins/mpi/pmi_two.c - the commands of PMI-2
 *
 * Several threads of a client may send requests, each with its own id ("thrid"), which
 * the answer repeats. A request that must wait is answered later.
 */
#include "launcher/plugins/mpi/pmi_impl.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* Send "cmd=NAME-response;thrid=...;" and `rest`. The caller doubles a ';' in values. */
static void answer(struct pmi_client *c, const char *name, const char *rest)
{
    pmi_answer(c, "cmd=%s-response;%s%s%s%s", name, c->thread ? "thrid=" : "",
               c->thread ? c->thread : "", c->thread ? ";" : "", rest);
}

static char *doubled(const char *value)
{
    char *text = xcalloc(2 * strlen(value) + 1, 1), *to = text;
    for (const char *p = value; *p; p++) {
        if (*p == ';')
            *to++ = ';';
        *to++ = *p;
    }
    return text;
}

static void answer_value(struct pmi_client *c, const char *name, const char *value)
{
    if (!value) {
        answer(c, name, "found=FALSE;rc=0;");
        return;
    }
    OWNED char *safe = doubled(value),
               *rest = xasprintf("found=TRUE;value=%s;rc=0;", safe);
    answer(c, name, rest);
}

static void two_fullinit(struct pmi_client *c, const struct pmi_request *r)
{
    OWNED char *rest =
        xasprintf("pmi-version=2;pmi-subversion=0;rank=%u;size=%u;appnum=%u;"
                  "debugged=FALSE;pmiverbose=FALSE;%src=0;",
                  c->rank, c->server->job->nranks, pmi_appnum(c),
                  c->server->job->spawned ? "spawner-jobid=parent;" : "");
    answer(c, "fullinit", rest);
}

static void two_getid(struct pmi_client *c, const struct pmi_request *r)
{
    OWNED char *rest = xasprintf("jobid=%s;rc=0;", c->server->kvsname);
    answer(c, "job-getid", rest);
}

static void two_jobattr(struct pmi_client *c, const struct pmi_request *r)
{
    char size[16];
    const char *key = pmi_text(r, "key");
    snprintf(size, sizeof size, "%u", c->server->job->nslots);
    answer_value(c, "info-getjobattr",
                 strcmp(key, "universeSize") == 0 ? size
                                                  : pmi_keys_get(c->server->keys, key));
}

static const char too_long[] = "rc=-1;errmsg=key or value too long;";

static bool can_be_put(const char *key, const char *value)
{
    return *key && strlen(key) <= PMI_KEY_MAX && strlen(value) <= PMI_VALUE_MAX;
}

/* A rank may be a script that runs several MPI programs, the n-th ones of all ranks
 * forming one MPI job: attributes are kept apart by program number. */
static char *node_key(const struct pmi_client *c, const char *key)
{
    return xasprintf("%u %s", c->program, key);
}

static void answer_waiting(struct pmi_client *c, const char *key, const char *value)
{
    struct pmi_wait *w, *next;
    LL_FOREACH_SAFE(c->waits_node, w, next)
    {
        if (strcmp(w->key, key) != 0)
            continue;
        LL_DELETE(c->waits_node, w);
        free(c->thread);
        c->thread = w->thread;
        answer_value(c, "info-getnodeattr", value);
        free(w->key);
        free(w);
    }
}

static void two_putnode(struct pmi_client *c, const struct pmi_request *r)
{
    struct pmi_server *s = c->server;
    const char *key = pmi_text(r, "key"), *value = pmi_text(r, "value");
    if (!can_be_put(key, value)) {
        answer(c, "info-putnodeattr", too_long);
        return;
    }
    OWNED char *mine = node_key(c, key);
    pmi_keys_put(&s->node, mine, value);
    answer(c, "info-putnodeattr", "rc=0;");
    for (uint32_t i = 0; i < s->nlocal; i++)
        answer_waiting(&s->clients[i], mine, value);
}

static void two_getnode(struct pmi_client *c, const struct pmi_request *r)
{
    char *key = node_key(c, pmi_text(r, "key"));
    const char *value = pmi_keys_get(c->server->node, key);
    if (value || strcmp(pmi_text(r, "wait"), "TRUE") != 0) {
        answer_value(c, "info-getnodeattr", value);
        free(key);
        return;
    }
    struct pmi_wait *w = xcalloc(1, sizeof *w);
    *w = (struct pmi_wait){.key = key, .thread = c->thread};
    c->thread = NULL;
    LL_PREPEND(c->waits_node, w);
}

static void two_put(struct pmi_client *c, const struct pmi_request *r)
{
    const char *key = pmi_text(r, "key"), *value = pmi_text(r, "value");
    bool good = can_be_put(key, value);
    if (good)
        pmi_put(c->server, key, value);
    answer(c, "kvs-put", good ? "rc=0;" : too_long);
}

static void two_get(struct pmi_client *c, const struct pmi_request *r)
{
    answer_value(c, "kvs-get", pmi_keys_get(c->server->keys, pmi_text(r, "key")));
}

static void two_finalize(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_join(c, false);
    answer(c, "finalize", "rc=0;");
    c->pmi2 = false; /* the rank's next program starts with PMI-1's init */
}

static void two_abort(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_abort(c, 1, pmi_text(r, "msg"));
}

static void two_spawned(struct pmi_client *c, const char *job)
{
    OWNED char *rest =
        job ? xasprintf("rc=0;jobid=%s;nerrs=0;", job) : xstrdup("rc=-1;errmsg=failed;");
    answer(c, "spawn", rest);
}

static void two_publish(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_name_ask(c, NAME_PUBLISH, pmi_text(r, "name"), pmi_text(r, "port"));
}

static void two_lookup(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_name_ask(c, NAME_LOOKUP, pmi_text(r, "name"), "");
}

static void two_unpublish(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_name_ask(c, NAME_UNPUBLISH, pmi_text(r, "name"), "");
}

static void two_named(struct pmi_client *c, enum pmi_name_what what, const char *port)
{
    static const char *const names[] = {"name-publish", "name-lookup", "name-unpublish"};
    OWNED char *safe = doubled(port ? port : "");
    OWNED char *rest = !port                 ? xstrdup("rc=1;errmsg=failed;")
                       : what != NAME_LOOKUP ? xstrdup("rc=0;")
                                             : xasprintf("rc=0;port=%s;", safe);
    answer(c, names[what], rest);
}

static void two_unknown(struct pmi_client *c, const char *name)
{
    answer(c, name, "rc=-1;errmsg=not known;");
}

static void two_barrier_over(struct pmi_client *c)
{
    free(c->thread);
    c->thread = c->parked;
    c->parked = NULL;
    answer(c, "kvs-fence", "rc=0;");
}

static const struct pmi_command commands[] = {
    {"fullinit", two_fullinit},
    {"job-getid", two_getid},
    {"info-getjobattr", two_jobattr},
    {"info-putnodeattr", two_putnode},
    {"info-getnodeattr", two_getnode},
    {"kvs-put", two_put},
    {"kvs-get", two_get},
    {"kvs-fence", pmi_barrier_enter},
    {"finalize", two_finalize},
    {"abort", two_abort},
    {"spawn", pmi_spawn_words},
    {"name-publish", two_publish},
    {"name-lookup", two_lookup},
    {"name-unpublish", two_unpublish},
    {0},
};

const struct pmi_dialect pmi_two = {commands, two_unknown, two_barrier_over, two_spawned,
                                    two_named};
