/* launcher/peer/key.c - see key.h */
#include "launcher/peer/key.h"

#include "common/err.h"
#include "common/folder.h"
#include "common/scoped.h"
#include "common/text_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 4096, SHORTEST = 16 };

static void make_key(const char *label, const void *secret, size_t n,
                     const struct ambient_job *o, struct secret *key)
{
    struct secret none = {{0}};
    secret_derive(&none, label, secret, n, o->id, strlen(o->id), key);
}

static int check_length(const char *where, size_t n, struct ddp_err *err)
{
    return n >= SHORTEST
               ? 0
               : err_set(err,
                         "%s is too short for a secret: %d bytes at least, as from "
                         "'openssl rand -hex 32'",
                         where, SHORTEST);
}

static int from_file(const char *path, const struct ambient_job *o, struct peer_key *k,
                     struct ddp_err *err)
{
    char text[FILE_MAX];
    struct stat st;
    const struct text_source from = {"file of --peer-key", path, TEXT_FILE_SILENCE_MS};
    SCOPED(close_fd) int fd = text_file_open(&from, err);
    ssize_t n = fd < 0 ? -1 : text_file_fill(&from, fd, text, sizeof text, err);
    int rc =
        n < 0                ? -1
        : fstat(fd, &st) < 0 ? err_errno(err, "cannot read --peer-key '%s'", path)
        : st.st_mode & 077
            ? err_set(err, "--peer-key '%s' can be read by others: chmod 600 it", path)
            : 0;
    while (rc == 0 && n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (rc == 0)
        rc = check_length("the secret in --peer-key", (size_t)n, err);
    if (rc == 0)
        make_key("ddprun secret", text, (size_t)n, o, &k->key);
    secret_wipe(text, sizeof text);
    return rc;
}

int peer_key_find(const struct opts *opts, const struct ambient_job *o, bool addressed,
                  struct peer_key *k, struct ddp_err *err)
{
    const char *where = opts->peer_key, *given = getenv("DDPRUN_KEY");
    *k = (struct peer_key){0};
    if (where ? strcmp(where, "none") == 0 : o->apart && !given) {
        k->open = true;
        make_key("ddprun open", "", 0, o, &k->key);
        return o->rank > 0 || o->hosts.n > 0 || opts->hosts
                   ? 0
                   : err_set(err, "--peer-key none needs -H: only the hosts it names may "
                                  "join");
    }
    if (where && !is_folder(where))
        return from_file(where, o, k, err);
    if (!where && given) {
        int rc = check_length("DDPRUN_KEY", strlen(given), err);
        make_key("ddprun secret", given, strlen(given), o, &k->key);
        return rc;
    }
    if (!where && o->secret && addressed) {
        make_key("ddprun starter", o->secret, strlen(o->secret), o, &k->key);
        return 0;
    }
    if (!where && o->by_hand && getenv("KUBERNETES_SERVICE_HOST"))
        return err_set(err,
                       "pods usually share no home directory: give all of them the "
                       "same DDPRUN_KEY from a Secret (doc/kubernetes.md), or --peer-key "
                       "with a file or a shared directory");
    k->meeting_file = meeting_file_create(where, o->id, err);
    return k->meeting_file ? secret_make(&k->key, err) : -1;
}

void peer_key_finish(struct peer_key *k)
{
    meeting_file_destroy(k->meeting_file);
    secret_wipe(&k->key, sizeof k->key);
    *k = (struct peer_key){0};
}
