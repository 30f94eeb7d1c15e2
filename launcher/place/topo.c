/* launcher/place/topo.c - see topo.h */
#include "launcher/place/topo.h"

#include "common/err.h"
#include "common/helper.h"
#include "common/installed.h"
#include "common/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM    "ddprun-topo"
#define TIMEOUT_MS 10000
#define TEXT_MAX   (1 << 20) /* some 50,000 CPUs */

int topo_load(struct topo *t, struct ddp_err *err)
{
    OWNED char *path = installed_file(INSTALLED_PROGRAM, PROGRAM, X_OK);
    OWNED char *text = NULL;
    size_t n;
    int status;
    if (!path)
        return err_set(err, "cannot bind: '" PROGRAM "' is not beside ddprun's programs");
    struct helper h = {
        .argv = (const char *[]){path, NULL}, .answer_ms = TIMEOUT_MS, .most = TEXT_MAX};
    int rc = helper_ask(&h, &text, &n, &status);
    if (rc < 0 && errno == ETIMEDOUT)
        err_set(err, "cannot bind: '%.200s' did not end within %d s", path,
                TIMEOUT_MS / 1000);
    else if (rc < 0)
        err_errno(err, "cannot bind: cannot run '%.200s'", path);
    else if (status != 0)
        rc = err_set(err, "cannot bind: '%.200s' failed", path);
    else if (n == TEXT_MAX) /* truncated: the missing CPUs would not be used */
        rc = err_set(err, "cannot bind: '%.200s' prints more than %d bytes", path,
                     TEXT_MAX - 1);
    else
        rc = topo_parse(text, t, err);
    return rc;
}

int topo_parse(const char *text, struct topo *t, struct ddp_err *err)
{
    int lines = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    t->pus = xcalloc((size_t)lines + 1, sizeof *t->pus);
    t->npus = 0;
    for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
        struct topo_pu *pu = &t->pus[t->npus];
        if (sscanf(p, "%d %d %d %d", &pu->cpu, &pu->core, &pu->numa, &pu->socket) != 4 ||
            pu->cpu < 0 || pu->cpu > IDSET_MAX || !strchr(p, '\n')) {
            topo_finish(t);
            return err_set(err, "cannot bind: '%.*s' does not describe a CPU",
                           (int)strcspn(p, "\n"), p);
        }
        t->npus++;
    }
    if (t->npus == 0) {
        topo_finish(t);
        return err_set(err, "cannot bind: no CPU found");
    }
    return 0;
}

void topo_restrict(struct topo *t, const struct idset *allowed)
{
    int n = 0;
    for (int i = 0; i < t->npus; i++) {
        if (idset_has(allowed, t->pus[i].cpu))
            t->pus[n++] = t->pus[i];
    }
    t->npus = n;
}

void topo_finish(struct topo *t)
{
    free(t->pus);
    *t = (struct topo){0};
}
