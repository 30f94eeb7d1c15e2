/* worker/group/outer_no_pmix.c - in the place of outer_pmix.c where PMIx is not built in
 */
#include "worker/group/outer.h"

#include "common/err.h"

int outer_share_pmix(const char *key, int rank, int size, char value[OUTER_VALUE],
                     int64_t deadline_ms, struct ddp_err *err)
{
    return err_set(err, "the launcher offers PMIx, which is not built in here; set "
                        "MASTER_ADDR and MASTER_PORT to those of a store, or DDP_MEETING "
                        "to tcp://HOST:PORT with a port of rank 0's host");
}
