/* worker/group/bootstrap_no_pmix.c - in the place of bootstrap_pmix.c where PMIx is not
 * built in
 */
#include "worker/group/bootstrap.h"

#include "common/err.h"

int bootstrap_share_pmix(const struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                         int *held, struct ddp_err *err)
{
    return err_set(err, "the launcher offers PMIx, which is not built in here; set "
                        "MASTER_ADDR and MASTER_PORT to those of a store, or DDP_MEETING "
                        "to tcp://HOST:PORT with a port of rank 0's host");
}
