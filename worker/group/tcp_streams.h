/* worker/group/tcp_streams.h - how many streams long data are divided over
 *
 * Clouds limit a flow to a part of the link, and one stream is one flow. The first member
 * of a team measures rings of large data and doubles the number of streams as long as
 * that pays; each of the others uses as many as its left neighbour, the one before it in
 * the ring, has used in the last ring. So all have the same number without a message of
 * their own, n - 1 rings after the first member. The comparison opens a second stream
 * also where one fills the link; it is repeated now and then, as the CPUs may have been
 * busy. Point-to-point messages use the number that was found.
 *
 * DDP_TCP_STREAMS sets the number, 1 to TCP_STREAMS; each rank's is for what it sends.
 */
#ifndef WORKER_GROUP_TCP_STREAMS_H
#define WORKER_GROUP_TCP_STREAMS_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TCP_STREAMS = 16,
    STREAMS_LOW = 3 /* the third fastest ring counts */
};

struct tcp_streams {
    unsigned n;              /* streams in use */
    bool given;              /* by the environment: nothing is measured */
    int turns;               /* rings measured with n streams */
    double low[STREAMS_LOW]; /* their lowest ns per byte, in order; 0: none */
    double fewer;            /* low[] at its end with n/2 streams; 0: not measured */
};

int tcp_streams_init(struct tcp_streams *s, struct ddp_err *err);
/* The first of `team` members: a ring in which it sent so many bytes took `ns`. */
void tcp_streams_measured(struct tcp_streams *s, int team, uint64_t bytes, int64_t ns);
/* Another member: its left neighbour has used n. */
void tcp_streams_follow(struct tcp_streams *s, unsigned n);

#endif
