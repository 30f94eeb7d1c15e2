/* worker/config_agreement.c - what must be the same on all ranks (run.h)
 *
 * Every rank writes down what it has; all compare checksums of it, and then the words of
 * the first difference.
 */
#include "worker/run.h"

#include "common/err.h"
#include "common/fnv.h"
#include "worker/ddp/replica.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ITEMS = CONFIG_ROWS, WIDTH = 112 };

struct words {
    size_t n;
    char names[ITEMS][WIDTH], values[ITEMS][WIDTH];
    uint64_t sums[ITEMS]; /* of the values */
};

__attribute__((format(printf, 3, 4))) static void say(struct words *w, const char *name,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    snprintf(w->names[w->n], WIDTH, "%s", name);
    vsnprintf(w->values[w->n], WIDTH, format, args);
    va_end(args);
    w->sums[w->n] = fnv1a(FNV1A, w->values[w->n], strlen(w->values[w->n]));
    w->n++;
}

static void say_all(struct words *w, const struct run *run)
{
    struct config_text o;
    say(w, "training samples", "%zu", run->data.train.n);
    say(w, "test samples", "%zu", run->data.test.n);
    for (size_t i = 0; config_shared(run->c, i, &o); i++) {
        char name[WIDTH];
        snprintf(name, sizeof name, "for --%s", o.name);
        say(w, name, "%s", o.text);
    }
    say(w, "as checksum of --model", "%016" PRIx64, run->c->model->checksum);
    if (isfinite(run->c->target))
        say(w, "for --target-accuracy", "%g", run->c->target);
    else
        say(w, "for --target-accuracy", "nothing");
    say(w, "parameters", "%zu", model_param_count(run->model));
}

int run_check_agreement(const struct run *run, struct ddp_err *err)
{
    struct words mine = {0};
    int other;
    size_t i;
    say_all(&mine, run);
    TRY(replica_compare(run->group, mine.sums, mine.n, &other, &i, err));
    if (other == 0)
        return 0;
    char first[WIDTH], theirs[WIDTH];
    snprintf(first, WIDTH, "%s", mine.values[i]);
    snprintf(theirs, WIDTH, "%s", mine.values[i]);
    TRY(ddp_broadcast(run->group, first, WIDTH, DDP_U8, 0, err));
    TRY(ddp_broadcast(run->group, theirs, WIDTH, DDP_U8, other, err));
    return err_set(err, "rank %d has %s %s, rank 0 has %s", other, theirs, mine.names[i],
                   first);
}
