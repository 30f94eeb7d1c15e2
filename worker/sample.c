/* worker/sample.c - generated text, for --sample; rank 0 only
 *
 * It begins with --prompt, or the first tokens of the test part. Each further token is
 * drawn by its probability, with a temperature below 1, as is usual for models with
 * little training.
 */
#include "worker/run.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/data/random.h"
#include "worker/signals.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PROMPT = 16 };
static const double temperature = 0.8;

static uint32_t draw(const float *logits, int n, struct random *random)
{
    double most = (double)logits[0], all = 0;
    for (int i = 1; i < n; i++)
        most = fmax(most, (double)logits[i]);
    for (int i = 0; i < n; i++)
        all += exp(((double)logits[i] - most) / temperature);
    double left = random_unit(random) * all;
    for (int i = 0; i < n; i++) {
        left -= exp(((double)logits[i] - most) / temperature);
        if (left < 0)
            return (uint32_t)i;
    }
    return (uint32_t)n - 1;
}

int run_read_prompt(struct run *run, struct ddp_err *err)
{
    const struct dataset *d = &run->data;
    const char *at = run->c->prompt;
    if (run->c->sample && !at) {
        run->prompt = xcalloc((size_t)d->shape.W + 1, sizeof *run->prompt);
        run->prompt_tokens = (size_t)(d->shape.W < PROMPT ? d->shape.W : PROMPT);
        tokens_gather(d, &d->test, &(uint32_t){0}, 1, run->prompt);
    }
    if (!at)
        return 0;
    run->prompt = xcalloc(strlen(at), sizeof *run->prompt);
    for (int used = 1; *at; at += used) {
        uint32_t token = (unsigned char)*at;
        if (d->token_bytes > 1 &&
            (*at == '-' || sscanf(at, "%9" SCNu32 " %n", &token, &used) != 1))
            return err_set(err,
                           "--prompt: '%s' is not the number of a token; "
                           "examples/python/tokens.py --print makes a text's",
                           at);
        if (token >= (uint32_t)d->shape.outputs)
            return err_set(
                err,
                "--prompt: there is a token %u, and the model has a vocabulary of %d",
                token, d->shape.outputs);
        run->prompt[run->prompt_tokens++] = token;
    }
    return 0;
}

void run_sample(struct run *run)
{
    const struct dataset *d = &run->data;
    int window = d->shape.W, choice = d->shape.outputs;
    size_t n = run->prompt_tokens, all = n + (size_t)run->c->sample;
    OWNED uint32_t *tokens = xcalloc(all, sizeof *tokens);
    struct random random = random_make(run->state.seed, STREAM_SAMPLE);
    memcpy(tokens, run->prompt, n * sizeof *tokens);
    if (d->token_bytes == 1 && choice > 256) /* tokens above 255 are no bytes */
        choice = 256;
    run_tell(run, "sample", "of %zu tokens:", all);
    for (size_t i = 0; i < all && run->end != RUN_STOPPED; i++) {
        int seen = i < (size_t)window ? (int)i : window;
        int known = i > n && i <= (size_t)window ? seen - 1 : 0; /* later all move */
        if (i >= n)
            tokens[i] = draw(model_next(run->model, tokens + i - seen, known, seen),
                             choice, &random);
        if (d->token_bytes == 1)
            putchar((int)tokens[i]);
        else
            printf("%s%u", i ? " " : "", tokens[i]);
        if (!progress_flush(&run->progress))
            return; /* nobody reads it */
        run->stopped_by = signals_stop_requested();
        run->end = run->stopped_by ? RUN_STOPPED : run->end;
    }
    progress_say(&run->progress, "%s", "");
}
