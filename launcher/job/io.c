/* launcher/job/io.c - rank output to ddprun's stdout and stderr, and its stdin to the
 * ranks
 *
 * Both directions use credit: a node sends only as much output as can be written, and
 * stdin is read only as fast as the nodes consume it.
 */
#include "launcher/job/io.h"

#include "common/log.h"
#include "launcher/job/input.h"
#include "launcher/job/plugin.h"
#include "launcher/job/report.h"
#include "launcher/job/terminal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_output_space(void *arg)
{
    struct job *j = arg;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].uncredited == 0)
            continue;
        job_send(j, i, MSG(credit, j->nodes[i].uncredited));
        j->nodes[i].uncredited = 0;
    }
    if (j->state == JOB_FLUSHING)
        job_check(j);
}

/* Exit as a program that SIGPIPE ended. */
static void on_reader_left(void *arg)
{
    struct job *j = arg;
    j->streams.failed = true;
    job_fail_text(j, CAUSE_OUTPUT, 128 + SIGPIPE, NULL);
}

static void on_output_failed(const char *why, void *arg)
{
    struct job *j = arg;
    j->streams.failed = true;
    job_say(j, "ddprun: %s", why);
}

static bool gets_input(const struct job *j, const struct job_node *n)
{
    return job_node_takes_part(n) &&
           (j->opts->input == INPUT_ALL || n->place == j->plan->ranks[0].node);
}

/* What is read while ranks are being stopped, or rank 0 has no node, would be lost. */
static bool wants_input(void *arg)
{
    const struct job *j = arg;
    return j->state >= JOB_RUNNING && !j->restart.pending &&
           ANY_NODE(j, n, gets_input(j, n));
}

static void on_input(const void *data, size_t size, void *arg)
{
    struct job *j = arg;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (!gets_input(j, &j->nodes[i]))
            continue;
        job_send(j, i, MSG(input, data, (uint32_t)size));
        j->nodes[i].input_sent += (uint32_t)size;
    }
    j->streams.ended |= size == 0;
    const char *bytes = data;
    if (size > 0 && bytes[size - 1] == '\n' && isatty(STDIN_FILENO))
        output_typed(j->output);
}

/* Ranks that have read half of their input must not be taken for a success. */
static void on_input_failed(int error, void *arg)
{
    struct job *j = arg;
    j->streams.failed = true;
    job_say(j, "ddprun: cannot read from stdin: %s: the ranks' input ends here",
            strerror(error));
}

/* The slowest node limits how much more may be read. */
void job_input_more(struct job *j)
{
    size_t behind = 0;
    EACH_NODE (j, n) {
        if (gets_input(j, n) && n->input_sent > behind)
            behind = n->input_sent;
    }
    if (j->streams.input && behind < INPUT_CREDIT)
        input_allow(j->streams.input, INPUT_CREDIT - behind);
}

void job_input_begin(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->streams.ended && gets_input(j, &j->nodes[i]))
            job_send(j, i, MSG(input, NULL, 0));
    }
    job_input_more(j);
    if (j->streams.input)
        input_continue(j->streams.input);
}

bool job_send_window(struct job *j)
{
    if (j->job.rows == 0)
        return false;
    terminal_size(&j->job.rows, &j->job.columns);
    if (j->state == JOB_RUNNING)
        job_send(j, NODE_ALL, MSG(window, j->job.rows, j->job.columns));
    return true;
}

/* Log lines go through the stderr queue, so they never split a line of a rank. */
static void on_log_line(enum log_level level, const char *line, void *arg)
{
    job_say(arg, "%s", line);
}

int job_open_streams(struct job *j, struct ddp_err *err)
{
    static const struct output_events events = {on_output_space, on_reader_left,
                                                on_output_failed};
    j->output = output_create(j->loop, j->opts, j->plan->nranks, &job_output_hosts,
                              &events, j, err);
    if (!j->output)
        return -1;
    log_sink(on_log_line, j);
    j->terminal = terminal_create();
    if (j->opts->input != INPUT_NONE)
        j->streams.input = input_create(j->loop, STDIN_FILENO, wants_input, on_input,
                                        on_input_failed, j);
    return 0;
}

void job_continue_streams(struct job *j)
{
    job_send_window(j);
    if (j->streams.input)
        input_continue(j->streams.input);
}

void job_close_streams(struct job *j)
{
    terminal_destroy(j->terminal);
    input_destroy(j->streams.input);
    if (j->output)
        log_sink(NULL, NULL);
    output_destroy(j->output);
}
