/* The text of --sample: how much is computed for a token, and which are drawn. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/nn/train_step.h"
#include "worker/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 8, BEYOND = 3, NORMS = 3, BYTES = 128, TOKENS = 300 };

static const struct kernels *real;
static int rows; /* that norms had */

static void count_rows(struct row_norm f, int n, const float *x, float *y, float *kept)
{
    rows += n;
    real->row_norm(f, n, x, y, kept);
}

/* Of many tokens the last one is the most probable by far. */
static void prefer_the_last(const struct gemm *g, float *room)
{
    real->gemm(g, room);
    if (g->N == TOKENS)
        g->c[TOKENS - 1] = 1e6f;
}

/* The text that a model writes after "abc". */
static char *sample(int vocabulary)
{
    struct ddp_err err;
    struct train_config c = {.prompt = "abc", .sample = CONTEXT - 2 + BEYOND};
    struct run run = {.c = &c, .data.token_bytes = 1};
    FILE *out = stdout;
    char *text, *name = xasprintf("gpt2:layers=1,heads=1,width=8,context=%d,vocab=%d",
                                  CONTEXT, vocabulary);
    size_t size;
    real = kernels_get(NULL, PRECISION_FP32, &err);
    struct kernels mine = *real;
    mine.row_norm = count_rows;
    mine.gemm = prefer_the_last;
    run.data.shape = (struct io_shape){1, 1, CONTEXT, vocabulary};
    run.model = model_create(name, run.data.shape, 1, &mine, &err);
    ck_assert_msg(run.model != NULL, "%s", err.text);
    ck_ok(run_read_prompt(&run, &err), err);
    stdout = run.progress.out = xmemstream(&text, &size);
    run_sample(&run);
    fclose(stdout);
    stdout = out;
    model_destroy(run.model);
    free(run.prompt);
    free(name);
    return text;
}

/* One row while the text fits the context, later all of them. */
TEST(only_new_rows_are_computed)
{
    free(sample(BYTES));
    ck_assert_int_eq(rows, NORMS * (CONTEXT + BEYOND * CONTEXT));
}

/* A model may have more tokens than there are bytes. */
TEST(a_text_has_bytes)
{
    char *text = sample(TOKENS), *at = strstr(text, "abc");
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_lt(strspn(at + 3, (char[]){(TOKENS - 1) & 255, 0}), BEYOND);
    free(text);
}
