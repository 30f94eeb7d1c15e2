/* tests/launcher/test_pmix_sessions.c - order of the MPI programs of ranks
 *
 * A program is a shell with PMIX_RANK in its environment, its connection half a
 * socketpair.
 */
#include "common/mem.h"
#include "launcher/plugins/mpi/pmix_sessions.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct program {
    pid_t pid, child; /* the latter was started by it */
    int fd;
};

static int others[FD_SETSIZE]; /* the client's end of each connection */

static int connection(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_lt(pair[0], FD_SETSIZE);
    others[pair[0]] = pair[1];
    return pair[0];
}

static void hang_up(int fd)
{
    close(others[fd]);
}

/* A process with a rank's environment, and its child. */
static struct program begin(const char *rank)
{
    int said[2];
    char text[32] = "";
    struct program p = {.fd = connection()};
    ck_assert_int_eq(pipe(said), 0);
    p.pid = fork();
    ck_assert_int_ge(p.pid, 0);
    if (p.pid == 0) {
        dup2(said[1], 1);
        setenv("PMIX_RANK", rank, 1);
        execl("/bin/sh", "sh", "-c", "sleep 60 & echo $!; wait", NULL);
        _exit(127);
    }
    close(said[1]);
    FILE *f = fdopen(said[0], "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(text, sizeof text, f));
    fclose(f);
    p.child = (pid_t)atoi(text);
    return p;
}

static void end(const struct program *p)
{
    kill(p->child, SIGKILL);
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
}

TEST(a_second_program_waits_for_all_first_ones)
{
    struct program a = begin("0"), b = begin("1"), c = begin("2");
    int a2 = connection(), b2 = connection(), a3 = connection();
    ck_assert(sessions_admit(a.fd, a.pid));
    ck_assert(sessions_admit(b.fd, b.pid));
    close(a.fd); /* as libpmix does when its client has gone */
    ck_assert(!sessions_active(a.fd));
    ck_assert(!sessions_admit(a2, a.pid));
    ck_assert(!sessions_admit(a3, a.pid));
    ck_assert_uint_eq(sessions_queued(), 2);
    ck_assert_int_eq(sessions_take(), -1);
    unsigned rank, of;
    ck_assert(!sessions_late(600000, &rank, &of));
    for (int i = 0; i < 2; i++) { /* the second and the third */
        ck_assert(sessions_late(0, &rank, &of));
        ck_assert_uint_eq(rank, 0);
        ck_assert_uint_eq(of, 1);
    }
    ck_assert(!sessions_late(0, &rank, &of)); /* once for each */
    /* a queued client does not delay others */
    ck_assert(sessions_admit(c.fd, c.pid));
    close(b.fd);
    ck_assert(!sessions_admit(b2, b.pid));
    ck_assert_int_eq(sessions_take(), -1);
    close(c.fd);
    ck_assert_int_eq(sessions_take(), a2);
    ck_assert_int_eq(sessions_take(), b2);
    ck_assert_int_eq(sessions_take(), -1); /* both others precede the third */
    close(a2);
    ck_assert_int_eq(sessions_take(), -1);
    close(b2);
    ck_assert_int_eq(sessions_take(), a3);
    ck_assert_uint_eq(sessions_queued(), 0);
    ck_assert(sessions_active(a3));
    close(a3);
    end(&a);
    end(&b);
    end(&c);
}

TEST(a_child_of_a_program_is_not_a_next_one)
{
    struct program a = begin("0"), b = begin("1");
    int child = connection(), b2 = connection();
    ck_assert(sessions_admit(a.fd, a.pid));
    ck_assert(sessions_admit(b.fd, b.pid));
    ck_assert(sessions_admit(child, a.child));
    close(b.fd);
    ck_assert(!sessions_admit(b2, b.pid));
    close(a.fd);
    ck_assert_int_eq(sessions_take(), -1); /* the first's child is active */
    close(child);
    ck_assert_int_eq(sessions_take(), b2);
    close(b2);
    end(&a);
    end(&b);
}

TEST(a_program_after_the_first_has_left_is_a_next_one)
{
    struct program a = begin("0"), b = begin("1");
    int again = connection(), next = connection();
    ck_assert(sessions_admit(a.fd, a.pid));
    ck_assert(sessions_admit(b.fd, b.pid));
    ck_assert(sessions_admit(again, a.pid)); /* its own other connection: no wait */
    hang_up(a.fd);
    hang_up(again);
    ck_assert(!sessions_admit(next, a.child)); /* libpmix has not closed yet */
    close(a.fd);
    close(again);
    close(b.fd);
    ck_assert_int_eq(sessions_take(), next);
    end(&a);
    end(&b);
}

TEST(a_queued_client_that_disconnects_is_not_counted)
{
    struct program a = begin("0"), b = begin("1");
    int gone = connection(), a2 = connection(), b2 = connection();
    ck_assert(sessions_admit(a.fd, a.pid));
    ck_assert(sessions_admit(b.fd, b.pid));
    close(a.fd);
    ck_assert(!sessions_admit(gone, a.pid));
    hang_up(gone);
    ck_assert(!sessions_admit(a2, a.pid)); /* it reconnects */
    ck_assert_uint_eq(sessions_queued(), 1);
    close(b.fd);
    ck_assert(sessions_admit(b2, b.pid));
    ck_assert_int_eq(sessions_take(), a2); /* with it, as it is not a third program */
    end(&a);
    end(&b);
}

TEST(a_reused_descriptor_number_is_not_active)
{
    struct program a = begin("0"), b = begin("1");
    int b2 = connection(), other = connection();
    ck_assert(sessions_admit(a.fd, a.pid));
    ck_assert(sessions_admit(b.fd, b.pid));
    close(b.fd);
    ck_assert(!sessions_admit(b2, b.pid));
    ck_assert_int_eq(dup2(other, a.fd), a.fd);
    ck_assert(!sessions_active(a.fd));
    ck_assert_int_eq(sessions_take(), b2);
    end(&a);
    end(&b);
}
