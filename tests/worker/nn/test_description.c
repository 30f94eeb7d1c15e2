/* Models that are described by a text: what they compute, and what is refused. */
#include "tests/support/suite.h"

#include "common/err.h"
#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "tests/worker/nn/train_step.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "task = classify\noptimizer = sgd\n"

/* ---- gradients ---- */

/* Those of tokens with dropout, which is the same at each step with the same seed. */
static const struct {
    const char *path;
    struct io_shape io;
    bool tokens;
} nets[] = {{MODELS "/chain.model", {2, 17, 14, 5}, false},
            {MODELS "/branches.model", {3, 12, 9, 4}, false},
            {MODELS "/bottleneck.model", {1, 8, 8, 3}, false},
            {"gpt2:layers=2,heads=3,width=15,context=70,vocab=37,dropout=0.3",
             {1, 1, 70, 37},
             true},
            {"llama:layers=2,heads=4,kv_heads=2,width=24,context=70,vocab=37,dropout=0.3",
             {1, 1, 70, 37},
             true}};

static float loss_at(struct model *m, const struct batch *b)
{
    return train_step(m, (struct model_pass){.batch = b, .scale = 1, .seed = 1});
}

/* Along each parameter's gradient the loss rises as fast as the gradient is long. */
static void check_gradients(struct model *m, const struct batch *b)
{
    static const double step = 2e-3;
    size_t count = m->count;
    const struct param *params = m->params;
    size_t nparams = m->nparams;
    float *w = m->weights, *first = xcalloc(count, sizeof *first);
    loss_at(m, b);
    memcpy(first, model_grads(m), count * sizeof *first);
    for (const struct param *p = params; p < params + nparams; p++) {
        const float *g = first + p->offset;
        double length = 0, ends[2];
        for (size_t i = 0; i < p->count; i++)
            length += (double)g[i] * (double)g[i];
        length = sqrt(length);
        float *kept = xcalloc(p->count, sizeof *kept);
        memcpy(kept, w + p->offset, p->count * sizeof *kept);
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < p->count; i++)
                w[p->offset + i] = (float)((double)kept[i] +
                                           (side ? step : -step) * (double)g[i] / length);
            ends[side] = (double)loss_at(m, b);
        }
        memcpy(w + p->offset, kept, p->count * sizeof *kept);
        free(kept);
        ck_assert_double_gt(length, 0);
        ck_assert_msg(fabs((ends[1] - ends[0]) / (2 * step) - length) <=
                          0.05 * length + 2e-4,
                      "%s: the loss rises by %g, the gradient is %g", p->name,
                      (ends[1] - ends[0]) / (2 * step), length);
    }
    free(first);
}

/* It is drawn from (seed, draw), and only in training. */
static void check_dropout(struct model *m, const struct batch *b)
{
    int correct;
    float with = loss_at(m, b), test = model_evaluate(m, b, &correct);
    ck_assert(loss_at(m, b) == with);
    ck_assert(train_step(m, (struct model_pass){.batch = b, .scale = 1, .seed = 2}) !=
              with);
    ck_assert(train_step(m, (struct model_pass){
                                .batch = b, .scale = 1, .seed = 1, .draw = 1}) != with);
    m->dropout = false;
    ck_assert(test != with && fabsf(loss_at(m, b) - test) < 1e-6f * test);
}

LOOP_TEST(gradients_are_slopes, ARRAY_LEN(nets) * MAX_ENGINES)
{
    int which = _i / MAX_ENGINES, engine = _i % MAX_ENGINES;
    if (engine >= nengines())
        return;
    struct ddp_err err = {""};
    struct io_shape io = nets[which].io;
    size_t in = (size_t)(4 * io.C * io.H * io.W);
    float *x = xcalloc(in, sizeof *x);
    uint32_t labels[4];
    for (size_t i = 0; i < in; i++)
        x[i] = 2 * rng_uniform(11, i) - 1;
    for (int i = 0; i < 4; i++)
        labels[i] = (uint32_t)(i % io.outputs);
    uint32_t tokens[4 * 71];
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++)
        tokens[i] = (uint32_t)(rng_word(13, i) % 37);
    struct model *m = model_create(nets[which].path, io, 4, engine_at(engine), &err);
    ck_ok(m ? 0 : -1, err);
    model_init(m, 3);
    for (size_t i = 0; nets[which].tokens && i < m->count; i++)
        m->weights[i] += 0.4f * rng_uniform(8, i) - 0.2f; /* no gradient is small */
    m->dropout = nets[which].tokens;
    struct batch b = {.x = x, .labels = labels, .tokens = tokens, .n = 4};
    check_gradients(m, &b);
    if (nets[which].tokens)
        check_dropout(m, &b);
    model_destroy(m);
    free(x);
}

/* ---- the models that are carried inside ---- */

static const struct {
    const char *name;
    struct io_shape io;
    size_t params; /* torchvision's, with this stem and these classes; Hugging Face's */
} sizes[] = {
    {"resnet18", {3, 32, 32, 10}, 11173962},
    {"resnet34", {3, 32, 32, 10}, 21282122},
    {"resnet50", {3, 32, 32, 10}, 23520842},
    {"gpt2", {1, 1, 1024, 50257}, 124439808},
    {"llama:kv_heads=3,untied=0", {1, 1, 16, 49152}, 134515008}, /* SmolLM-135M */
    /* one layer of 16, and 256 tokens of 128,256, of Llama-3.2-1B */
    {"llama:layers=1,heads=32,kv_heads=8,width=2048,hidden=8192,vocab=256,"
     "base=500000,factor=32,original=8192,untied=0",
     {1, 1, 16, 256},
     60821504 + 257 * 2048},
};

LOOP_TEST(the_carried_models_are_of_known_size, ARRAY_LEN(sizes))
{
    struct ddp_err err = {""};
    struct model *m = model_create(sizes[_i].name, sizes[_i].io, 1,
                                   kernels_get(NULL, PRECISION_FP32, &err), &err);
    ck_ok(m ? 0 : -1, err);
    ck_assert_uint_eq(m->count, sizes[_i].params);
    model_destroy(m);
}

/* ---- what is refused ---- */

#define CONV "c conv outputs=4 size=3 bias relu\n"
#define BARE "c conv outputs=4 size=3\n"
#define TOKENS                                                        \
    "task = tokens\noptimizer = adamw\ncontext = 4\nvocabulary = 9\n" \
    "wte embed outputs=8\n"

static const struct {
    const char *text, *error; /* what it ends in */
} refused[] = {
    {"", "' describes no layers"},
    {"f linear\n", "' names no optimizer: optimizer = adam"},
    {"task = sleep\n", ":1: task is classify, regress or tokens, not 'sleep'"},
    {"task = \n", ":1: task = takes one value"},
    {"rate = 1\n",
     ":1: no setting 'rate'; there are task, optimizer, context, vocabulary"},
    {HEAD "f\n", ":3: after 'f' its kind is missing"},
    {"task=classify\n", ":1: a setting is NAME = VALUE, with blanks around the '='"},
    {"$n =3\n", ":1: a setting is NAME = VALUE, with blanks around the '='"},
    {"\xef\xbb\xbf" HEAD "f\n", ":3: after 'f' its kind is missing"}, /* BOM */
    {HEAD "f lineal\n",
     ":3: no kind of layers 'lineal'; there are conv, linear, norm, mean"},
    {HEAD "f linear outputs=x\n",
     ":3: outputs takes a whole number from 1 to 16777216, not 'x'"},
    {HEAD "f linear outputs=3x\n",
     ":3: outputs takes a whole number from 1 to 16777216, not '3x'"},
    {HEAD "f linear size=3\n",
     ":3: linear layers have no 'size'; theirs are: outputs relu "
     "dropout "},
    {HEAD "f linear relu=1\n", ":3: 'relu' takes no value"},
    {HEAD "f linear outputs\n", ":3: 'outputs' takes a value: outputs=..."},
    {HEAD "f linear relu relu\n", ":3: 'relu' is there twice"},
    {HEAD "f linear relu dropout=1\n",
     ":3: dropout takes a number from 0 to below 1, not '1'"},
    {HEAD "c conv size=3\n", ":3: conv layers need outputs=..."},
    {HEAD "f linear outputs=3\nf linear\n", ":4: there is a layer 'f' already"},
    {HEAD "f\"1 linear\n",
     ":3: a layer cannot be called 'f\"1': use no '\"' and no '\\'"},
    {HEAD "f\xe9 linear # Latin-1\n", ":3: the line is not text in UTF-8"},
    {HEAD "f\1 linear\n", ":3: the line is not text in UTF-8"},
    {HEAD "optim.ema.f linear\n",
     ":3: 'optim.' begins the names of optimizer states, not of layers"},
    {HEAD BARE "n norm add=d\n", ":4: no layer 'd' is before this one"},
    {HEAD "f linear dropout=0.5\n", ":3: 'f': dropout needs relu"},
    {HEAD "c conv outputs=4 size=3 relu\nf linear\n",
     ":3: 'c': a convolution has a bias and a ReLU, or neither"},
    {HEAD "c conv outputs=4 size=3 pad=3\nn norm\n",
     ":3: 'c': a convolution has less padding than its size"},
    {HEAD "c conv outputs=4 size=3 bias relu pool stride=2\nf linear\n",
     ":3: 'c': a convolution has no padding and stride if it has pooling"},
    {HEAD CONV "n norm\nm mean\nf linear\n",
     ":4: 'n' (norm) cannot follow c, of kind conv"},
    {HEAD "n norm\nf linear\n", ":3: 'n' (norm) cannot follow the data"},
    {HEAD BARE "n norm relu\nd conv outputs=4 size=3 bias relu\nf linear\n",
     ":5: 'd': a convolution has a bias and a ReLU like the one before it, or neither has"},
    {HEAD BARE "f linear\n", ":4: 'f' (linear) cannot follow c, of kind conv"},
    {HEAD BARE "n norm\nd conv outputs=4 size=1 from=c\nm mean\nf linear\n",
     ":4: 'n' (norm) must be the last to use the output of 'c'"},
    {HEAD BARE "n norm\nd conv outputs=5 size=1\nk norm add=n\nm mean\nf linear\n",
     ":6: 'k' cannot add 'n', which has another shape"},
    {HEAD BARE "n norm add=c\nm mean\nf linear\n",
     ":4: 'n' cannot add 'c', which is its input"},
    {HEAD BARE "n norm relu\nd conv outputs=4 size=1\nk norm\ne conv outputs=4 size=1 "
               "from=n\nl norm\nm mean\nf linear\n",
     ":6: nothing uses the output of 'k'"},
    {HEAD "f linear outputs=7\n", ":3: 'f' gives 7 numbers, but the data need 4"},
    {HEAD BARE "n norm\n", ":4: the last layer is linear, but 'n' is norm"},
    {HEAD BARE "e embed outputs=4\n",
     ":4: no kind of layers 'embed'; there are conv, linear, norm, mean"},
    {HEAD "f linear\ntask = tokens\n", ":4: task comes before the first layer"},
    {"$n = 3\n" HEAD "f linear outputs=$n\ng linear outputs=$n*$m\n",
     ":5: no size 'm' is set"},
    {HEAD "repeat 2\nf$i linear outputs=6/0\n",
     ":4: outputs takes a whole number from 1 to 16777216, not '6/0'"},
    {HEAD "repeat 2\nf$i linear outputs=2*$i\n",
     ":4: outputs takes a whole number from 1 to 16777216, not '2*0'"},
    {HEAD "repeat 2\nrepeat 2\n", ":4: the lines from 3 on are repeated already"},
    {HEAD "repeat 2\nf$i linear\n", ":5: 'repeat' in line 3 has no 'end'"},
    {HEAD "repeat 2\nf linear\nend\n", ":4: there is a layer 'f' already"},
    {HEAD "repeat 2 3\n", ":3: after 'repeat' there is too much"},
    {HEAD "end\n", ":3: 'end' ends no 'repeat'"},
    {HEAD "f linear outputs=16777216*16777216*16777216\n",
     ":3: outputs takes a whole number from 1 to 16777216, not "
     "'16777216*16777216*16777216'"},
    {HEAD "repeat 1000\na$i linear\nb$i linear\nc$i linear\nd$i linear\ne$i linear\n"
          "f$i linear\ng$i linear\nh$i linear\ni$i linear\nj$i linear\nk$i linear\nend\n",
     ":5: a model has 10000 layers at most"},
    {HEAD "repeat 0\nf linear nonsense\n end # of all\nf linear outputs=7\n",
     ":6: 'f' gives 7 numbers, but the data need 4"},
    {"task = tokens\noptimizer = adamw\nwte embed outputs=8\n",
     "' has tokens, and no context = N or vocabulary = N"},
    {TOKENS "d dense outputs=8\nk linear outputs=3 join\n",
     ":7: 'join' needs a linear layer with the same attributes before it, without 'add', "
     "and joins 4 at most"},
    {TOKENS "q linear outputs=4\nk linear outputs=4 join\nd dense outputs=8 add=k\n",
     ":8: 'k' is a part of layer 'q'; name that"},
    {"task = tokens\nwte embed outputs=8 positions=wte\n",
     ":2: positions need a name of their own, not 'wte'"},
    {"task = tokens\nwte embed outputs=8 positions=wpe\nwpe gelu\n",
     ":3: there is a layer 'wpe' already"},
    {"$a.b = 3\n", ":1: the name of a size has letters, digits and '_', not 'a.b'"},
    {TOKENS "d dense outputs=32\na attention heads=3 kv_heads=2\n",
     ":7: 'a': 32 numbers are not queries, keys and values of 3 heads, several of which "
     "share keys and values"},
    {TOKENS "d dense outputs=9\nr rotary heads=3\n",
     ":7: 'r': heads of 1 numbers have no halves"},
    {TOKENS "d dense outputs=24\nr rotary heads=2 low=4\n",
     ":7: 'r': low is not below high"},
    {TOKENS "d dense outputs=24\nr rotary heads=2 factor=0.5\n",
     ":7: factor takes a number from 1 to below 1e+06, not '0.5'"},
    {TOKENS "d dense outputs=9\ns silu gated\n", ":7: 's': 9 numbers are no two halves"},
    {TOKENS "l logits\nd dense outputs=8\n",
     ":7: 'd' (dense) cannot follow l, of kind logits"},
    {TOKENS "d dense outputs=20\na attention heads=4\n",
     ":7: 'a': 20 numbers are not queries, keys and values of 4 heads"},
    {TOKENS "d dense outputs=9\n", ":6: 'd' gives 9 numbers, but embeddings have 8"},
    {TOKENS "g gelu\nd dense outputs=8 add=wte\n",
     ":6: 'g' (gelu) must be the last to use the output of 'wte'"},
};

LOOP_TEST(mistakes_are_one_line, ARRAY_LEN(refused))
{
    struct ddp_err err = {""};
    char *path = temp_file("net.model", refused[_i].text);
    ck_assert_ptr_null(model_create(path, (struct io_shape){1, 9, 9, 4}, 4,
                                    kernels_get(NULL, PRECISION_FP32, &err), &err));
    size_t n = strlen(err.text), end = strlen(refused[_i].error);
    ck_assert_msg(n > end && strcmp(err.text + n - end, refused[_i].error) == 0, "%s",
                  err.text);
    ck_assert_ptr_nonnull(strstr(err.text, path));
    free(path);
}

TEST(a_file_that_is_not_there_is_named)
{
    struct ddp_err err = {""};
    ck_assert_ptr_null(model_type_find("./no/net.model", &err));
    ck_assert_str_eq(err.text,
                     "cannot open the model file './no/net.model': No such file "
                     "or directory");
}

TEST(a_path_may_have_a_colon_and_sizes)
{
    struct ddp_err err = {""};
    char *path = temp_file("run:1/net.model", "$n = 3\n" HEAD "f linear outputs=$n\n");
    struct model_type *plain = model_type_find(path, &err);
    ck_assert_msg(plain && plain->layers[0].outputs == 3, "%s", err.text);
    model_type_free(plain);
    free(path);
    path = temp_file("net.model", "$n = 3\n" HEAD "f linear outputs=2*$n\n");
    char *sized = xasprintf("%s:n=11/2", path); /* 5 before $n is multiplied */
    struct model_type *other = model_type_find(sized, &err);
    ck_assert_msg(other && other->layers[0].outputs == 10, "%s", err.text);
    model_type_free(other);
    free(sized);
    free(path);
}
