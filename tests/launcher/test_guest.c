/* The listener that agents call, when there is no descriptor left to take a call with. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/sock.h"
#include "launcher/link/handshake.h"
#include "launcher/spawn/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CALLS = 8 };

static bool never(unsigned node, int fd, const struct link_keys *keys, const char *here,
                  void *arg)
{
    return false;
}

/* Every descriptor up to the limit; returns how many were made. */
static int take_all(int *taken, int most)
{
    int n = 0;
    while (n < most && (taken[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    ck_assert_int_eq(errno, EMFILE);
    return n;
}

START_TEST(who_calls_waits_for_a_descriptor_and_the_loop_rests)
{
    enum { LIMIT = 64, TURNS = 3 };
    struct ddp_err err;
    struct loop *loop = loop_create(&err);
    struct secret key = {{1}};
    struct strv calls = {0};
    unsigned char offer[HANDSHAKE_OFFER];
    int taken[LIMIT], callers[CALLS], port = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}), 0);
    struct guests *g = guests_create(loop, &key, CALLS, never, NULL, &err);
    ck_assert_msg(g != NULL, "%s", err.text);
    guests_calls(g, &calls);
    ck_assert_int_eq(sscanf(calls.v[calls.n - 1], "127.0.0.1 %d", &port), 1);
    for (int i = 0; i < CALLS; i++) {
        callers[i] = sock_connect("127.0.0.1", port, now_ms() + 20000, false, &err);
        ck_assert_msg(callers[i] >= 0, "%s", err.text);
    }
    int n = take_all(taken, LIMIT);

    /* each turn but the first is a pause; without one they would be microseconds */
    int64_t began = now_ms();
    for (int i = 0; i < TURNS; i++)
        event_base_loop(loop_base(loop), EVLOOP_ONCE);
    ck_assert_int_ge(now_ms() - began, 150);

    for (int i = 0; i < n; i++)
        close(taken[i]);
    for (int i = 0; i < CALLS; i++) { /* and then everybody is heard */
        size_t have = 0;
        for (int64_t deadline = now_ms() + 50000; have < sizeof offer;) {
            ssize_t got =
                recv(callers[i], offer + have, sizeof offer - have, MSG_DONTWAIT);
            have += got > 0 ? (size_t)got : 0;
            ck_assert_int_lt(now_ms(), deadline);
            if (got <= 0)
                event_base_loop(loop_base(loop), EVLOOP_ONCE);
        }
        close(callers[i]);
    }
    guests_destroy(g);
    strv_finish(&calls);
    loop_destroy(loop);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("guest");
    TCase *t = tcase_create("guest");
    tcase_add_test(t, who_calls_waits_for_a_descriptor_and_the_loop_rests);
    suite_add_tcase(s, t);
    return s;
}
