/* launcher/link/rankmap.c - see rankmap.h */
#include "launcher/link/rankmap.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

void rankmap_push(struct strv *map, const char *host, const int *ranks, int n)
{
    SCOPED(idset_finish) struct idset set = {0};
    for (int i = 0; i < n; i++)
        idset_add(&set, ranks[i], ranks[i]);
    OWNED char *text = idset_text(&set);
    strv_pushf(map, "%s %s", text, host);
}

void *rankmap_pack(const struct strv *map, size_t *n, uint32_t *size)
{
    size_t all = 0;
    for (size_t i = 0; i < map->n; i++)
        all += strlen(map->v[i]) + 1;
    OWNED char *text = xcalloc(all + 1, 1);
    char *end = text;
    for (size_t i = 0; i < map->n; i++) {
        end = stpcpy(end, map->v[i]);
        *end++ = '\n';
    }
    uLongf packed = compressBound(all);
    void *data = xcalloc(packed, 1);
    if (compress2(data, &packed, (Bytef *)text, all, Z_DEFAULT_COMPRESSION) != Z_OK)
        abort(); /* out of memory, as in mem.h */
    *n = packed;
    *size = (uint32_t)all;
    return data;
}

int rankmap_unpack(const void *data, size_t n, uint32_t size, struct strv *map,
                   struct ddp_err *err)
{
    OWNED char *text = xcalloc((size_t)size + 1, 1);
    char *save = NULL;
    uLongf all = size;
    if (uncompress((Bytef *)text, &all, data, n) != Z_OK || all != size)
        return err_set(err, "the rank map is garbled");
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        strv_push(map, line);
    return 0;
}

static int read_node(struct rankmap *m, uint32_t node, const char *text,
                     struct ddp_err *err)
{
    struct rankmap_node *n = &m->nodes[node];
    size_t len = strcspn(text, " ");
    if (text[len] != ' ' || text[len + 1] == '\0')
        return err_set(err, "no host name in the rank map: '%s'", text);
    n->host = text + len + 1;
    OWNED char *ranks = xstrndup(text, len);
    TRY(idset_parse(ranks, &n->ranks, err));
    for (size_t i = 0; i < n->ranks.n; i++) {
        const struct idspan *s = &n->ranks.spans[i];
        for (int r = s->lo; r <= s->hi; r++, n->nranks++) {
            if ((uint32_t)r >= m->nranks || m->node_of[r] != UINT32_MAX)
                return err_set(err, "rank %d is twice in the map, or not of the job", r);
            m->node_of[r] = node;
        }
    }
    return 0;
}

int rankmap_read(struct rankmap *m, const struct strv *map, uint32_t nranks,
                 struct ddp_err *err)
{
    *m = (struct rankmap){.nnodes = (uint32_t)map->n, .nranks = nranks};
    m->nodes = xcalloc(map->n + 1, sizeof *m->nodes);
    m->node_of = xcalloc(nranks + 1, sizeof *m->node_of);
    memset(m->node_of, 0xff, nranks * sizeof *m->node_of);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < map->n; i++) {
        if (read_node(m, i, map->v[i], err) < 0) {
            rankmap_finish(m);
            return -1;
        }
        seen += m->nodes[i].nranks;
    }
    if (seen == nranks)
        return 0;
    rankmap_finish(m);
    return err_set(err, "a map of %u ranks for a job of %u", seen, nranks);
}

void rankmap_finish(struct rankmap *m)
{
    for (uint32_t i = 0; m->nodes && i < m->nnodes; i++)
        idset_finish(&m->nodes[i].ranks);
    free(m->nodes);
    free(m->node_of);
    *m = (struct rankmap){0};
}
