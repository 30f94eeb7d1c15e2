/* worker/sample.c - generated text, for --sample; rank 0 only
 *
 * The prompt is the first tokens of the test part. Each further token is drawn by its
 * probability, with a temperature below 1, as is usual for models with little training.
 */
#include "worker/run.h"

#include "common/mem.h"
#include "worker/data/random.h"
#include "worker/signals.h"

#include <math.h>
#include <stdlib.h>

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

void run_sample(struct run *run)
{
    const struct dataset *d = &run->data;
    int window = d->shape.W, prompt = window < PROMPT ? window : PROMPT;
    size_t n = (size_t)prompt, all = n + (size_t)run->c->sample;
    OWNED uint32_t *tokens = xcalloc((size_t)window + 1 + all, sizeof *tokens);
    struct random random = random_make(run->state.seed, STREAM_SAMPLE);
    tokens_gather(d, &d->test, &(uint32_t){0}, 1, tokens);
    progress_say(&run->progress, "sample      of %zu tokens:", all);
    for (size_t i = 0; i < all && run->end != RUN_STOPPED; i++) {
        int seen = i < (size_t)window ? (int)i : window;
        int known = i > n && i <= (size_t)window ? seen - 1 : 0; /* later all move */
        if (i >= n)
            tokens[i] = draw(model_next(run->model, tokens + i - seen, known, seen),
                             d->shape.outputs, &random);
        if (d->token_bytes == 1)
            putchar((int)tokens[i]);
        else
            printf("%s%u", i ? " " : "", tokens[i]);
        fflush(stdout);
        run->stopped_by = signals_stop_requested();
        run->end = run->stopped_by ? RUN_STOPPED : run->end;
    }
    putchar('\n');
}
