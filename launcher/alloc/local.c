/* launcher/alloc/local.c - the default: this machine */
#include "common/err.h"
#include "launcher/alloc/source.h"

#include <limits.h>
#include <unistd.h>

static bool detect(const struct opts *opts)
{
    return true;
}

static int read_local(const struct opts *opts, struct alloc *alloc, struct ddp_err *err)
{
    char name[HOST_NAME_MAX + 1];
    if (gethostname(name, sizeof name) < 0)
        return err_errno(err, "cannot tell the name of this machine");
    name[sizeof name - 1] = '\0';
    alloc_add(alloc, name[0] ? name : "localhost")->local = true;
    return 0;
}

const struct alloc_source alloc_local = {"local", detect, read_local, NULL, NULL};
