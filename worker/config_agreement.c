/* worker/config_agreement.c - what must be the same on all ranks (run.h)
 *
 * Every rank writes down what it has, and compares rank 0's words with its own.
 */
#include "worker/run.h"

#include "common/err.h"
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
};

__attribute__((format(printf, 3, 4))) static void say(struct words *w, const char *name,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    snprintf(w->names[w->n], WIDTH, "%s", name);
    vsnprintf(w->values[w->n], WIDTH, format, args);
    va_end(args);
    w->n++;
}

static void say_all(struct words *w, const struct run *run)
{
    const char *option, *text;
    say(w, "training samples", "%zu", run->data.train.n);
    say(w, "test samples", "%zu", run->data.test.n);
    for (size_t i = 0; config_shared(run->c, i, &option, &text); i++) {
        char name[WIDTH];
        snprintf(name, sizeof name, "for --%s", option);
        say(w, name, "%s", text);
    }
    say(w, "as checksum of --model", "%016" PRIx64, run->c->model->checksum);
    if (isfinite(run->c->target))
        say(w, "for --target-accuracy", "%g", run->c->target);
    else
        say(w, "for --target-accuracy", "nothing");
    say(w, "parameters", "%zu", run->model->count);
}

int run_check_agreement(const struct run *run, struct ddp_err *err)
{
    struct words mine = {0}, first;
    int rc = 0;
    say_all(&mine, run);
    first = mine;
    TRY(ddp_broadcast(run->group, first.values, sizeof first.values, DDP_U8, 0, err));
    for (size_t i = 0; i < mine.n && rc == 0; i++)
        if (strcmp(mine.values[i], first.values[i]) != 0)
            rc = err_set(err, "rank %d has %s %s, rank 0 has %s", run->rank,
                         mine.values[i], mine.names[i], first.values[i]);
    return replica_agree(run->group, rc, NULL, err);
}
