/* worker/cuda/autotune_apply.c - see layers_impl.h: the products of a plan, and the
 * chosen algorithms that they use
 */
#include "worker/cuda/layers_impl.h"

#include <stdlib.h>
#include <string.h>

int layers_each_product(struct layers *net, const struct layers_plan *p, product_fn one,
                        void *arg, struct ddp_err *err)
{
    char key[PRODUCT_KEY];
    for (int i = net->from; i < products_end(net) && p->n > 0; i++) {
        struct site at = {net->layers[i].op->products, &p->layers[i], i, 0, key};
        for (; at.of && at.plan->n > 0 && at.pass < PASSES; at.pass++) {
            if (!at.of->has(net, i, at.pass))
                continue;
            at.of->key(net, i, at.plan, at.pass, key, sizeof key);
            int rc = one(net, &at, arg, err);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

const struct tuned *tuned_find(const struct layers *net, const char *key)
{
    for (size_t i = 0; i < net->nchosen; i++) {
        if (strcmp(net->chosen[i].key, key) == 0)
            return &net->chosen[i];
    }
    return NULL;
}

static int take_chosen(struct layers *net, const struct site *at, void *arg,
                       struct ddp_err *err)
{
    struct layers_plan *into = arg;
    const struct tuned *found = tuned_find(net, at->key);
    if (found)
        into->layers[at->layer].how[at->pass] = found->how;
    return 0;
}

void tuned_take(struct layers *net, struct layers_plan *p)
{
    struct ddp_err ignored;
    if (net->nchosen > 0)
        layers_each_product(net, p, take_chosen, p, &ignored);
}

void tuned_free(struct layers *net)
{
    for (size_t i = 0; i < net->nchosen; i++)
        free(net->chosen[i].key);
    free(net->chosen);
}
