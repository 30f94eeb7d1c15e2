/* worker/nn/gpt2.c - GPT-2, of the sizes given
 *
 * Radford et al., "Language models are unsupervised multitask learners", 2019. Names,
 * shapes and layout of the parameters are those of the files that Hugging Face's `gpt2`
 * is published as.
 */
#include "worker/nn/model.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sizes {
    int layers, heads, width, context, vocab;
};

/* "layers=4,heads=4" */
static int read_sizes(const char *text, struct sizes *s, struct ddp_err *err)
{
    const struct {
        const char *name;
        int *at, most;
    } rows[] = {{"layers", &s->layers, 1000},
                {"heads", &s->heads, 1024},
                {"width", &s->width, 65536},
                {"context", &s->context, 65536},
                {"vocab", &s->vocab, 1 << 24}};
    for (const char *at = text; *at; at += strcspn(at, ",")) {
        at += *at == ',';
        size_t i = 0, len = strcspn(at, "=");
        while (i < ARRAY_LEN(rows) &&
               (strlen(rows[i].name) != len || strncmp(rows[i].name, at, len) != 0))
            i++;
        bool known = i < ARRAY_LEN(rows) && at[len] == '=';
        char *end = NULL;
        long value = known ? strtol(at + len + 1, &end, 10) : 0;
        if (!known || (*end && *end != ',') || value < 1 || value > rows[i].most)
            return err_set(err,
                           "model gpt2: '%.*s' is not layers, heads, width, context or "
                           "vocab with '=' and a number",
                           (int)strcspn(at, ","), at);
        *rows[i].at = (int)value;
    }
    if (s->width % s->heads != 0)
        return err_set(err, "model gpt2: a width of %d cannot be shared by %d heads",
                       s->width, s->heads);
    return 0;
}

const struct model_type *gpt2_make(const char *text, struct ddp_err *err)
{
    struct sizes s = {12, 12, 768, 1024, 50257};
    if (text[4] && read_sizes(text + 5, &s, err) < 0)
        return NULL;
    const struct layer_spec block[] = {
        {LAYER_LAYER_NORM, "ln_1"},
        {LAYER_DENSE, "attn.c_attn", .outputs = 3 * s.width},
        {LAYER_ATTENTION, "attn", .size = s.heads},
        {LAYER_DENSE, "attn.c_proj", .outputs = s.width, .shortcut = 4},
        {LAYER_LAYER_NORM, "ln_2"},
        {LAYER_DENSE, "mlp.c_fc", .outputs = 4 * s.width},
        {LAYER_GELU, "mlp.gelu"},
        {LAYER_DENSE, "mlp.c_proj", .outputs = s.width, .shortcut = 4},
    };
    size_t n = 0;
    struct layer_spec *layers =
        xcalloc((size_t)s.layers * ARRAY_LEN(block) + 3, sizeof *layers);
    layers[n++] = (struct layer_spec){LAYER_EMBED, xstrdup("wte"), .outputs = s.width};
    for (int i = 0; i < s.layers; i++)
        for (size_t k = 0; k < ARRAY_LEN(block); k++) {
            layers[n] = block[k];
            layers[n++].name = xasprintf("h.%d.%s", i, block[k].name);
        }
    layers[n++] = (struct layer_spec){LAYER_LAYER_NORM, xstrdup("ln_f")};
    struct model_type *type = xcalloc(1, sizeof *type);
    *type = (struct model_type){.name = xstrdup(text),
                                .task = TASK_TOKENS,
                                .optimizer = "adamw",
                                .layers = layers,
                                .context = s.context,
                                .vocabulary = s.vocab,
                                .made = true};
    return type;
}
