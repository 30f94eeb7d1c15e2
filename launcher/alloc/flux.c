/* launcher/alloc/flux.c - see flux.h */
#include "launcher/alloc/flux.h"

#include "common/err.h"
#include "common/helper.h"
#include "common/hostlist.h"
#include "common/idset.h"
#include "common/scoped.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { ASK_MS = 20000, ANSWER_MAX = 16 << 20 };

/* --- reading an R ------------------------------------------------------------------- */

static int read_idset(const json_t *text, struct idset *set, struct ddp_err *err)
{
    if (json_is_string(text))
        return idset_parse(json_string_value(text), set, err);
    return err_set(err, "expected an idset");
}

/* Assign the GPUs of one entry of R_lite to its broker ranks' nodes. */
static int add_gpus(const json_t *entry, const struct idset *all, struct alloc *a,
                    struct ddp_err *err)
{
    SCOPED(idset_finish) struct idset ranks = {0};
    SCOPED(idset_finish) struct idset gpus = {0};
    const json_t *gpu = json_object_get(json_object_get(entry, "children"), "gpu");
    TRY(read_idset(json_object_get(entry, "rank"), &ranks, err));
    if (gpu)
        TRY(read_idset(gpu, &gpus, err));
    int n = (int)idset_count(&gpus);
    size_t at = 0;
    for (size_t s = 0; n > 0 && s < all->n; s++) {
        for (int r = all->spans[s].lo; r <= all->spans[s].hi; r++, at++) {
            if (idset_has(&ranks, r))
                alloc_set_slots(&a->nodes[at], n, SLOTS_GIVEN, "its GPUs, from Flux");
        }
    }
    return 0;
}

static int add_names(const json_t *list, struct alloc *a, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return err_set(err, "no list of nodes");
    json_array_foreach (list, i, item) {
        if (!json_is_string(item))
            return err_set(err, "a node name that is not a string");
        TRY(hostlist_expand(json_string_value(item), &names, err));
    }
    for (i = 0; i < names.n; i++)
        alloc_add(a, names.v[i]);
    return 0;
}

static int read_r(const json_t *root, struct alloc *a, struct ddp_err *err)
{
    const json_t *execution = json_object_get(root, "execution");
    const json_t *lite = json_object_get(execution, "R_lite");
    SCOPED(idset_finish) struct idset all = {0};
    size_t i;
    json_t *entry;
    TRY(add_names(json_object_get(execution, "nodelist"), a, err));
    json_array_foreach (lite, i, entry)
        TRY(read_idset(json_object_get(entry, "rank"), &all, err));
    if (a->nnodes == 0 || (size_t)idset_count(&all) != a->nnodes)
        return err_set(err, "%zu names of nodes for %ld ranks", a->nnodes,
                       idset_count(&all));
    json_array_foreach (lite, i, entry)
        TRY(add_gpus(entry, &all, a, err));
    return 0;
}

int flux_parse(const char *text, size_t size, struct alloc *a, struct ddp_err *err)
{
    json_error_t why;
    json_auto_t *root = json_loadb(text, size, JSON_DISABLE_EOF_CHECK, &why);
    int rc = root
                 ? read_r(root, a, err)
                 : err_set(err, "line %d, column %d: %s", why.line, why.column, why.text);
    return rc < 0 ? err_prefix(err, "Flux's list of resources") : 0;
}

/* --- query -------------------------------------------------------------------------- */

/* In a job's tasks FLUX_URI is the instance that runs the job, with all its nodes; the
 * script of a batch job is the initial program of its own instance. */
static int read_flux(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    const char *job = sched_env("FLUX_JOB_ID");
    const char *instance[] = {"flux", "resource", "R", "-s", "up", NULL},
               *task[] = {"flux", "job", "info", job, "R", NULL};
    const char *command = job ? "flux job info" : "flux resource R";
    struct helper h = {
        .argv = job ? task : instance, .answer_ms = ASK_MS, .most = ANSWER_MAX};
    OWNED char *text = NULL;
    size_t size;
    int status, rc = helper_ask(&h, &text, &size, &status);
    if (rc < 0 && errno == ETIMEDOUT)
        err_set(err, "'%s' has not answered within %d s; -H names the nodes", command,
                ASK_MS / 1000);
    else if (rc < 0)
        err_errno(err, "FLUX_URI is set, but 'flux' cannot be run to ask for the nodes");
    else if (status != 0)
        rc = err_set(err,
                     "'%s' has failed (status %d); is this inside an allocation of Flux? "
                     "--alloc local if it is not",
                     command,
                     WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    else
        rc = flux_parse(text, size, a, err);
    a->scheduler_owned = true;
    return rc;
}

static bool detect(const struct opts *opts)
{
    return sched_env("FLUX_URI");
}

const struct alloc_source alloc_flux = {"flux", detect, read_flux, "FLUX_URI", NULL};
