/* launcher/plugins/mpi/pmi_one.c - the commands of PMI-1
 *
 * A PMI-2 client starts here, too: its first line, in PMI-1 format, requests version 2.
 */
#include "launcher/plugins/mpi/pmi_impl.h"

#include <stdlib.h>
#include <string.h>

static void one_init(struct pmi_client *c, const struct pmi_request *r)
{
    bool pmi2 = strcmp(pmi_text(r, "pmi_version"), "2") == 0;
    pmi_join(c, true);
    pmi_answer(c, "cmd=response_to_init pmi_version=%d pmi_subversion=%d rc=0\n",
               pmi2 ? 2 : 1, pmi2 ? 0 : 1);
    c->pmi2 = pmi2;
}

static void one_maxes(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_answer(c, "cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d rc=0\n",
               PMI_NAME_MAX, PMI_KEY_MAX, PMI_VALUE_MAX);
}

static void one_appnum(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_answer(c, "cmd=appnum appnum=%u rc=0\n", pmi_appnum(c));
}

static void one_name(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_answer(c, "cmd=my_kvsname kvsname=%s rc=0\n", c->server->kvsname);
}

static void one_universe(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_answer(c, "cmd=universe_size size=%u rc=0\n", c->server->job->nslots);
}

static void one_put(struct pmi_client *c, const struct pmi_request *r)
{
    const char *key = pmi_text(r, "key"), *value = pmi_text(r, "value");
    bool good = *key && strlen(key) < PMI_KEY_MAX && strlen(value) < PMI_VALUE_MAX;
    if (good)
        pmi_put(c->server, key, value);
    pmi_answer(c, "cmd=put_result rc=%d msg=%s\n", good ? 0 : -1,
               good ? "success" : "key_or_value_too_long");
}

static void one_get(struct pmi_client *c, const struct pmi_request *r)
{
    const char *value = pmi_keys_get(c->server->keys, pmi_text(r, "key"));
    if (value)
        pmi_answer(c, "cmd=get_result rc=0 msg=success value=%s\n", value);
    else
        pmi_answer(c, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
}

static void one_finalize(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_join(c, false);
    pmi_answer(c, "cmd=finalize_ack rc=0\n");
}

static void one_abort(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_abort(c, atoi(pmi_text(r, "exitcode")), "");
}

static void one_spawned(struct pmi_client *c, const char *job)
{
    if (job)
        pmi_answer(c, "cmd=spawn_result rc=0 jobid=%s\n", job);
    else
        pmi_answer(c, "cmd=spawn_result rc=-1 status=failed\n");
}

static void one_unknown(struct pmi_client *c, const char *name)
{
    pmi_answer(c, "cmd=%.60s_result rc=-1 msg=not_known\n", name);
}

static void one_publish(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_name_ask(c, NAME_PUBLISH, pmi_text(r, "service"), pmi_text(r, "port"));
}

static void one_lookup(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_name_ask(c, NAME_LOOKUP, pmi_text(r, "service"), "");
}

static void one_unpublish(struct pmi_client *c, const struct pmi_request *r)
{
    pmi_name_ask(c, NAME_UNPUBLISH, pmi_text(r, "service"), "");
}

static void one_named(struct pmi_client *c, enum pmi_name_what what, const char *port)
{
    static const char *const names[] = {"publish", "lookup", "unpublish"};
    bool found = port && what == NAME_LOOKUP;
    pmi_answer(c, "cmd=%s_result info=%s rc=%d%s%s\n", names[what],
               port ? "ok" : "failed", port ? 0 : 1, found ? " port=" : "",
               found ? port : "");
}

static void one_barrier_over(struct pmi_client *c)
{
    pmi_answer(c, "cmd=barrier_out\n");
}

static const struct pmi_command commands[] = {
    {"init", one_init},
    {"get_maxes", one_maxes},
    {"get_appnum", one_appnum},
    {"get_my_kvsname", one_name},
    {"get_universe_size", one_universe},
    {"put", one_put},
    {"get", one_get},
    {"barrier_in", pmi_barrier_enter},
    {"finalize", one_finalize},
    {"abort", one_abort},
    {"publish_name", one_publish},
    {"lookup_name", one_lookup},
    {"unpublish_name", one_unpublish},
    {0},
};

const struct pmi_dialect pmi_one = {commands, one_unknown, one_barrier_over, one_spawned,
                                    one_named};
