/* worker/group/request.h - operations that the user holds a handle of */
#ifndef WORKER_GROUP_REQUEST_H
#define WORKER_GROUP_REQUEST_H

#include "worker/group/group.h"

/* Is this memory of the kind that the backend moves? */
int group_takes(const struct ddp_group *g, const void *p, struct ddp_err *err);

/* A copy that the user gets and gives back by ddp_wait(), ddp_test() or ddp_cancel(). */
struct ddp_request *request_hand_out(struct ddp_group *g, const struct ddp_request *r);
/* A first push; a failure is told by ddp_test() or ddp_wait(). Returns `r`. */
struct ddp_request *request_set_off(struct ddp_group *g, struct ddp_request *r);
/* All of a group that ends, also those that the user has not given back. */
void requests_free(struct ddp_group *g);

#endif
