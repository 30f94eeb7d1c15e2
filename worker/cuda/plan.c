/* worker/cuda/plan.c - see layers.h: plans, the products of n samples and their
 * algorithms
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void product_free(const struct product *p)
{
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->d};
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    }
}

static void plan_free(const struct layers *net, struct layers_plan *p)
{
    for (int i = 0; i < (net->nlayers + LOGITS) * PASSES; i++)
        product_free(&p->layers[i / PASSES].products[i % PASSES]);
    free(p);
}

int layers_each_product(struct layers *net, struct layers_plan *p, product_fn one,
                        void *arg, struct ddp_err *err)
{
    for (int i = net->from; i < products_end(net) && p->n > 0; i++) {
        const struct layer *l = &net->layers[i];
        struct site at = {l->op->products, l, &p->layers[i], 0, ""};
        for (; at.of && at.plan->n > 0 && at.pass < PASSES; at.pass++) {
            if (!has_product(l, at.pass))
                continue;
            at.of->key(net, l, at.plan->n, at.pass, at.key, sizeof at.key);
            int rc = one(net, &at, arg, err);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* Makes the plan take the first algorithm from this place of the list on that it can. */
static int take(struct layers *net, const struct site *at, int place, struct ddp_err *err)
{
    int rc = 0;
    struct algorithm *how = &at->plan->how[at->pass];
    for (how->place = place; rc == 0; how->place += rc == 0)
        rc = at->of->build(net, at->layer, at->plan, at->pass, how, err);
    return rc < 0 ? -1 : 0;
}

/* Runs a product with its algorithm, or else with the first one of the library's list
 * that works, which the plan keeps: a library may refuse what it recommends. */
static int settle(struct layers *net, const struct site *at, void *arg,
                  struct ddp_err *err)
{
    struct ddp_err ignored;
    struct algorithm *how = &at->plan->how[at->pass];
    int rc = at->of->play(net, at->layer, at->plan, at->pass, err);
    for (int next = 0; rc < 0 && take(net, at, next, &ignored) == 0;
         next = how->place + 1) {
        cudaGetLastError();
        rc = at->of->play(net, at->layer, at->plan, at->pass, &ignored);
    }
    return rc;
}

int layers_settle(struct layers *net, struct layers_plan *p, float *grads,
                  struct ddp_err *err)
{
    net->grads = grads;
    return layers_each_product(net, p, settle, NULL, err);
}

int layers_chosen(const char *choices, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = choices; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == '=' &&
            isdigit((unsigned char)line[n + 1]))
            return atoi(line + n + 1);
    }
    return -1;
}

/* True if the product's algorithm has become the one that was chosen. */
static bool take_chosen(struct layers *net, const struct site *at)
{
    struct algorithm *mine = &at->plan->how[at->pass];
    const char *choices = net->choices ? *net->choices : NULL;
    struct algorithm how = {.place = layers_chosen(choices, at->key)};
    struct ddp_err ignored;
    bool taken = how.place >= 0 && how.place != mine->place &&
                 at->of->build(net, at->layer, at->plan, at->pass, &how, &ignored) > 0;
    if (taken)
        *mine = how;
    return taken;
}

static int plan_product(struct layers *net, const struct site *at, void *arg,
                        struct ddp_err *err)
{
    TRY(at->of->describe(net, at->layer, at->plan, at->pass, at->key, err));
    at->plan->how[at->pass].place = -1;
    return take_chosen(net, at) ? 0 : take(net, at, 0, err);
}

static int choose_again(struct layers *net, const struct site *at, void *arg,
                        struct ddp_err *err)
{
    *(bool *)arg |= take_chosen(net, at);
    return 0;
}

int layers_choose(struct layers *net, char *const *choices, float *grads,
                  struct ddp_err *err)
{
    net->choices = choices;
    for (struct layers_plan *p = net->plans; p; p = p->next) {
        bool changed = false;
        TRY(layers_each_product(net, p, choose_again, &changed, err));
        if (changed)
            TRY(layers_settle(net, p, grads, err));
    }
    return 0;
}

struct layers_plan *layers_plan(struct layers *net, int n, struct ddp_err *err)
{
    if (net->of)
        return layers_plan(net->of, n, err);
    struct layers_plan *p = net->plans;
    while (p && p->n != n)
        p = p->next;
    if (p)
        return p;
    size_t layers = (size_t)net->nlayers + LOGITS;
    p = xcalloc(1, sizeof *p + layers * sizeof *p->layers);
    p->n = n;
    for (int i = net->from; i < products_end(net); i++)
        p->layers[i].n = i < net->nlayers ? n : logits_rows(net, &net->layers[i], n);
    if (layers_each_product(net, p, plan_product, NULL, err) < 0) {
        plan_free(net, p);
        return NULL;
    }
    p->next = net->plans;
    net->plans = p;
    return p;
}

struct dnn_graph **layers_graph(struct layers *net, const char *key)
{
    size_t k = 0;
    while (k < net->nbuilt && strcmp(net->built[k].key, key) != 0)
        k++;
    if (k == net->nbuilt) {
        net->built = xrealloc(net->built, net->nbuilt + 1, sizeof *net->built);
        net->built[net->nbuilt++] = (struct built){xstrdup(key), NULL};
    }
    return &net->built[k].graph;
}

void layers_forget_plans(struct layers *net)
{
    while (net->plans) {
        struct layers_plan *p = net->plans;
        net->plans = p->next;
        plan_free(net, p);
    }
    for (size_t k = 0; k < net->nbuilt; k++) {
        if (net->built[k].graph)
            dnn_graph_free(net->built[k].graph);
        free(net->built[k].key);
    }
    free(net->built);
}
