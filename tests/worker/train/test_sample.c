/* The text of --sample: how much is computed for a token. */
#include "tests/support/suite.h"

#include "worker/run.h"

#include <stdlib.h>

static const struct kernels *real;
static int rows; /* that norms had */

static void count_rows(struct row_norm f, int n, const float *x, float *y, float *kept)
{
    rows += n;
    real->row_norm(f, n, x, y, kept);
}

/* One row while the text fits the context, later all of them. */
TEST(only_new_rows_are_computed)
{
    enum { CONTEXT = 8, BEYOND = 3, NORMS = 3 };
    struct ddp_err err;
    struct train_config c = {.prompt = "abc", .sample = CONTEXT - 2 + BEYOND};
    struct run run = {.c = &c, .data.token_bytes = 1};
    real = kernels_get(NULL, PRECISION_FP32, &err);
    struct kernels counted = *real;
    counted.row_norm = count_rows;
    run.data.shape = (struct io_shape){1, 1, CONTEXT, 128};
    run.model = model_create("gpt2:layers=1,heads=1,width=8,context=8,vocab=128",
                             run.data.shape, 1, &counted, &err);
    ck_assert_msg(run.model != NULL, "%s", err.text);
    ck_ok(run_read_prompt(&run, &err), err);
    run_sample(&run);
    ck_assert_int_eq(rows, NORMS * (CONTEXT + BEYOND * CONTEXT));
    model_destroy(run.model);
    free(run.prompt);
}
