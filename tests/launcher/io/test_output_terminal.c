/* Incomplete lines on a terminal. */
#include "tests/launcher/io/output_fixture.h"

#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Our stdout and stderr become a terminal; returns its other side. */
static int on_terminal(void)
{
    int ours, theirs;
    ck_assert_int_eq(openpty(&ours, &theirs, NULL, NULL, NULL), 0);
    fflush(NULL);
    dup2(theirs, 1);
    dup2(theirs, 2);
    setenv("TERM", "xterm", 1);
    return ours;
}

/* The terminal passes its input on in pieces of any size. */
static void assert_shows(int terminal, const char *want)
{
    turn();
    char text[512];
    size_t n = 0, all = strlen(want);
    struct pollfd p = {.fd = terminal, .events = POLLIN};
    ck_assert_uint_lt(all, sizeof text);
    while (n < all && poll(&p, 1, 50000) > 0) {
        ssize_t got = read(terminal, text + n, sizeof text - 1 - n);
        ck_assert_int_gt(got, 0);
        n += (size_t)got;
    }
    text[n] = '\0';
    ck_assert_str_eq(text, want);
}

FIXTURE(output_setup, output_teardown)

TEST(a_terminal_shows_a_progress_bar_under_its_tag)
{
    int terminal = on_terminal();
    make(&(struct opts){0}, 2, false);
    feed(0, OUT_STDERR, "\r 10%");
    feed(0, OUT_STDERR, "\r 20%\r");
    feed(1, OUT_STDOUT, "line\r\n");
    feed(0, OUT_STDERR, "\n");
    assert_shows(terminal, "[0]  10%\r\033[K[1] line\r\n[0]  20%\r\n");
}

TEST(a_slow_progress_bar_is_not_one_step_behind)
{
    int terminal = on_terminal();
    make(&(struct opts){0}, 2, false);
    feed(0, OUT_STDERR, "\r 10%");
    usleep(120000);
    assert_shows(terminal, "[0]  10%");
    feed(0, OUT_STDERR, "\r 20%");
    usleep(120000);
    assert_shows(terminal, "\r\033[K[0]  20%");
    feed(0, OUT_STDERR, "\n");
    assert_shows(terminal, "\r\n");
}

TEST(a_terminal_shows_a_question)
{
    int terminal = on_terminal();
    make(&(struct opts){0}, 3, false);
    feed(0, OUT_STDOUT, "name? ");
    feed(1, OUT_STDERR, "age? ");
    usleep(120000);
    assert_shows(terminal, "[0] name? \r\n[1] age? ");
    feed(1, OUT_STDERR, "old\n"); /* continues its line */
    feed(2, OUT_STDOUT, "hi\n");
    feed(0, OUT_STDOUT, "thanks\n"); /* was interrupted: starts a new line */
    assert_shows(terminal, "old\r\n[2] hi\r\n[0] thanks\r\n");
    feed(0, OUT_STDOUT, "more? ");
    usleep(120000);
    assert_shows(terminal, "[0] more? ");
    output_line(output, OUT_STDERR, "ddprun: said");
    feed(0, OUT_STDOUT, "no\n");
    assert_shows(terminal, "\r\nddprun: said\r\n[0] no\r\n");
    feed(1, OUT_STDOUT, "sure? ");
    usleep(120000);
    assert_shows(terminal, "[1] sure? ");
    output_typed(output); /* the terminal's echo has ended that line */
    feed(1, OUT_STDOUT, "fine\n");
    assert_shows(terminal, "[1] fine\r\n");
    feed(2, OUT_STDOUT, "bye");
    usleep(120000);
    assert_shows(terminal, "[2] bye");
    output_end(output, 2, OUT_STDOUT);
    assert_shows(terminal, "\r\n");
}
