/* launcher/plugins/mpi/pmix_world.c - see pmix_world.h
 *
 * These calls block, but briefly: no rank is connected yet, so libpmix waits only for its
 * own thread.
 */
#include "launcher/plugins/mpi/pmix_world.h"

#include "common/apps.h"
#include "common/err.h"
#include "common/mem.h"
#include "launcher/plugins/mpi/pmix_list.h"

#include <pmix.h>
#include <pmix_server.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(pmix_status_t rc, const char *what, struct ddp_err *err)
{
    return err_set(err, "PMIx cannot %s: %s", what, PMIx_Error_string(rc));
}

static void add_u32(struct pmix_list *list, const char *key, uint32_t v)
{
    pmix_list_add(list, key, &v, PMIX_UINT32);
}

static void add_u16(struct pmix_list *list, const char *key, uint16_t v)
{
    pmix_list_add(list, key, &v, PMIX_UINT16);
}

static void add_rank(struct pmix_list *list, const char *key, pmix_rank_t v)
{
    pmix_list_add(list, key, &v, PMIX_PROC_RANK);
}

static void add_text(struct pmix_list *list, const char *key, const char *v)
{
    pmix_list_add(list, key, v, PMIX_STRING);
}

static char *peers_of(const struct rankmap_node *n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&text, &size);
    for (size_t i = 0, k = 0; i < n->ranks.n; i++) {
        for (int r = n->ranks.spans[i].lo; r <= n->ranks.spans[i].hi; r++)
            fprintf(f, "%s%d", k++ ? "," : "", r);
    }
    xmemclose(f);
    return text;
}

static void add_proc(struct pmix_list *list, const struct rankmap *map,
                     const struct strv *apps, uint32_t node, uint32_t rank,
                     uint32_t local)
{
    unsigned first, app = apps_of(apps, rank, &first);
    struct pmix_list proc = {0};
    add_rank(&proc, PMIX_RANK, rank); /* must be the first entry */
    add_rank(&proc, PMIX_GLOBAL_RANK, rank);
    add_rank(&proc, PMIX_APP_RANK, rank - first);
    add_u32(&proc, PMIX_APPNUM, app);
    add_u16(&proc, PMIX_LOCAL_RANK, (uint16_t)local);
    add_u16(&proc, PMIX_NODE_RANK, (uint16_t)local);
    add_u32(&proc, PMIX_NODEID, node);
    add_text(&proc, PMIX_HOSTNAME, map->nodes[node].host);
    pmix_list_add_list(list, PMIX_PROC_DATA, &proc);
}

static void add_node(struct pmix_list *list, const struct rankmap *map,
                     const struct strv *apps, uint32_t node)
{
    const struct rankmap_node *n = &map->nodes[node];
    OWNED char *peers = peers_of(n);
    struct pmix_list info = {0};
    add_text(&info, PMIX_HOSTNAME, n->host);
    add_u32(&info, PMIX_NODEID, node);
    add_u32(&info, PMIX_LOCAL_SIZE, n->nranks);
    add_u32(&info, PMIX_NODE_SIZE, n->nranks);
    add_rank(&info, PMIX_LOCALLDR, (pmix_rank_t)n->ranks.spans[0].lo);
    add_text(&info, PMIX_LOCAL_PEERS, peers);
    pmix_list_add_list(list, PMIX_NODE_INFO_ARRAY, &info);
    uint32_t local = 0;
    for (size_t i = 0; i < n->ranks.n; i++) {
        for (int r = n->ranks.spans[i].lo; r <= n->ranks.spans[i].hi; r++)
            add_proc(list, map, apps, node, (uint32_t)r, local++);
    }
}

/* libpmix may compress long lists to a blob that contains zero bytes: use PMIX_REGEX. */
static int add_maps(struct pmix_list *list, const struct rankmap *map,
                    struct ddp_err *err)
{
    OWNED char *names = NULL, *sets = NULL, *regex = NULL, *ppn = NULL;
    size_t nnames, nsets;
    FILE *f = xmemstream(&names, &nnames), *g = xmemstream(&sets, &nsets);
    for (uint32_t i = 0; i < map->nnodes; i++) {
        OWNED char *peers = peers_of(&map->nodes[i]);
        fprintf(f, "%s%s", i ? "," : "", map->nodes[i].host);
        fprintf(g, "%s%s", i ? ";" : "", peers);
    }
    xmemclose(f);
    xmemclose(g);
    pmix_status_t rc = PMIx_generate_regex(names, &regex);
    if (rc == PMIX_SUCCESS)
        rc = PMIx_generate_ppn(sets, &ppn);
    if (rc == PMIX_SUCCESS) {
        pmix_list_add(list, PMIX_NODE_MAP, regex, PMIX_REGEX);
        pmix_list_add(list, PMIX_PROC_MAP, ppn, PMIX_REGEX);
    }
    return rc == PMIX_SUCCESS ? 0 : failed(rc, "write down the map", err);
}

static int add_job(struct pmix_list *list, const struct msg_serve *s,
                   const struct rankmap *map, const char *dir, struct ddp_err *err)
{
    const struct rankmap_node *here = &map->nodes[s->node];
    OWNED char *peers = peers_of(here);
    add_text(list, PMIX_JOBID, s->nspace);
    add_u32(list, PMIX_UNIV_SIZE, s->nslots);
    add_u32(list, PMIX_MAX_PROCS, s->nranks);
    add_u32(list, PMIX_JOB_SIZE, s->nranks);
    add_u32(list, PMIX_JOB_NUM_APPS, (uint32_t)s->apps.n + 1);
    add_u32(list, PMIX_NUM_NODES, map->nnodes);
    add_u32(list, PMIX_NODEID, s->node);
    add_u32(list, PMIX_NODE_SIZE, here->nranks);
    add_u32(list, PMIX_LOCAL_SIZE, here->nranks);
    add_text(list, PMIX_LOCAL_PEERS, peers);
    add_rank(list, PMIX_LOCALLDR, (pmix_rank_t)here->ranks.spans[0].lo);
    add_text(list, PMIX_TMPDIR, dir);
    add_text(list, PMIX_NSDIR, dir);
    return add_maps(list, map, err);
}

static int register_nspace(const char *nspace, uint32_t nlocal, struct pmix_list *list,
                           struct ddp_err *err)
{
    pmix_status_t rc =
        PMIx_server_register_nspace(nspace, (int)nlocal, list->v, list->n, NULL, NULL);
    bool good = rc == PMIX_SUCCESS || rc == PMIX_OPERATION_SUCCEEDED;
    return good ? 0 : failed(rc, "register a job", err);
}

static int register_clients(const struct msg_serve *s, const struct rankmap *map,
                            struct ddp_err *err)
{
    const struct idset *ranks = &map->nodes[s->node].ranks;
    pmix_proc_t proc;
    for (size_t i = 0; i < ranks->n; i++) {
        for (int r = ranks->spans[i].lo; r <= ranks->spans[i].hi; r++) {
            PMIX_LOAD_PROCID(&proc, s->nspace, (pmix_rank_t)r);
            pmix_status_t rc = PMIx_server_register_client(&proc, geteuid(), getegid(),
                                                           NULL, NULL, NULL);
            if (rc != PMIX_SUCCESS && rc != PMIX_OPERATION_SUCCEEDED)
                return failed(rc, "register a rank", err);
        }
    }
    return 0;
}

int pmix_world_register(const struct msg_serve *s, const struct rankmap *map,
                        const char *dir, struct ddp_err *err)
{
    struct pmix_list list = {0};
    int rc = add_job(&list, s, map, dir, err);
    for (uint32_t i = 0; rc == 0 && i < map->nnodes; i++)
        add_node(&list, map, &s->apps, i);
    if (rc == 0)
        rc = register_nspace(s->nspace, map->nodes[s->node].nranks, &list, err);
    pmix_list_finish(&list);
    return rc < 0 ? rc : register_clients(s, map, err);
}

int pmix_world_add(const char *nspace, uint32_t nranks, const struct strv *lines,
                   struct ddp_err *err)
{
    static const struct strv one_program = {0};
    SCOPED(rankmap_finish) struct rankmap map = {0};
    struct pmix_list list = {0};
    int rc = rankmap_read(&map, lines, nranks, err);
    add_text(&list, PMIX_JOBID, nspace);
    add_u32(&list, PMIX_UNIV_SIZE, nranks);
    add_u32(&list, PMIX_JOB_SIZE, nranks);
    add_u32(&list, PMIX_NUM_NODES, map.nnodes);
    if (rc == 0)
        rc = add_maps(&list, &map, err);
    for (uint32_t i = 0; rc == 0 && i < map.nnodes; i++)
        add_node(&list, &map, &one_program, i);
    if (rc == 0)
        rc = register_nspace(nspace, 0, &list, err);
    pmix_list_finish(&list);
    return rc;
}
