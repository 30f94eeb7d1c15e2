/* worker/group/bootstrap_pmi.c - exchange of a value among ranks by PMI-1
 *
 * Finalize is sent at exit, and only if the descriptor is still the same socket: MPI may
 * have closed it.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/pmi_client.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LINE = PMI_CLIENT_LINE, BYE_MS = 2000 };

static struct {
    int fd;
    dev_t dev;
    ino_t ino; /* of the socket that was there */
    bool joined;
    char name[LINE]; /* of the store of keys */
} pmi = {.fd = -1};

static bool still_there(void)
{
    struct stat st;
    return fstat(pmi.fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_dev == pmi.dev &&
           st.st_ino == pmi.ino;
}

static void leave(void)
{
    char line[LINE];
    int64_t deadline_ms = now_ms() + BYE_MS;
    if (still_there())
        pmi_client_ask(pmi.fd, "cmd=finalize\n", "finalize_ack", line, &deadline_ms,
                       NULL);
}

static int join(int64_t *deadline_ms, struct ddp_err *err)
{
    struct stat st;
    const char *text = getenv("PMI_FD");
    pmi.fd = text ? atoi(text) : -1;
    if (pmi.fd < 3 || fstat(pmi.fd, &st) < 0)
        return err_set(err, "PMI_FD is '%s', but that descriptor is closed",
                       text ? text : "");
    pmi.dev = st.st_dev;
    pmi.ino = st.st_ino;
    TRY(pmi_client_begin(pmi.fd, pmi.name, deadline_ms, err));
    pmi.joined = true;
    atexit(leave);
    return 0;
}

int bootstrap_share_pmi(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                        struct ddp_err *err)
{
    char text[LINE + 512], line[LINE], key[32];
    const char *world = getenv("PMI_SIZE");
    if (world && atoi(world) != m->size)
        return err_set(err, "PMI_SIZE is %s, but the group is to have %d ranks", world,
                       m->size);
    if (!pmi.joined && join(&m->deadline_ms, err) < 0)
        return -1;
    bootstrap_key(m, key);
    snprintf(text, sizeof text, "cmd=put kvsname=%s key=%s value=%s\n", pmi.name, key,
             value);
    if (m->rank == 0 &&
        pmi_client_ask(pmi.fd, text, "put_result", line, &m->deadline_ms, err) < 0)
        return -1;
    TRY(pmi_client_ask(pmi.fd, "cmd=barrier_in\n", "barrier_out", line, &m->deadline_ms,
                       err));
    snprintf(text, sizeof text, "cmd=get kvsname=%s key=%s\n", pmi.name, key);
    TRY(pmi_client_ask(pmi.fd, text, "get_result", line, &m->deadline_ms, err));
    const char *got = strstr(line, " value=");
    if (!got || strlen(got + 7) >= BOOTSTRAP_VALUE)
        return err_set(err, "the launcher's PMI does not give what rank 0 has put");
    snprintf(value, BOOTSTRAP_VALUE, "%s", got + 7);
    return 0;
}
