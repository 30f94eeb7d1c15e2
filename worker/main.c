/* worker/main.c - ddp-train: the phases of a training run
 *
 * This is one rank. The launcher starts as many as were asked for; each finds the
 * others through its environment, or is alone. Rank 0 prints the output; an error is
 * printed by the rank that has it.
 */
#include "common/stdout.h"
#include "worker/config.h"
#include "worker/run.h"
#include "worker/signals.h"

#include <stdio.h>

static void complain(const struct ddp_err *err)
{
    fprintf(stderr, "ddp-train: %s\n", err->text);
}

int main(int argc, char **argv)
{
    struct train_config config;
    struct ddp_err err = {"no reason given"};
    stdout_must_arrive("ddp-train");
    if (config_parse(argc, argv, &config, &err) < 0) {
        complain(&err);
        return EXIT_USAGE;
    }
    signals_install();
    struct run *run = run_create(&config);
    int code = EXIT_FAILED, opened = run_open(run, &err), trained = -1;
    if (opened == 0 && (trained = run_train(run, &err)) < 0)
        run_mark_end(run);
    if (trained == 0 && run_finish(run, &err) == 0)
        code = run_exit_code(run);
    else if (run_is_culprit(run))
        complain(&err);
    else
        run_wait_for_culprit(run);
    run_destroy(run);
    config_finish(&config);
    return code;
}
