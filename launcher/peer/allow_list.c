/* launcher/peer/allow_list.c - see allow_list.h */
#include "launcher/peer/allow_list.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/alloc/source.h"

struct hostset *allow_list_hosts(const struct opts *opts, const struct ambient_job *o,
                                 struct ddp_err *err)
{
    if (o->hosts.n > 0)
        return hostset_create(&o->hosts);
    struct alloc a = {0};
    struct strv names = {0};
    if (!opts->hosts)
        err_set(err, "--peer-key none needs -H: only the hosts it names may join");
    else if (alloc_hosts_arg.read(opts, &a, err) == 0) {
        for (size_t i = 0; i < a.nnodes; i++)
            strv_push(&names, a.nodes[i].name);
    }
    struct hostset *set = names.n > 0 ? hostset_create(&names) : NULL;
    strv_finish(&names);
    alloc_clear(&a);
    return set;
}
