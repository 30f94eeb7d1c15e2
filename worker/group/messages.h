/* worker/group/messages.h - messages from one rank to another
 *
 * Between two ranks runs one stream each way (a ring in shared memory, or a connection),
 * and messages go through it whole, one after the other, in the order in which they were
 * sent. One that comes before its receiver has asked for its tag is kept in memory.
 */
#ifndef WORKER_GROUP_MESSAGES_H
#define WORKER_GROUP_MESSAGES_H

#include "worker/group/group.h"

/* The request ends when its buffer can be used again, or is filled. */
void messages_send(struct ddp_group *g, struct ddp_request *r);
void messages_recv(struct ddp_group *g, struct ddp_request *r);

/* Call one off of which nothing has gone or come. */
bool messages_cancel(struct ddp_group *g, struct ddp_request *r);
/* To other hosts, when the group ends in order. */
void messages_say_goodbye(struct ddp_group *g);

/* 0, or -1 with `*culprit` as elsewhere. */
int messages_progress(struct ddp_group *g, int *culprit, struct ddp_err *err);

/* Is there something to do for a rank of this host: data to take, or room again? */
bool messages_ready(const struct ddp_group *g);
/* Is anything awaited from, or not yet sent to, this rank; or any local rank (-1)? */
bool messages_await(const struct ddp_group *g, int rank);
/* The same of this very rank: one that may come from anybody does not count. */
bool messages_need(const struct ddp_group *g, int rank);
/* It has left in order: messages that may come from anybody come from others. */
void messages_left(struct ddp_group *g, int rank);

void messages_drop(struct ddp_group *g);    /* requests under way; they stay the user's */
void messages_destroy(struct ddp_group *g); /* and everything else */

#endif
