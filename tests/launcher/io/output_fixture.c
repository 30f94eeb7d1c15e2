/* tests/launcher/io/output_fixture.c - see output_fixture.h */
#include "tests/launcher/io/output_fixture.h"

#include "common/duration.h"
#include "launcher/io/writer.h"

#include <signal.h>
#include <string.h>
#include <time.h>

struct loop *loop;
struct output *output;
struct ddp_err err;
int drains, left, failed;
bool stuck;

void output_setup(void)
{
    signal(SIGPIPE, SIG_IGN);
    loop = loop_create(&err);
    ck_assert_ptr_nonnull(loop);
}

void output_teardown(void)
{
    output_destroy(output);
    loop_destroy(loop);
}

/* Pass the output to the writers, and wait until it is written unless `stuck`. */
void turn(void)
{
    int64_t end = now_ms() + (stuck ? 1 : 10000);
    event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
    while (output && output_room(output) < WRITER_HIGH && now_ms() < end)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
}

static void on_room(void *arg)
{
    drains++;
}

static void on_reader_left(void *arg)
{
    left++;
}

static void on_failed(const char *why, void *arg)
{
    failed++;
    ck_assert_ptr_nonnull(strstr(why, "cannot write to stdout: "));
}

const char *last_host = "node02";

static bool with_hosts;

static const char *host_in_path(int rank, void *arg)
{
    return rank < 2 ? "node01" : last_host;
}

static const char *host_in_tag(int rank, void *arg)
{
    return with_hosts ? host_in_path(rank, arg) : NULL;
}

const struct output_hosts hosts_of_ranks = {host_in_path, host_in_tag};

struct output *make(const struct opts *opts, int nranks, bool hosts)
{
    static const struct output_events events = {on_room, on_reader_left, on_failed};
    with_hosts = hosts;
    output = output_create(loop, opts, nranks, &hosts_of_ranks, &events, NULL, &err);
    return output;
}

void feed(int rank, enum out_stream stream, const char *text)
{
    output_feed(output, rank, stream, text, strlen(text));
}
