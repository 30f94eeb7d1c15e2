/* Lines, tags, tails, and output files of ranks. */
#include "tests/launcher/io/output_fixture.h"

#include "common/duration.h"
#include "common/mem.h"

#include <fcntl.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Both streams to separate files, out and err in a new folder. */
static char *folder;

static void to_files(void)
{
    folder = temp_dir();
    for (int fd = 1; fd <= 2; fd++) {
        char *path = xasprintf("%s/%s", folder, fd == 1 ? "out" : "err");
        int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ck_assert_int_ge(file, 0);
        fflush(NULL);
        ck_assert_int_eq(dup2(file, fd), fd);
        close(file);
        free(path);
    }
}

static char *slurp(const char *name)
{
    char *path = xasprintf("%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "no file '%s'", path);
    char *text = xcalloc(1 << 20, 1);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    text[n] = '\0';
    fclose(f);
    free(path);
    return text;
}

/* Waits for it: the error of one thread that writes is printed by another. */
static void assert_wrote(const char *name, const char *want)
{
    int64_t end = now_ms() + 20000;
    turn();
    char *text = slurp(name);
    while (strcmp(text, want) != 0 && now_ms() < end) {
        free(text);
        usleep(2000);
        turn();
        text = slurp(name);
    }
    ck_assert_str_eq(text, want);
    free(text);
}

/* ---- lines ---- */

static const struct {
    const char *name;
    struct opts opts;
    int nranks;
    bool hosts;
    const char *out, *err;
} shapes[] = {
    {"two ranks are tagged", {0}, 2, false, "[0] a\n[1] b\n[0] c\n", "[1] e\n"},
    {"hosts stand in the tag",
     {0},
     2,
     true,
     "[0 node01] a\n[1 node01] b\n[0 node01] c\n",
     "[1 node01] e\n"},
    {"tags can be had off", {.tag_output = TAG_OFF}, 2, false, "a\nb\nc\n", "e\n"},
    {"one speaker needs no tag", {.output_from = "1"}, 2, false, "b\n", "e\n"},
    {"unless it is asked for",
     {.output_from = "1", .tag_output = TAG_ON},
     2,
     false,
     "[1] b\n",
     "[1] e\n"},
};

FIXTURE(output_setup, output_teardown)

LOOP_TEST(lines_have_the_shape_the_options_say, ARRAY_LEN(shapes))
{
    to_files();
    ck_assert_msg(make(&shapes[_i].opts, shapes[_i].nranks, shapes[_i].hosts) != NULL,
                  "%s: %s", shapes[_i].name, err.text);
    feed(0, OUT_STDOUT, "a\n");
    feed(1, OUT_STDERR, "e\n");
    feed(1, OUT_STDOUT, "b\n");
    feed(0, OUT_STDOUT, "c\n");
    assert_wrote("out", shapes[_i].out);
    assert_wrote("err", shapes[_i].err);
}

TEST(a_second_rank_begins_a_line)
{
    const struct opts opts = {0};
    to_files();
    ck_assert_ptr_nonnull(make(&opts, 1, false));
    feed(0, OUT_STDOUT, "a");
    feed(0, OUT_STDERR, "b\n");
    output_add_ranks(output, 2);
    feed(1, OUT_STDOUT, "c\n");
    feed(1, OUT_STDERR, "d\n");
    assert_wrote("out", "a\n[1] c\n");
    assert_wrote("err", "b\n[1] d\n");
}

TEST(tags_only_at_the_start_of_a_line)
{
    to_files();
    make(&(struct opts){0}, 2, false);
    feed(0, OUT_STDOUT, "ha");
    feed(1, OUT_STDOUT, "whole\nst");
    feed(0, OUT_STDOUT, "lf\n\nthird");
    assert_wrote("out", "[1] whole\n[0] half\n[0] \n");
    feed(1, OUT_STDOUT, "art\n");
    output_end(output, 0, OUT_STDOUT);
    assert_wrote("out", "[1] whole\n[0] half\n[0] \n[1] start\n[0] third\n");
}

LOOP_TEST(every_split_gives_the_same_lines, 19)
{
    static const char text[] = "one\n\ntwo three\nfour"; /* 19 bytes */
    size_t cut = (size_t)_i;
    to_files();
    make(&(struct opts){.tag_output = TAG_ON}, 1, false);
    output_feed(output, 0, OUT_STDOUT, text, cut);
    output_feed(output, 0, OUT_STDOUT, text + cut, sizeof text - 1 - cut);
    output_end(output, 0, OUT_STDOUT);
    assert_wrote("out", "[0] one\n[0] \n[0] two three\n[0] four\n");
}

TEST(a_long_line_is_held_until_its_end)
{
    to_files();
    make(&(struct opts){.tag_output = TAG_ON}, 2, false);
    char *big = xcalloc(1, 200001);
    memset(big, 'x', 200000);
    for (int i = 0; i < 2; i++) {
        feed(0, OUT_STDOUT, big);
        feed(1, OUT_STDOUT, "between\n");
    }
    assert_wrote("out", "[1] between\n[1] between\n");
    feed(0, OUT_STDOUT, "\n");
    turn();
    char *text = slurp("out");
    ck_assert_uint_eq(strlen(text), 24 + 400000 + 5);
    ck_assert_int_eq(strncmp(text + 24, "[0] xxx", 7), 0);
    free(text);
    free(big);
}

TEST(all_held_lines_together_have_a_limit)
{
    enum { PIECE = 4 << 20, PIECES = 31 };
    to_files();
    make(&(struct opts){0}, 3, false);
    char *piece = xcalloc(1, PIECE);
    feed(2, OUT_STDERR, "short");
    for (int i = 0; i < 2 * PIECES; i++)
        output_feed(output, i % 2, OUT_STDOUT, piece, PIECE);
    assert_wrote("out", "");
    for (int i = 0; i < 4; i++)
        output_feed(output, 2, OUT_STDOUT, piece, PIECE);
    feed(2, OUT_STDERR, "short");
    turn();
    struct stat st;
    ck_assert_int_eq(fstat(STDOUT_FILENO, &st), 0);
    ck_assert_int_eq(st.st_size, 4 + 4 * PIECE); /* of rank 2, after its tag */
    assert_wrote("err", "");
    free(piece);
}

TEST(without_tags_bytes_pass_at_once)
{
    to_files();
    make(&(struct opts){0}, 1, false);
    feed(0, OUT_STDOUT, "no newline: ");
    assert_wrote("out", "no newline: ");
    output_end(output, 0, OUT_STDOUT);
    ck_assert_int_eq(output_flush(output, now_ms() + 1000), 0);
    assert_wrote("out", "no newline: ");
}

TEST(our_own_line_starts_a_line)
{
    to_files();
    make(&(struct opts){0}, 1, false);
    feed(0, OUT_STDERR, "half");
    output_line(output, OUT_STDERR, "ddprun: rank 0 died");
    assert_wrote("err", "half\nddprun: rank 0 died\n");
    output_line(output, OUT_STDERR, "again");
    assert_wrote("err", "half\nddprun: rank 0 died\nagain\n");
}

TEST(times_are_those_of_the_first_byte)
{
    to_files();
    make(&(struct opts){.timestamp_output = true}, 2, false);
    feed(0, OUT_STDOUT, "sl");
    usleep(20000);
    feed(1, OUT_STDOUT, "quick\n");
    feed(0, OUT_STDOUT, "ow\n");
    turn();
    char *text = slurp("out");
    regex_t re;
    static const char form[] =
        "^(20[0-9-]{8}T[0-9:]{8}\\.[0-9]{3})[+-][0-9]{4} \\[1\\] quick\n"
        "(20[0-9-]{8}T[0-9:]{8}\\.[0-9]{3})[+-][0-9]{4} \\[0\\] slow\n$";
    ck_assert_int_eq(regcomp(&re, form, REG_EXTENDED), 0);
    regmatch_t m[3];
    ck_assert_msg(regexec(&re, text, 3, m, 0) == 0, "%s", text);
    ck_assert_int_lt(strncmp(text + m[2].rm_so, text + m[1].rm_so, 23), 0);
    regfree(&re);
    free(text);
}

TEST(unknown_ranks_are_rejected)
{
    static const char *const bad[] = {"4", "1-4", "2-1", "x", "", "1,", "-1", "1;2"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const struct opts opts = {.output_from = bad[i]};
        ck_assert_msg(output_check(&opts, 4, &hosts_of_ranks, NULL, &err) < 0,
                      "'%s' was taken", bad[i]);
        ck_assert_ptr_nonnull(strstr(err.text, "--output-from"));
    }
}

/* ---- tails ---- */

TEST(the_tail_is_the_end_of_stderr)
{
    to_files();
    make(&(struct opts){.output_from = "1"}, 2, false);
    char *tail = output_tail(output, 0);
    ck_assert_str_eq(tail, "");
    free(tail);
    feed(0, OUT_STDOUT, "out\n");
    tail = output_tail(output, 0);
    ck_assert_str_eq(tail, "out\n");
    free(tail);
    for (int i = 0; i < 1000; i++) {
        char line[32];
        snprintf(line, sizeof line, "line %d\n", i);
        feed(0, OUT_STDERR, line);
    }
    feed(0, OUT_STDERR, "half");
    tail = output_tail(output, 0);
    ck_assert_int_eq(strncmp(tail, "line 981\nline 982\n", 18), 0);
    ck_assert_str_eq(tail + strlen(tail) - 13, "line 999\nhalf");
    free(tail);
}

TEST(the_tail_of_long_lines_starts_at_a_line)
{
    to_files();
    make(&(struct opts){0}, 1, false);
    char *big = xcalloc(1, 10001);
    memset(big, 'x', 3000);
    big[2999] = '\n';
    for (int i = 0; i < 5; i++)
        feed(0, OUT_STDERR, big);
    char *tail = output_tail(output, 0);
    ck_assert_uint_eq(strlen(tail), 3000);
    free(tail);
    memset(big, 'y', 10000); /* no line begins in them: the last 4 KiB */
    feed(0, OUT_STDERR, big);
    tail = output_tail(output, 0);
    ck_assert_uint_eq(strlen(tail), 4096);
    free(tail);
    free(big);
}

/* ---- files of ranks ---- */

static const struct {
    const char *pattern, *out, *err, *gone; /* file names for rank 2 */
} patterns[] = {
    {"logs", "logs/rank.2.out", "logs/rank.2.err", "logs/rank.0.out"},
    {"a/b/%h-%r.%s", "a/b/node02-2.out", "a/b/node02-2.err", "a/b/node01-0.out"},
    {"100%%%r%s", "100%2out", "100%2err", "100%0out"},
};

LOOP_TEST(each_rank_has_its_files, ARRAY_LEN(patterns))
{
    to_files();
    char *pattern = xasprintf("%s/%s", folder, patterns[_i].pattern);
    struct opts opts = {.output_filename = pattern}; /* as long as the output */
    ck_assert_ptr_nonnull(make(&opts, 3, true));
    feed(2, OUT_STDOUT, "ha");
    feed(2, OUT_STDERR, "oops\n");
    feed(2, OUT_STDOUT, "lf");
    output_end(output, 2, OUT_STDOUT);
    assert_wrote(patterns[_i].out, "half");
    assert_wrote(patterns[_i].err, "oops\n");
    assert_wrote("out", "[2 node02] half\n");
    char *gone = xasprintf("%s/%s", folder, patterns[_i].gone);
    ck_assert_int_ne(access(gone, F_OK), 0); /* no output, no file */
    free(gone);
    free(pattern);
}

TEST(without_s_both_streams_share_a_file)
{
    to_files();
    char *pattern = xasprintf("%s/%%r.log", folder);
    make(&(struct opts){.output_filename = pattern}, 2, false);
    feed(1, OUT_STDOUT, "a\n");
    feed(1, OUT_STDERR, "b\n");
    feed(1, OUT_STDOUT, "c\n");
    assert_wrote("1.log", "a\nb\nc\n");
    free(pattern);
}

TEST(a_rank_on_another_host_has_another_file)
{
    to_files();
    char *pattern = xasprintf("%s/%%h.%%r", folder);
    make(&(struct opts){.output_filename = pattern}, 3, true);
    feed(0, OUT_STDOUT, "first\n");
    feed(2, OUT_STDOUT, "a\n");
    last_host = "node03";
    output_renew(output, 3, "--- 2 ---\n");
    feed(2, OUT_STDOUT, "b\n");
    last_host = "node02";
    output_renew(output, 3, "--- 3 ---\n");
    feed(2, OUT_STDOUT, "c\n");
    assert_wrote("node01.0", "first\n--- 2 ---\n--- 3 ---\n");
    assert_wrote("node03.2", "--- 2 ---\nb\n");
    assert_wrote("node02.2", "a\n--- 3 ---\nc\n");
    free(pattern);
}

TEST(an_attempt_of_fewer_ranks_leaves_the_files_of_the_others)
{
    to_files();
    char *pattern = xasprintf("%s/%%r", folder);
    make(&(struct opts){.output_filename = pattern}, 2, true);
    feed(0, OUT_STDOUT, "a\n");
    feed(1, OUT_STDOUT, "b\n");
    output_renew(output, 1, "--- 2 ---\n");
    feed(0, OUT_STDOUT, "c\n");
    output_renew(output, 2, "--- 3 ---\n");
    feed(1, OUT_STDOUT, "d\n");
    assert_wrote("0", "a\n--- 2 ---\nc\n--- 3 ---\n");
    assert_wrote("1", "b\n--- 3 ---\nd\n");
    free(pattern);
}

static const struct {
    rlim_t limit;
    int most;
} limits[] = {{1024, 300}, {64, 40}};

LOOP_TEST(many_files_are_not_many_descriptors, ARRAY_LEN(limits))
{
    const struct rlimit limit = {limits[_i].limit, limits[_i].limit};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    to_files();
    char *pattern = xasprintf("%s/%%r", folder);
    make(&(struct opts){.output_filename = pattern, .output_from = "0"}, 600, false);
    for (int round = 0; round < 2; round++) {
        for (int rank = 0; rank < 600; rank++)
            feed(rank, OUT_STDOUT, "x\n");
    }
    assert_wrote("0", "x\nx\n");
    assert_wrote("599", "x\nx\n");
    int fd = dup(1);
    ck_assert_int_lt(fd, limits[_i].most);
    free(pattern);
}

TEST(a_file_error_is_reported_once)
{
    to_files();
    make(&(struct opts){.output_filename = "/dev/full/x"}, 2, false);
    feed(0, OUT_STDOUT, "a\n");
    feed(1, OUT_STDOUT, "b\n");
    feed(1, OUT_STDOUT, "c\n");
    assert_wrote("out", "[0] a\n[1] b\n[1] c\n");
    assert_wrote("err",
                 "ddprun: error: cannot write '/dev/full/x/rank.0.out': Not a directory; "
                 "files of --output-filename are incomplete, the terminal is "
                 "not\n");
}

static const struct {
    const char *pattern, *say;
} bad_patterns[] = {
    {"%q.%r", "unknown '%q'"},          {"out.%", "unknown '%'"},
    {"é%é%r", "unknown '%é' in"},       {"out.%h", "names one file for 2 ranks"},
    {"", "needs the name of a folder"},
};

LOOP_TEST(a_bad_pattern_is_rejected, ARRAY_LEN(bad_patterns))
{
    const struct opts opts = {.output_filename = bad_patterns[_i].pattern};
    ck_assert_int_eq(output_check(&opts, 2, &hosts_of_ranks, NULL, &err), -1);
    ck_assert_msg(strstr(err.text, bad_patterns[_i].say) != NULL, "%s", err.text);
}
