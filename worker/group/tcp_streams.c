/* worker/group/tcp_streams.c - how many streams long data are divided over
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
#include "worker/group/tcp.h"

#include "common/err.h"
#include "common/number.h"

#include <stdlib.h>

enum {
    MEASURED = 1 << 20, /* bytes sent in a ring, at least, to measure it */
    SAMPLES = 8,        /* rings per number: a late rank makes many of them slow, and this
                           rank's own lateness a few fast, as their data have arrived */
    GAIN = 5,           /* twice as many streams must save 1/GAIN of the time */
    AGAIN = 2000        /* rings until the next attempt with more */
};

int tcp_streams_init(struct tcp_streams *s, struct ddp_err *err)
{
    const char *text = getenv("DDP_TCP_STREAMS");
    int n = 1;
    if (text && *text && !number_whole(text, 1, TCP_STREAMS, &n))
        return err_set(err, "DDP_TCP_STREAMS is '%s': give a number from 1 to %d", text,
                       TCP_STREAMS);
    *s = (struct tcp_streams){.n = (unsigned)n, .given = text && *text};
    return 0;
}

void tcp_streams_measured(struct tcp_streams *s, int team, uint64_t bytes, int64_t ns)
{
    if (s->given || bytes < MEASURED || s->turns++ < team)
        return; /* the others do not use n yet */
    double cost = (double)ns / (double)bytes;
    for (int i = 0; i < STREAMS_LOW; i++) {
        double other = s->low[i];
        if (other == 0 || cost < other) {
            s->low[i] = cost;
            cost = other;
        }
    }
    if (s->turns < team + SAMPLES)
        return;
    double took = s->low[STREAMS_LOW - 1];
    bool pays = s->fewer == 0 || took * GAIN < s->fewer * (GAIN - 1);
    if (pays && s->n < TCP_STREAMS)
        *s = (struct tcp_streams){.n = 2 * s->n, .fewer = took};
    else
        *s = (struct tcp_streams){.n = pays ? s->n : s->n / 2, .turns = -AGAIN};
}

void tcp_streams_follow(struct tcp_streams *s, unsigned n)
{
    if (!s->given)
        s->n = n;
}
