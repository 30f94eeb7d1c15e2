/* worker/group/request.h - requests: operations the user holds a handle of */
#ifndef WORKER_GROUP_REQUEST_H
#define WORKER_GROUP_REQUEST_H

#include "worker/group/group.h"

/* Can the backend move this memory (host or device)? */
int group_check_memory(const struct ddp_group *g, const void *p, struct ddp_err *err);

/* A copy for the user, freed by ddp_wait(), ddp_test() or ddp_cancel(). */
struct ddp_request *request_hand_out(struct ddp_group *g, const struct ddp_request *r);
/* Make a first attempt; ddp_test() or ddp_wait() report a failure. Returns `r`. */
struct ddp_request *request_set_off(struct ddp_group *g, struct ddp_request *r);
/* Free all requests of a group, also those the user has not waited for. */
void requests_free(struct ddp_group *g);

#endif
