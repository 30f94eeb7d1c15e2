/* What the ranks of a job answer, and what a hang report says of it. */
#include "tests/support/suite.h"

#include "launcher/plugins/diagnose/calls.h"
#include "launcher/plugins/diagnose/collect.h"
#include "launcher/plugins/diagnose/place.h"
#include "launcher/plugins/diagnose/stacks.h"
#include "launcher/plugins/diagnose/trace.h"
#include "launcher/plugins/diagnose/verdict.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An answer of PyTorch 2.15, as recorded, in which each "%s" is its last entry. */
#define ENTRY(number, retired)                                                    \
    "{\"collective_seq_id\":" number ",\"input_dtypes\":[\"Float\"],"             \
    "\"input_sizes\":[[1000]],\"is_p2p\":false,\"op_id\":" number ","             \
    "\"output_dtypes\":[\"Float\"],\"output_sizes\":[[1000]],\"p2p_seq_id\":0,"   \
    "\"pg_id\":0,\"process_group\":[\"0\",\"default_pg\"],"                       \
    "\"profiling_name\":\"gloo:all_reduce\",\"record_id\":0,\"retired\":" retired \
    ",\"state\":\"scheduled\",\"time_created_ns\":1795360796000000000}"
#define TRACE(entries, entered, completed)                                               \
    "{\"comm_lib_version\":\"\",\"entries\":[" entries "],\"nccl_comm_state\":{},"       \
    "\"pg_config\":{\"\":{\"desc\":\"\",\"name\":\"\",\"ranks\":\"[0, 1]\"}},"           \
    "\"pg_status\":{\"0\":{\"last_completed_collective\":\"" completed "\","             \
    "\"last_enqueued_collective\":\"" entered "\",\"last_started_collective\":\"-1\"}}," \
    "\"version\":\"2.10\"}"

static long number(const json_t *o, const char *key)
{
    return (long)json_integer_value(json_object_get(o, key));
}

TEST(an_answer_of_torch)
{
    json_t *rank = json_object();
    static const char text[] =
        TRACE(ENTRY("1", "true") "," ENTRY("2", "false"), "2", "-1");
    ck_assert_int_eq(trace_of_torch(text, "0 \n", 1795360799500000000, rank), 0);
    const json_t *group = json_array_get(json_object_get(rank, "groups"), 0);
    const json_t *calls = json_object_get(rank, "calls");
    ck_assert_int_eq(number(group, "entered"), 2);
    ck_assert_int_eq(number(group, "done"), 1); /* it is retired, the status is late */
    ck_assert_uint_eq(json_array_size(calls), 2);
    ck_assert_int_eq(number(json_array_get(calls, 1), "age_ms"), 3500);
    ck_assert(json_is_false(json_object_get(json_array_get(calls, 1), "done")));
    json_decref(rank);
}

/* Of each group the first call that is not done, else the last; the newest first. */
TEST(collectives_for_a_page)
{
    json_t *ranks = json_loads(
        "[{\"rank\":3,\"bytes\":700,\"groups\":[{\"id\":\"0\",\"name\":\"default_pg\","
        "\"ranks\":[]},{\"id\":\"1\",\"name\":\"\",\"ranks\":[0,2,3]},{\"id\":\"2\"}],"
        "\"calls\":[{\"group\":\"0\",\"number\":4,\"op\":\"barrier\",\"age_ms\":9,"
        "\"done\":true},{\"group\":\"1\",\"number\":7,\"op\":\"all_reduce\",\"age_ms\":5,"
        "\"done\":false},{\"group\":\"1\",\"number\":8,\"op\":\"gather\",\"age_ms\":4,"
        "\"done\":false},{\"group\":\"0\",\"number\":5,\"op\":\"broadcast\",\"age_ms\":8,"
        "\"done\":true}]},{\"rank\":5,\"no_calls\":\"its control plane does not "
        "answer\"},{\"rank\":6,\"bytes\":20}]",
        0, NULL);
    json_t *calls = calls_of(ranks);
    char *text = json_dumps(calls, JSON_COMPACT);
    ck_assert_str_eq(
        text,
        "{\"bytes\":700,\"ranks\":[{\"rank\":3,\"calls\":[{\"group\":\"1\","
        "\"number\":7,\"text\":\"all_reduce #7 of the group of ranks 0,2-3\",\"age_ms\":5,\"done\":"
        "false,\"members\":\"0,2-3\"},{\"group\":\"0\",\"number\":5,\"text\":"
        "\"broadcast #5 of the default group\",\"age_ms\":8,\"done\":true}]},"
        "{\"rank\":6,\"calls\":[]}]}");
    free(text);
    json_decref(calls);
}

TEST(numbers_of_any_size)
{
    json_t *rank = json_object();
    static const char text[] =
        TRACE(ENTRY("1", "true") ",{\"collective_seq_id\":2,\"pg_id\":0,"
                                 "\"time_created_ns\":-9223372036854775808}",
              "99999999999999999999", "99999999999999999999");
    ck_assert_int_eq(trace_of_torch(text, "0 \n", 1795360799500000000, rank), 0);
    const json_t *group = json_array_get(json_object_get(rank, "groups"), 0);
    ck_assert_int_eq(number(group, "done"), INT64_MAX - 1);
    json_decref(rank);
}

static void check_made(const char *groups, const char *made, bool making)
{
    json_t *rank = json_object();
    trace_of_groups(groups, 7, rank);
    char *text = json_dumps(json_object_get(rank, "made"), JSON_COMPACT);
    ck_assert_str_eq(text, made);
    const json_t *age = json_object_get(json_object_get(rank, "making"), "age_ms");
    ck_assert_int_eq(json_integer_value(age), making ? 7 : 0);
    free(text);
    json_decref(rank);
}

/* PyTorch's names are numbers from 2.1 on; "-": of PyTorch 1.13; others are of some
 * ranks. The last line may not be complete. */
TEST(groups_that_a_rank_has_made)
{
    check_made("", "[]", false);
    check_made("0 \n", "[]", true);
    check_made("0 \n.\n1 0,1\n", "[{\"id\":\"1.1\",\"ranks\":\"0,1\"}]", true);
    check_made("- \n.\n- 0,1\n.\nab12 1,2\n.\n- 1,2\n.\n- 1",
               "[{\"id\":\"1.1\",\"ranks\":\"0,1\"},"
               "{\"id\":\"1.2\",\"ranks\":\"1,2\"}]",
               false);
    check_made("0 \n.\n0 \n.\n1 2\n.\n", "[{\"id\":\"2.1\",\"ranks\":\"2\"}]", false);
}

/* 2,000 calls, in 110 KB. */
static char *many_calls(size_t *size)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    fputs("{\"entries\":[", f);
    for (int i = 1; i <= 2000; i++)
        fprintf(f, "%s{\"collective_seq_id\":%d,\"pg_id\":0,\"retired\":true}",
                i > 1 ? "," : "", i);
    fputs("],\"pg_status\":{\"0\":{}}}", f);
    fclose(f);
    *size = n;
    return text;
}

static void check_last_calls(const char *text)
{
    json_t *rank = json_object();
    ck_assert_int_eq(trace_of_torch(text, NULL, 0, rank), 0);
    const json_t *calls = json_object_get(rank, "calls");
    ck_assert_uint_eq(json_array_size(calls), 16);
    ck_assert_int_eq(number(json_array_get(calls, 0), "number"), 1985);
    ck_assert_int_eq(number(json_array_get(calls, 15), "number"), 2000);
    json_decref(rank);
}

TEST(only_the_last_of_many_calls_are_kept)
{
    size_t n;
    char *text = many_calls(&n);
    check_last_calls(text);
    free(text);
}

/* In pieces of any size, so that one may end within a key. */
LOOP_TEST(a_long_answer_is_shortened_as_it_comes, 60)
{
    size_t n, size = 0, piece = 30000 + (size_t)_i;
    char *text = many_calls(&n), *got = calloc(1, n + 1);
    for (size_t at = 0; at < n; at += piece) {
        size_t more = n - at < piece ? n - at : piece;
        memcpy(got + size, text + at, more);
        size = trace_shorten(got, size + more);
        ck_assert_uint_lt(size, 60000);
    }
    got[size] = '\0';
    check_last_calls(got);
    static const char other[] = "\"entries\":[";
    memset(got, 'x', n); /* no entries, or none that is known by its key */
    ck_assert_uint_eq(trace_shorten(got, n), n);
    memcpy(got, other, strlen(other));
    ck_assert_uint_eq(trace_shorten(got, n), n);
    free(got);
    free(text);
}

TEST(what_is_no_answer)
{
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{\"entries\":[{\"",
                                      "{\"entries\":[{}",
                                      "{\"entries\":[{},",
                                      "{\"entries\":7}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *rank = json_object();
        ck_assert_int_eq(trace_of_torch(bad[i], "0 x\n0", 0, rank), -1);
        json_decref(rank);
    }
}

static const json_t *frame_of(const json_t *threads, size_t thread, size_t frame)
{
    return json_array_get(json_object_get(json_array_get(threads, thread), "frames"),
                          frame);
}

static void check_frame(const json_t *frame, const char *function, const char *file,
                        long line)
{
    ck_assert_str_eq(json_string_value(json_object_get(frame, "function")), function);
    ck_assert_str_eq(json_string_value(json_object_get(frame, "file")), file);
    ck_assert_int_eq(number(frame, "line"), line);
}

/* Of a rank with these threads, which are freed. */
static void check_place(json_t *threads, const char *function, const char *file, int line)
{
    json_t *rank = json_pack("{s:o}", "threads", threads);
    ck_assert_str_eq(place_of(rank).function, function);
    ck_assert_str_eq(place_of(rank).file, file);
    ck_assert_int_eq(place_of(rank).line, line);
    json_decref(rank);
}

TEST(stacks_by_python)
{
    json_t *t = stacks_of_python("Thread 0x00007f (most recent call first):\n"
                                 "  File \"/a b/pool.py\", line 5 in wait\n\n"
                                 "Current thread 0x1 [main] (most recent call first):\n"
                                 "  File \"data.py\", line 10 in load\n"
                                 "  File \"train.py\", line ??? in <module>\n");
    ck_assert_uint_eq(json_array_size(t), 2);
    check_frame(frame_of(t, 0, 0), "load", "data.py", 10); /* the main thread is first */
    check_frame(frame_of(t, 0, 1), "<module>", "train.py", 0);
    check_frame(frame_of(t, 1, 0), "wait", "/a b/pool.py", 5);
    json_decref(t);
}

TEST(stacks_by_debuggers)
{
    json_t *t = stacks_of_native("PID 9 - process\nTID 9:\n"
                                 "#0  0x00007f2a clock_nanosleep@@GLIBC_2.17\n"
                                 "    ../sysdeps/x.c:48:5\n"
                                 "#1  0x0000563a - 1 load\n    /home/a/data.c:12:3\n");
    check_frame(frame_of(t, 0, 1), "load", "/home/a/data.c", 12);
    json_decref(t);
    /* a system without debug information of its libraries */
    t = stacks_of_native(
        "TID 9:\n#0  0x00007f2a pause - /usr/lib/libc.so.6\n"
        "#1  0x00007f2b - /opt/mpi/lib/libopen-pal.so.80\n"
        "#2  0x0000563a load - /home/a/train\n    /home/a/data.c:12:3\n");
    check_frame(frame_of(t, 0, 2), "load", "/home/a/data.c", 12);
    check_place(t, "load", "/home/a/data.c", 12);
    /* a program that was built in a directory beside its source */
    t = stacks_of_native(
        "TID 9:\n#0  0x00007f2a pause - /lib/x86_64-linux-gnu/libc.so.6\n"
        "    ../sysdeps/unix/sysv/linux/pause.c:29:10\n"
        "#1  0x0000563a - 1 main - /home/a/build/train\n"
        "    ../src/train.c:12:9\n"
        "#2  0x00007f2b __libc_start_call_main - "
        "/lib/x86_64-linux-gnu/libc.so.6\n    ../sysdeps/x.h:58:16\n"
        "#3  0x0000563b _start - /home/a/build/train\n");
    check_place(t, "main", "../src/train.c", 12);
    /* python ./train.py; a function of the C library with debug information, by gdb */
    t = stacks_of_python("Current thread 0x1 (most recent call first):\n"
                         "  File \"/home/a/./train.py\", line 7 in load\n");
    check_place(t, "load", "/home/a/./train.py", 7);
    t = stacks_of_python("Current thread 0x1 (most recent call first):\n"
                         "  File \"<string>\", line 2 in __init__\n"
                         "  File \"<string>\", line 5 in <module>\n"); /* python -c */
    check_place(t, "<module>", "<string>", 5);
    t = stacks_of_native(
        "Thread 1 (process 9):\n"
        "#0  0x00007f2a in futex_wait (a=1) at ./nptl/futex-internal.c:57\n"
        "#1  0x0000563a in load (n=1) at ./data.c:12\n");
    check_place(t, "load", "./data.c", 12);
    t = stacks_of_native("Thread 1 (process 9):\n"
                         "#0  0x00007f2a in nanosleep () from /lib/libc.so.6\n"
                         "#1  0x0000563a in load (n=1) at data.c:12\n");
    check_frame(frame_of(t, 0, 1), "load", "data.c", 12);
    json_decref(t);
    /* gdb prints the main thread last */
    t = stacks_of_native("\nThread 2 (LWP 10 \"train\"):\n"
                         "#0  0x00007f2a in epoll_wait () from /lib/libc.so.6\n"
                         "\nThread 1 (LWP 9 \"train\"):\n"
                         "#0  0x0000563a in load (n=1) at data.c:12\n");
    check_place(t, "load", "data.c", 12);
    /* the kernel cuts a name of a thread after 15 bytes, within a character */
    t = stacks_of_native("Thread 1 (LWP 9 \"datenverarbeit\xc3\"):\n"
                         "#0  0x0000563a in load (n=1) at data.c:12\n");
    check_frame(frame_of(t, 0, 0), "load", "data.c", 12);
    json_decref(t);
}

/* --- verdicts ----------------------------------------------------------------------- */

#define CALL(n, op, size, done)                                                   \
    "{\"group\":\"0\",\"number\":" n ",\"op\":\"" op "\",\"sizes\":[[" size "]]," \
    "\"types\":[\"float32\"],\"age_ms\":30500,\"done\":" done "}"
#define GROUPS(entered, done)                                                             \
    "\"groups\":[{\"id\":\"0\",\"name\":\"default_pg\",\"ranks\":[],\"entered\":" entered \
    ",\"done\":" done "}]"
#define STACK(frames) "\"threads\":[{\"name\":\"\",\"frames\":[" frames "]}]"
#define FRAME(function, file, line) \
    "{\"function\":\"" function "\",\"file\":\"" file "\",\"line\":" line "}"
#define C10D(op) FRAME(op, "/x/site-packages/torch/distributed/distributed_c10d.py", "9")
#define RANK(n, host, state, more) \
    "{\"rank\":" n ",\"host\":\"" host "\",\"state\":\"" state "\"" more "}"

#define WAITS(n, host)                                                                   \
    RANK(n, host, "sleeping",                                                            \
         "," GROUPS("4", "3") ",\"calls\":[" CALL(                                       \
             "4", "all_reduce", "1000",                                                  \
             "false") "]," STACK(C10D("all_reduce") "," FRAME("<module>", "/x/train.py", \
                                                              "17")))

/* Two ranks, two groups, in another order. */
#define PAIR(id, entered)                                                         \
    "{\"id\":\"" id "\",\"name\":\"" id "\",\"ranks\":[0,1],\"entered\":" entered \
    ",\"done\":0}"
#define CROSSED(n, left, right)                                                  \
    RANK(n, "a", "sleeping",                                                     \
         ",\"groups\":[" PAIR("left", left) "," PAIR("right", right) "]," STACK( \
             C10D("all_reduce") "," FRAME("<module>", "/x/train.py", "17")))

#define MAKES(n, first, second)                                                 \
    RANK(n, "a", "sleeping",                                                    \
         ",\"made\":[{\"id\":\"1.1\",\"ranks\":\"" first "\"},{\"id\":\"1.2\"," \
         "\"ranks\":\"" second "\"}],\"making\":{\"age_ms\":1}," STACK(         \
             C10D("new_group") "," FRAME("<module>", "/x/train.py", "17")))
#define FAILED(n)                                                         \
    "{\"rank\":" n ",\"host\":\"a\",\"exited\":\"exited with status 1\"," \
    "\"timed_out\":true}"

static const struct {
    const char *ranks, *kind, *sentence, *culprits;
} verdicts[] = {
    /* by stacks alone; a debugger had no time for ranks 0 and 3 */
    {RANK("0", "a", "running", ",\"no_stacks\":\"no debugger\"") "," RANK(
         "1", "a", "stopped",
         "") "," RANK("2", "a", "sleeping",
                      "," STACK(FRAME("MPI_Barrier", "", "0") "," FRAME(
                          "main", "/x/mpi.c",
                          "45"))) "," RANK("3", "a", "running",
                                           ",\"no_stacks\":\"no debugger\""),
     "absent",
     "rank 2 waits in MPI_Barrier at mpi.c:45; rank 1 has not arrived: it is stopped by a "
     "signal; of ranks 0,3 there is no stack",
     "[1]"},
    {WAITS("0", "node1") "," RANK(
         "1", "node2", "sleeping",
         "," GROUPS("3", "3") "," STACK(FRAME(
             "load", "/x/data.py", "10"))) "," WAITS("2", "node3") "," WAITS("3",
                                                                             "node4"),
     "absent",
     "3 of 4 ranks have waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; rank 1 on node2 has not arrived: it is in load() "
     "at data.py:10 (sleeping)",
     "[1]"},
    {WAITS("0", "a") "," WAITS("1",
                               "a") ",{\"rank\":2,\"host\":\"a\",\"exited\":\"exited "
                                    "with status 0\"}",
     "exited",
     "2 of 3 ranks have waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; rank 2 has exited with status 0",
     "[2]"},
    {WAITS("0", "a") "," RANK("1", "a", "stopped", "," GROUPS("3", "3")), "absent",
     "1 of 2 ranks has waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; rank 1 has not arrived: it is stopped by a signal",
     "[1]"},
    {WAITS("0", "a") "," WAITS("1", "a") "," RANK(
         "2", "a", "sleeping",
         "," GROUPS("4", "3") ",\"calls\":[" CALL(
             "4", "broadcast", "10",
             "false") "]," STACK(C10D("broadcast") "," FRAME("<module>", "/x/train.py",
                                                             "20"))),
     "mismatch",
     "mismatch: collective #4 of the default group is all_reduce (1,000 x float32) on "
     "ranks 0-1 at train.py:17, broadcast (10 x float32) on rank 2 at train.py:20",
     "[2]"},
    {WAITS("0", "a") "," WAITS("1", "a"), "complete",
     "2 of 2 ranks have waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; all have entered it",
     "[]"},
    {CROSSED("0", "1", "0") "," CROSSED("1", "0", "1"), "cycle",
     "ranks 0-1 wait for each other, in calls of different groups", "[0,1]"},
    {WAITS("0", "a") "," RANK("1", "a", "sleeping",
                              "," GROUPS("3", "3") "," STACK(C10D("new_group") "," FRAME(
                                  "<module>", "train.py", "6"))),
     "absent",
     "1 of 2 ranks has waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; rank 1 has not arrived: it is waiting in new_group "
     "at train.py:6",
     "[1]"},
    /* members of a group have made it in another order */
    {MAKES("0", "0,1", "1,2") "," MAKES("1", "1,2", "0,1") "," MAKES("2", "0,1", "1,2"),
     "mismatch",
     "mismatch: ranks make groups in different orders: new_group() #1 has ranks 0-1 on "
     "ranks 0,2 at train.py:17, ranks 1-2 on rank 1 at train.py:17",
     "[1]"},
    /* those that have waited are gone, or end */
    {FAILED("0") "," RANK("1", "a", "sleeping",
                          "," GROUPS("3", "3") "," STACK(FRAME(
                              "load", "data.py", "10"))) "," RANK("2", "a", "exited", ""),
     "absent",
     "ranks 0,2 have failed, it seems by a timeout; rank 1 has not arrived: it is in load() at "
     "data.py:10 (sleeping)",
     "[1]"},
    {FAILED("0") "," RANK("1", "a", "sleeping",
                          "," GROUPS("3", "3") "," STACK(
                              FRAME("load", "data.py", "10"))) "," WAITS("2", "a"),
     "absent",
     "1 of 3 ranks has waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; rank 1 has not arrived: it is in load() at "
     "data.py:10 (sleeping)",
     "[1]"},
    /* rank 2 is on its way to the exit, rank 1 has only printed such words */
    {FAILED("0") "," RANK(
         "1", "a", "sleeping",
         ",\"timed_out\":true," STACK(FRAME(
             "load", "data.py",
             "10"))) "," RANK("2", "a", "running",
                              ",\"timed_out\":true," STACK(
                                  "{\"function\":\"exit\",\"module\":\"/lib/libc.so\"}")),
     "absent",
     "ranks 0,2 have failed, it seems by a timeout; rank 1 has not arrived: it is in load() "
     "at data.py:10 (sleeping)",
     "[1]"},
    {FAILED("0") "," WAITS("1", "a") "," WAITS("2", "a"), "complete",
     "2 of 3 ranks have waited 30 s in all_reduce #4 of the default group "
     "(1,000 x float32) at train.py:17; all others have entered it",
     "[]"},
    /* without a flight recorder */
    {RANK("0", "a", "sleeping",
          "," STACK(C10D("all_reduce") "," FRAME(
              "<module>", "train.py", "17"))) "," RANK("1", "a", "running",
                                                       "," STACK(FRAME("spin", "data.py",
                                                                       "3"))),
     "absent",
     "rank 0 waits in all_reduce at train.py:17; rank 1 has not arrived: it is in spin() at "
     "data.py:3 (running)",
     "[1]"},
    {RANK("0", "a", "running", "," STACK(FRAME("f", "a.py", "3"))) "," RANK(
         "1", "a", "running", "," STACK(FRAME("f", "a.py", "3"))),
     "none",
     "no rank is known to wait for another: ranks 0-1 are in f() at a.py:3 (running)",
     "[]"},
    {RANK("0", "a", "running", "") "," RANK("1", "a", "sleeping", "") "," RANK(
         "2", "a", "in uninterruptible sleep", "") "," RANK("3", "a",
                                                            "in an unknown state", ""),
     "none",
     "no rank is known to wait for another: rank 0 is running; rank 1 is sleeping; rank 2 is "
     "in uninterruptible sleep; and 1 other place",
     "[]"},
};

LOOP_TEST(verdicts_on_jobs, (sizeof verdicts / sizeof verdicts[0]))
{
    char text[8192];
    snprintf(text, sizeof text, "[%s]", verdicts[_i].ranks);
    json_error_t error;
    json_t *ranks = json_loads(text, 0, &error);
    ck_assert_msg(ranks != NULL, "%s at %d", error.text, error.position);
    json_t *v = verdict(ranks);
    const json_t *first = json_array_get(json_object_get(v, "sentences"), 0);
    ck_assert_str_eq(json_string_value(first), verdicts[_i].sentence);
    ck_assert_str_eq(json_string_value(json_object_get(v, "kind")), verdicts[_i].kind);
    char *culprits = json_dumps(json_object_get(v, "ranks"), JSON_COMPACT);
    ck_assert_str_eq(culprits, verdicts[_i].culprits);
    free(culprits);
    json_decref(v);
    json_decref(ranks);
}

/* A rank may report any numbers. */
TEST(any_size_and_time_of_a_call)
{
    json_t *rank = json_object();
    ck_assert_int_eq(
        trace_of_library(
            "{" GROUPS("4", "3") ",\"calls\":[{\"group\":\"0\",\"number\":4,\"op\":"
                                 "\"all_reduce\",\"sizes\":[[2305843009213693952,8],[3]],"
                                 "\"since_ms\":-9223372036854775808,\"done\":false}]}",
            1000000, rank),
        0);
    const json_t *call = json_array_get(json_object_get(rank, "calls"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(call, "age_ms")), 0);
    json_t *ranks = json_pack("[o, {s:i}]", rank, "rank", 1), *v = verdict(ranks);
    ck_assert_ptr_nonnull(json_object_get(v, "sentences"));
    json_decref(v);
    json_decref(ranks);
}

/* ddprun.torch: PyTorch's recorder knows nothing of what the library has written. */
TEST(a_rank_of_torch_that_waits_for_a_message_of_the_library)
{
    json_t *rank = json_pack("{s:i, s:s}", "rank", 0, "state", "sleeping");
    static const char answer[] = TRACE("", "-1", "-1");
    ck_assert_int_eq(
        trace_of_library(
            "{" GROUPS("4", "4") ",\"calls\":[],\"message\":{\"op\":\"recv\","
                                 "\"since_ms\":1000,\"awaits\":[[\"\",1,7,0,"
                                 "false]]}}",
            3000000000, rank),
        0);
    ck_assert_int_eq(trace_of_torch(answer, NULL, 0, rank), 0);
    json_t *ranks = json_pack("[o, {s:i, s:s}]", rank, "rank", 1, "state", "running"),
           *v = verdict(ranks);
    ck_assert_int_eq(number(rank, "message_ms"), 2000);
    ck_assert_str_eq(
        json_string_value(json_array_get(json_object_get(v, "sentences"), 0)),
        "rank 0 has waited 2 s in recv for rank 1 (tag 7); rank 1 is running");
    json_decref(v);
    json_decref(ranks);
}

/* A rank may report any number of calls, of which it has the last ones at most. */
TEST(a_number_of_calls_costs_no_time)
{
    static const char text[] =
        "[" RANK("0", "a", "sleeping", "," GROUPS("9223372036854775807", "0")) "," RANK(
            "1", "a", "sleeping",
            "," GROUPS("9223372036854775807", "9223372036854775807") ",\"calls\":[" CALL(
                "9223372036854775806", "all_reduce", "1", "false") "]") "]";
    json_t *ranks = json_loads(text, 0, NULL), *v = verdict(ranks);
    ck_assert_ptr_nonnull(json_object_get(v, "sentences"));
    json_decref(v);
    json_decref(ranks);
}

static json_t *collect_own(const char *folder)
{
    struct collect_rank own = {0, getpid()};
    json_t *ranks = collect(folder, &own, 1, COLLECT_CALLS);
    json_t *rank = json_incref(json_array_get(ranks, 0));
    json_decref(ranks);
    return rank;
}

TEST(a_process_that_has_gone_has_a_state)
{
    struct collect_rank gone = {0, INT_MAX};
    json_t *ranks = collect("/proc/none", &gone, 1, COLLECT_ALL);
    const json_t *state = json_object_get(json_array_get(ranks, 0), "state");
    ck_assert_str_eq(json_string_value(state), "in an unknown state");
    json_decref(ranks);
}

/* A test that blocks in open() ends by Check's time limit. */
TEST(a_fifo_in_the_folder_does_not_block)
{
    char folder[] = "/tmp/ddprun-diagnose-XXXXXX", path[100];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/0.%d.calls", folder, (int)getpid());
    put_file(path, "{\"groups\":[],\"calls\":[{\"since_ms\":0}]}");
    json_t *rank = collect_own(folder);
    ck_assert_ptr_nonnull(json_object_get(rank, "calls"));
    json_decref(rank);
    ck_assert_int_eq(unlink(path) + mkfifo(path, 0600), 0);
    rank = collect_own(folder);
    ck_assert_ptr_nonnull(rank);
    ck_assert_ptr_null(json_object_get(rank, "calls"));
    json_decref(rank);
    ck_assert_int_eq(unlink(path) + rmdir(folder), 0);
}
