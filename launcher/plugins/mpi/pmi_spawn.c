/* launcher/plugins/mpi/pmi_spawn.c - MPI_Comm_spawn over PMI
 *
 * The words of a program are collected as "NAME=VALUE". PMI-1 sends one per line, from
 * "mcmd=spawn" to "endcmd", for each program in turn: a value is the rest of its line,
 * with its blanks. PMI-2 sends one request, in which a program begins with "subcmd".
 */
#include "launcher/plugins/mpi/pmi_impl.h"

#include "common/mem.h"
#include "common/number.h"
#include "launcher/agent/plugin.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The words of a version of the protocol; all but the first two are numbered. */
struct vocabulary {
    const char *program, *processes;
    const char *argument, *key, *value, *info_key, *info_value;
    int first; /* number of the first argument */
};

static const struct vocabulary pmi1 = {"execname",    "nprocs",
                                       "arg",         "preput_key_",
                                       "preput_val_", "info_key_",
                                       "info_val_",   1},
                               pmi2 = {"subcmd", "maxprocs", "argv",    "ppkey",
                                       "ppval",  "infokey",  "infoval", 0};

static const char *numbered(const struct strv *words, const char *name, int i)
{
    char text[40];
    snprintf(text, sizeof text, "%s%d", name, i);
    return strv_env_get(words, text);
}

static void take_info(struct spawn_program *p, const struct strv *words,
                      const struct vocabulary *v)
{
    const char *key, *value;
    for (int i = 0; (key = numbered(words, v->info_key, i)); i++) {
        if (!(value = numbered(words, v->info_value, i)))
            continue;
        if (strcmp(key, "wdir") == 0 && !p->wdir)
            p->wdir = xstrdup(value);
        if ((strcmp(key, "host") == 0 || strcmp(key, "hosts") == 0) && !p->hosts)
            p->hosts = xstrdup(value);
    }
}

static void take_keys(struct msg_spawn *m, const struct strv *words,
                      const struct vocabulary *v)
{
    const char *key, *value;
    for (int i = 0; (key = numbered(words, v->key, i)); i++) {
        if ((value = numbered(words, v->value, i)))
            strv_pushf(&m->keys, "%s=%s", key, value);
    }
}

/* Add a program; false: a word is missing. */
static bool take_program(struct msg_spawn *m, const struct strv *words,
                         const struct vocabulary *v)
{
    const char *name = strv_env_get(words, v->program), *argument;
    const char *text = strv_env_get(words, v->processes);
    int n;
    if (!name || !text || !number_whole(text, 1, INT_MAX, &n))
        return false;
    m->programs = xrealloc(m->programs, m->nprograms + 1, sizeof *m->programs);
    struct spawn_program *p = &m->programs[m->nprograms++];
    *p = (struct spawn_program){.n = (uint32_t)n};
    strv_push(&p->argv, name);
    for (int i = v->first; (argument = numbered(words, v->argument, i)); i++)
        strv_push(&p->argv, argument);
    take_info(p, words, v);
    if (m->nprograms == 1)
        take_keys(m, words, v);
    return true;
}

static void forget(struct pmi_client *c)
{
    strv_finish(&c->spawn.words);
    msg_spawn_finish(&c->spawn.request);
    c->spawn.request = (struct msg_spawn){0};
}

/* Pass the request to the launcher, whose answer comes to pmi_spawn_result(). Of two at a
 * time, by threads of a client, the second fails. */
static void send_request(struct pmi_client *c, bool complete)
{
    if (c->spawn.asks) {
        pmi_dialect_of(c)->spawned(c, NULL);
        forget(c);
        return;
    }
    c->spawn.thread = c->thread;
    c->thread = NULL;
    c->spawn.asks = true;
    c->spawn.request.service = SERVICE_PMI;
    c->spawn.request.waits = true;
    c->spawn.request.rank = c->rank;
    c->spawn.request.id = ++c->spawn.id;
    if (complete)
        agent_send(c->server->agent, MSG_SPAWN, &c->spawn.request);
    else
        pmi_spawn_result(c->server,
                         &(struct msg_spawn_result){.rank = c->rank, .id = c->spawn.id});
    forget(c);
}

bool pmi_spawn_line(struct pmi_client *c, const char *line, size_t size)
{
    static const char begin[] = "mcmd=spawn", end[] = "endcmd";
    struct strv *words = &c->spawn.words;
    size_t n = size - 1; /* without the newline */
    if (words->n == 0 && (n != strlen(begin) || memcmp(line, begin, n) != 0))
        return false;
    if (n != strlen(end) || memcmp(line, end, n) != 0) {
        strv_push_nodup(words, xstrndup(line, n));
        return true;
    }
    bool good = take_program(&c->spawn.request, words, &pmi1);
    const char *all = strv_env_get(words, "totspawns"),
               *so_far = strv_env_get(words, "spawnssofar");
    if (!good || !all || !so_far || atoi(so_far) >= atoi(all))
        send_request(c, good);
    strv_finish(words);
    return true;
}

void pmi_spawn_words(struct pmi_client *c, const struct pmi_request *r)
{
    struct strv *words = &c->spawn.words;
    bool good = true;
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->words[i].name, pmi2.program) == 0 &&
            strv_env_get(words, pmi2.program)) {
            good &= take_program(&c->spawn.request, words, &pmi2);
            strv_finish(words);
        }
        strv_pushf(words, "%s=%s", r->words[i].name, r->words[i].value);
    }
    good &= take_program(&c->spawn.request, words, &pmi2);
    send_request(c, good);
}

void pmi_spawn_result(struct pmi_server *s, const struct msg_spawn_result *m)
{
    for (uint32_t i = 0; i < s->nlocal; i++) {
        struct pmi_client *c = &s->clients[i];
        if (c->rank != m->rank || !c->spawn.asks || c->spawn.id != m->id)
            continue;
        c->spawn.asks = false;
        free(c->thread);
        c->thread = c->spawn.thread;
        c->spawn.thread = NULL;
        pmi_dialect_of(c)->spawned(c, m->job);
    }
}

void pmi_spawn_forget(struct pmi_client *c)
{
    forget(c);
    free(c->spawn.thread);
    c->spawn.thread = NULL;
    c->spawn.asks = false;
}
