/* launcher/plugins/mpi/pmi_names.c - MPI_Publish_name over PMI
 *
 * The agent of the first node of the first job keeps the names of that job and of all
 * jobs that its ranks have spawned. Requests to it, and its answers, are RELATED frames,
 * which reach the agents of all of them.
 */
#include "launcher/plugins/mpi/pmi_impl.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/mpi/pmi_server.h"

#include <stdlib.h>
#include <string.h>

enum { ASKS, ANSWERS };

/* After RELATED_PMI: a request of a client, or the answer to it. */
struct name_message {
    unsigned kind;
    char *kvsname; /* owned: of the client's job */
    uint32_t rank, id;
    unsigned what;     /* enum pmi_name_what */
    bool good;         /* an answer */
    char *name, *port; /* owned */
};

static void pass(const struct pmi_server *s, const struct name_message *m)
{
    SCOPED(pack_finish) struct pack k = {0};
    pack_u8(&k, RELATED_PMI);
    pack_u8(&k, m->kind);
    pack_str(&k, m->kvsname);
    pack_u32(&k, m->rank);
    pack_u32(&k, m->id);
    pack_u8(&k, m->what);
    pack_u8(&k, m->good);
    pack_str(&k, m->name);
    pack_str(&k, m->port);
    agent_send(s->agent, MSG(related, k.p, (uint32_t)k.n));
}

void pmi_name_forget(struct pmi_client *c)
{
    free(c->name.thread);
    c->name.thread = NULL;
    c->name.asks = false;
}

/* Of two at a time, by threads of a client, the second fails. */
void pmi_name_ask(struct pmi_client *c, enum pmi_name_what what, const char *name,
                  const char *port)
{
    if (c->name.asks || !*name || (what == NAME_PUBLISH && !*port)) {
        pmi_dialect_of(c)->named(c, what, NULL);
        return;
    }
    c->name.asks = true;
    c->name.what = what;
    c->name.id++;
    c->name.thread = c->thread;
    c->thread = NULL;
    OWNED char *its_name = xstrdup(name), *its_port = xstrdup(port);
    pass(c->server, &(struct name_message){ASKS, c->server->kvsname, c->rank, c->name.id,
                                           what, false, its_name, its_port});
}

/* Do what is asked; its port becomes that of the name. */
static void decide(struct pmi_server *s, struct name_message *m)
{
    const char *port = pmi_keys_get(s->names, m->name);
    bool published = port && *port;
    m->kind = ANSWERS;
    m->good = published == (m->what != NAME_PUBLISH);
    if (m->good && m->what == NAME_LOOKUP) {
        free(m->port);
        m->port = xstrdup(port);
    } else if (m->good) {
        pmi_keys_put(&s->names, m->name, m->what == NAME_PUBLISH ? m->port : "");
    }
}

static void take_answer(struct pmi_server *s, const struct name_message *m)
{
    for (uint32_t i = 0; i < s->nlocal; i++) {
        struct pmi_client *c = &s->clients[i];
        if (c->rank != m->rank || !c->name.asks || c->name.id != m->id)
            continue;
        free(c->thread);
        c->thread = c->name.thread;
        c->name.thread = NULL;
        c->name.asks = false;
        pmi_dialect_of(c)->named(c, c->name.what, m->good ? m->port : NULL);
    }
}

int pmi_name_message(struct pmi_server *s, const struct msg_related *related,
                     struct ddp_err *err)
{
    struct unpack u = {.p = related->data, .n = related->ndata};
    struct name_message m;
    unpack_u8(&u); /* RELATED_PMI */
    m.kind = unpack_u8(&u);
    OWNED char *kvsname = m.kvsname = unpack_str(&u);
    m.rank = unpack_u32(&u);
    m.id = unpack_u32(&u);
    m.what = unpack_u8(&u);
    m.good = unpack_u8(&u);
    OWNED char *name = m.name = unpack_str(&u);
    m.port = unpack_str(&u);
    bool valid = kvsname && name && m.port && !u.bad && m.what < NAME_WHATS;
    if (valid && m.kind == ASKS && s->node_rank == 0 && !s->job->spawned) {
        decide(s, &m);
        pass(s, &m);
    } else if (valid && m.kind == ANSWERS && strcmp(kvsname, s->kvsname) == 0) {
        take_answer(s, &m);
    }
    free(m.port);
    return valid ? 0 : err_set(err, "an invalid message from another PMI server");
}
