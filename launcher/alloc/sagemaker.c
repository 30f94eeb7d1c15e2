/* launcher/alloc/sagemaker.c - see sagemaker.h
 *
 * Both texts are JSON, read by jansson: {"current_host": "algo-1", "hosts": [...], ...},
 * and the bare list in SM_HOSTS.
 */
#include "launcher/alloc/sagemaker.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char default_file[] = "/opt/ml/input/config/resourceconfig.json";

static const char *config_file(void)
{
    const char *other = sched_env("DDPRUN_RESOURCECONFIG");
    return other ? other : default_file;
}

bool sagemaker_here(void)
{
    return access(config_file(), F_OK) == 0 ||
           (sched_env("SM_HOSTS") && sched_env("SM_CURRENT_HOST"));
}

/* algo-2 before algo-10: strverscmp() counts runs of digits as numbers. */
static int by_number(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

static int read_list(const char *where, const json_t *list, struct strv *hosts,
                     struct ddp_err *err)
{
    size_t i;
    json_t *item;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return err_set(err, "%s: no list of hosts", where);
    json_array_foreach (list, i, item) {
        const char *name = json_string_value(item);
        if (!name || !*name)
            return err_set(err, "%s: host %zu of the list is no name", where, i);
        strv_push(hosts, name);
    }
    qsort(hosts->v, hosts->n, sizeof *hosts->v, by_number);
    for (i = 1; i < hosts->n; i++) {
        if (strcmp(hosts->v[i - 1], hosts->v[i]) == 0)
            return err_set(err, "%s: '%s' is in the list twice", where,
                           SANITIZED(hosts->v[i]));
    }
    return 0;
}

static int find_current(const char *where, const char *name, const struct strv *hosts,
                        int *current, struct ddp_err *err)
{
    for (size_t i = 0; name && i < hosts->n; i++) {
        if (strcmp(hosts->v[i], name) == 0) {
            *current = (int)i;
            return 0;
        }
    }
    return err_set(err, "%s: the current host '%s' is not in the list", where,
                   SANITIZED(name ? name : ""));
}

int sagemaker_hosts(struct strv *hosts, int *current, struct ddp_err *err)
{
    const char *path = config_file(), *own = sched_env("SM_CURRENT_HOST");
    bool file = access(path, F_OK) == 0;
    json_error_t why;
    json_auto_t *root =
        file ? json_load_file(path, 0, &why) : json_loads(sched_env("SM_HOSTS"), 0, &why);
    if (!root)
        return file ? err_set(err, "%s:%d:%d: %s", path, why.line, why.column,
                              SANITIZED(why.text))
                    : err_set(err, "SM_HOSTS='%s': %s", SANITIZED(sched_env("SM_HOSTS")),
                              SANITIZED(why.text));
    if (file)
        own = json_string_value(json_object_get(root, "current_host"));
    TRY(read_list(file ? path : "SM_HOSTS", file ? json_object_get(root, "hosts") : root,
                  hosts, err));
    return find_current(file ? path : "SM_CURRENT_HOST", own, hosts, current, err);
}

/* --- as a source of hosts ----------------------------------------------------------- */

static bool detect(const struct opts *opts)
{
    return sagemaker_here();
}

/* Not called for several hosts, each of which runs its own ddprun that joins the others
 * (launcher/peer): only for a job of one host, or --alloc sagemaker on the first host,
 * with an sshd in every container. */
static int read_sagemaker(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv hosts = {0};
    int current, rc = sagemaker_hosts(&hosts, &current, err);
    const char *gpus = sched_env("SM_NUM_GPUS");
    int n = gpus && strcmp(gpus, "0") != 0 ? sched_gpus("SM_NUM_GPUS", gpus, err) : 0;
    a->scheduler_owned = true;
    for (size_t i = 0; rc == 0 && n >= 0 && i < hosts.n; i++) {
        struct alloc_node *node = sched_add(a, "the list of hosts", hosts.v[i], err);
        rc = node ? 0 : -1;
        if (node)
            node->local = (int)i == current;
        if (node && n > 0)
            alloc_set_slots(node, n, SLOTS_GIVEN, "SM_NUM_GPUS");
    }
    return rc < 0 || n < 0 ? -1 : 0;
}

const struct alloc_source alloc_sagemaker = {"sagemaker", detect, read_sagemaker, NULL,
                                             NULL};
