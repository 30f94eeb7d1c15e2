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

void layers_each_product(struct layers *net, struct layers_plan *p, product_fn one,
                         void *arg)
{
    for (int i = net->from; i < products_end(net) && p->n > 0; i++) {
        const struct layer *l = &net->layers[i];
        struct site at = {layer_ops[l->spec->kind].products, l, &p->layers[i], 0, ""};
        for (; at.of && at.plan->n > 0 && at.pass < PASSES; at.pass++) {
            if (!has_product(l, at.pass) || cuda_failed())
                continue;
            cuda_doing("'%s'%s", l->spec->name, net->settings.where);
            at.of->key(net, l, at.plan->n, at.pass, at.key, sizeof at.key);
            one(net, &at, arg);
        }
    }
}

/* Makes the plan take the first algorithm from this place of the list on that it can. */
static bool take(struct layers *net, const struct site *at, int place)
{
    int rc = 0;
    struct algorithm *how = &at->plan->how[at->pass];
    for (how->place = place; rc == 0; how->place += rc == 0)
        rc = at->of->build(net, at->layer, at->plan, at->pass, how);
    return rc > 0;
}

/* Runs a product with its algorithm, or else with the first one of the library's list
 * that works, which the plan keeps: a library may refuse what it recommends. */
static void settle(struct layers *net, const struct site *at, void *arg)
{
    struct ddp_err first;
    struct algorithm *how = &at->plan->how[at->pass];
    at->of->play(net, at->layer, at->plan, at->pass);
    if (cuda_outcome(&first) == 0)
        return;
    for (int next = 0; take(net, at, next); next = how->place + 1) {
        cudaGetLastError();
        at->of->play(net, at->layer, at->plan, at->pass);
        if (cuda_outcome(NULL) == 0)
            return;
    }
    cuda_outcome(NULL); /* the end of the list */
    cuda_fail("%s", first.text);
}

void layers_settle(struct layers *net, struct layers_plan *p, float *grads)
{
    net->grads = grads;
    layers_each_product(net, p, settle, NULL);
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
    bool taken = how.place >= 0 && how.place != mine->place &&
                 at->of->build(net, at->layer, at->plan, at->pass, &how) > 0;
    cuda_outcome(NULL);
    if (taken)
        *mine = how;
    return taken;
}

/* A graph of cuDNN is the net's, for equal products. */
static void describe(struct layers *net, const struct site *at, struct product *p)
{
    at->of->describe(net, at->layer, at->plan, at->pass);
    if (!p->graph)
        return;
    p->graph->key = xstrdup(at->key);
    p->graph->next = net->graphs;
    net->graphs = p->graph;
}

static void plan_product(struct layers *net, const struct site *at, void *arg)
{
    struct product *p = &at->plan->products[at->pass];
    for (struct dnn_graph *g = net->graphs; g && !p->graph; g = g->next)
        p->graph = strcmp(g->key, at->key) == 0 ? g : NULL;
    if (!p->graph)
        describe(net, at, p);
    at->plan->how[at->pass].place = -1;
    if (!cuda_failed() && !take_chosen(net, at))
        take(net, at, 0);
}

static void choose_again(struct layers *net, const struct site *at, void *arg)
{
    *(bool *)arg |= take_chosen(net, at);
}

void layers_choose(struct layers *net, char *const *choices, float *grads)
{
    net->choices = choices;
    for (struct layers_plan *p = net->plans; p; p = p->next) {
        bool changed = false;
        layers_each_product(net, p, choose_again, &changed);
        if (changed)
            layers_settle(net, p, grads);
    }
}

/* The number of rows of logits in this layer, for n samples. */
static int logits_rows(const struct layers *net, const struct layer *l, int n)
{
    size_t all = (size_t)n * net->layers[0].rows;
    bool whole = l == &net->layers[net->nlayers];
    return (int)(!whole ? all % net->piece : all < net->piece ? 0 : net->piece);
}

struct layers_plan *layers_plan(struct layers *net, int n)
{
    if (net->of)
        return layers_plan(net->of, n);
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
    layers_each_product(net, p, plan_product, NULL);
    if (cuda_failed()) {
        plan_free(net, p);
        return NULL;
    }
    p->next = net->plans;
    net->plans = p;
    return p;
}

void layers_forget_plans(struct layers *net)
{
    for (struct layers_plan *p = net->plans, *next; p; p = next) {
        next = p->next;
        plan_free(net, p);
    }
    for (struct dnn_graph *g = net->graphs, *next; g; g = next) {
        next = g->next;
        dnn_graph_free(g);
    }
}
