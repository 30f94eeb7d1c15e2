/* worker/main.c - ddp-train: the life of a training run, as a list
 *
 * One rank of it; the launcher starts as many as it was asked for, each finds the others
 * through its environment, and without a launcher it is alone. What is shown comes from
 * rank 0; an error comes from the rank that has it.
 */
#include "common/stdout.h"
#include "worker/config.h"
#include "worker/run.h"
#include "worker/stop.h"

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
    stop_install();
    struct run *run = run_create(&config);
    int code = EXIT_FAILED;
    if (run_open(run, &err) == 0 && run_train(run, &err) == 0 &&
        run_finish(run, &err) == 0)
        code = run_exit_code(run);
    else if (run_blames_us(run))
        complain(&err);
    else
        run_let_go_first(run);
    run_destroy(run);
    return code;
}
