/* worker/group/mpi_env_pmi.c - PMI-1, as a client: lines on the descriptor PMI_FD
 *
 *   cmd=init pmi_version=1 pmi_subversion=1     cmd=response_to_init ... rc=0
 *   cmd=get_my_kvsname                          cmd=my_kvsname kvsname=K
 *   cmd=put kvsname=K key=A value=B             cmd=put_result rc=0
 *   cmd=barrier_in                              cmd=barrier_out, when all are in
 *   cmd=get kvsname=K key=A                     cmd=get_result rc=0 ... value=B
 *   cmd=finalize                                cmd=finalize_ack
 *
 * Who has said init and not finalize when his end of the socket closes has crashed, to
 * Hydra; and who has said finalize cannot begin again. So it is said at the very end, and
 * only if the descriptor is still the one that it was: MPI may have closed it.
 */
#include "worker/group/mpi_env.h"

#include "common/duration.h"
#include "common/err.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 2048, BYE_MS = 2000 };

static struct {
    int fd;
    dev_t dev;
    ino_t ino; /* of the socket that was there */
    bool joined;
    char name[LINE]; /* of the store of keys */
} pmi = {.fd = -1};

static int say(const char *text, struct ddp_err *err)
{
    for (size_t at = 0, n = strlen(text); at < n;) {
        ssize_t put = send(pmi.fd, text + at, n - at, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return err_errno(err, "the launcher's PMI does not listen");
        at += (size_t)put;
    }
    return 0;
}

/* One line, without its end. It was asked for, so nothing comes behind it. */
static int hear(char line[LINE], int64_t deadline_ms, struct ddp_err *err)
{
    for (size_t n = 0; n < LINE - 1;) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd p = {.fd = pmi.fd, .events = POLLIN};
        int ready = poll(&p, 1, left > 0 ? (int)(left < 60000 ? left : 60000) : 0);
        if (ready == 0 && left <= 0)
            return err_set(err, "the launcher's PMI does not answer: not all ranks have "
                                "come in time");
        ssize_t got = ready > 0 ? read(pmi.fd, line + n, LINE - 1 - n) : -1;
        if (got == 0 || (got < 0 && ready > 0 && errno != EINTR && errno != EAGAIN))
            return err_set(err, "the launcher's PMI has hung up");
        if (got < 0)
            continue;
        n += (size_t)got;
        line[n] = '\0';
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
            return 0;
        }
    }
    return err_set(err, "the launcher's PMI says a line without an end");
}

static int ask(const char *text, const char *answer, char line[LINE], int64_t deadline_ms,
               struct ddp_err *err)
{
    char want[64];
    if (say(text, err) < 0 || hear(line, deadline_ms, err) < 0)
        return -1;
    snprintf(want, sizeof want, "cmd=%s", answer);
    const char *rc = strstr(line, " rc=");
    if (strncmp(line, want, strlen(want)) != 0 || (rc && rc[4] != '0'))
        return err_set(err, "the launcher's PMI says '%.100s' to '%.*s'", line,
                       (int)strcspn(text, " \n"), text);
    return 0;
}

static bool still_there(void)
{
    struct stat st;
    return fstat(pmi.fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_dev == pmi.dev &&
           st.st_ino == pmi.ino;
}

static void leave(void)
{
    char line[LINE];
    static const char bye[] = "cmd=finalize\n";
    if (still_there() && send(pmi.fd, bye, sizeof bye - 1, MSG_NOSIGNAL) > 0)
        hear(line, now_ms() + BYE_MS, NULL);
}

static int join(int64_t deadline_ms, struct ddp_err *err)
{
    char line[LINE];
    struct stat st;
    const char *text = getenv("PMI_FD");
    pmi.fd = text ? atoi(text) : -1;
    if (pmi.fd < 3 || fstat(pmi.fd, &st) < 0)
        return err_set(err, "PMI_FD is '%s', but that descriptor is closed",
                       text ? text : "");
    pmi.dev = st.st_dev;
    pmi.ino = st.st_ino;
    if (ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", line,
            deadline_ms, err) < 0 ||
        ask("cmd=get_my_kvsname\n", "my_kvsname", line, deadline_ms, err) < 0)
        return -1;
    const char *name = strstr(line, " kvsname=");
    if (!name)
        return err_set(err, "the launcher's PMI does not name its store");
    snprintf(pmi.name, sizeof pmi.name, "%.*s", (int)strcspn(name + 9, " "), name + 9);
    pmi.joined = true;
    atexit(leave);
    return 0;
}

int mpi_env_share_pmi(const char *key, int rank, int size, char value[MPI_ENV_VALUE],
                      int64_t deadline_ms, struct ddp_err *err)
{
    char text[LINE + 512], line[LINE];
    const char *world = getenv("PMI_SIZE");
    if (world && atoi(world) != size)
        return err_set(err, "PMI_SIZE is %s, but the group is to have %d ranks", world,
                       size);
    if (!pmi.joined && join(deadline_ms, err) < 0)
        return -1;
    snprintf(text, sizeof text, "cmd=put kvsname=%s key=%s value=%s\n", pmi.name, key,
             value);
    if (rank == 0 && ask(text, "put_result", line, deadline_ms, err) < 0)
        return -1;
    if (ask("cmd=barrier_in\n", "barrier_out", line, deadline_ms, err) < 0)
        return -1;
    snprintf(text, sizeof text, "cmd=get kvsname=%s key=%s\n", pmi.name, key);
    if (ask(text, "get_result", line, deadline_ms, err) < 0)
        return -1;
    const char *got = strstr(line, " value=");
    if (!got || strlen(got + 7) >= MPI_ENV_VALUE)
        return err_set(err, "the launcher's PMI does not give what rank 0 has put");
    snprintf(value, MPI_ENV_VALUE, "%s", got + 7);
    return 0;
}
