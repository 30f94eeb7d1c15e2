/* worker/nn/gpt2.c - GPT-2 of a given size
 *
 * Radford et al., "Language models are unsupervised multitask learners", 2019. Names,
 * shapes and layout of the parameters are those of Hugging Face's files of `gpt2`.
 */
#include "worker/nn/description.h"

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

static void write_block(FILE *out, int i, const struct sizes *s)
{
    fprintf(out,
            "h.%d.ln_1 layer_norm\n"
            "h.%d.attn.c_attn dense outputs=%d\n"
            "h.%d.attn attention heads=%d\n"
            "h.%d.attn.c_proj dense outputs=%d add=",
            i, i, 3 * s->width, i, s->heads, i, s->width);
    if (i == 0)
        fprintf(out, "wte\n");
    else
        fprintf(out, "h.%d.mlp.c_proj\n", i - 1);
    fprintf(out,
            "h.%d.ln_2 layer_norm\n"
            "h.%d.mlp.c_fc dense outputs=%d\n"
            "h.%d.mlp.gelu gelu\n"
            "h.%d.mlp.c_proj dense outputs=%d add=h.%d.attn.c_proj\n",
            i, i, 4 * s->width, i, i, s->width, i);
}

struct model_type *gpt2_make(const char *name, struct ddp_err *err)
{
    struct sizes s = {12, 12, 768, 1024, 50257};
    if (name[4] && read_sizes(name + 5, &s, err) < 0)
        return NULL;
    char *text = NULL;
    size_t size;
    FILE *out = xmemstream(&text, &size);
    fprintf(out,
            "task = tokens\n"
            "optimizer = adamw\n"
            "context = %d\n"
            "vocabulary = %d\n"
            "wte embed outputs=%d\n",
            s.context, s.vocab, s.width);
    for (int i = 0; i < s.layers; i++)
        write_block(out, i, &s);
    fprintf(out, "ln_f layer_norm\n");
    xmemclose(out);
    struct model_type *type = description_read(name, name, text, err);
    free(text);
    return type;
}
