/* bench/store/peers.h - many clients on one thread
 *
 * Each peer goes through the steps of a workload; the engine counts rounds until a quota
 * is used up. Every reply is compared with what it must be; one that differs ends the
 * program, since the time of a wrong answer is worth nothing.
 */
#ifndef BENCH_STORE_PEERS_H
#define BENCH_STORE_PEERS_H

#include "bench/store/workload.h"

struct peer {
    int fd;
    const struct workload *work; /* borrowed; NULL: idle */
    struct buf own;              /* said before the first step */
    size_t step, sent, got, lines;
    int64_t began_ns;
};

/* Whom the clients pretend to be: client i comes from the i/each-th address after `first`
 * (this machine must have it). NULL: from wherever the kernel likes. */
struct hosts {
    const char *first;
    size_t each;
};

struct peers {
    int epoll;
    size_t n, busy;
    struct peer *all; /* owned */
    const char *host;
    int port;
    int64_t *samples; /* owned: duration of rounds, ns */
    size_t nsamples, room;
};

/* Connects `n` peers and lets each say hello, `window` at a time. */
void peers_open(struct peers *p, const char *host, int port, const struct hosts *from,
                enum kind kind, size_t n, size_t window);
void peers_close(struct peers *p);

/* Peer `i` begins a round of `w`. */
void peer_start(struct peers *p, size_t i, const struct workload *w);
/* Runs until all peers are idle. Starts `more` further rounds, each by a peer that is
 * ready. */
void peers_run(struct peers *p, size_t more);
/* The peer's reply steps without sending anything more (it has been asked before). */
void peers_run_one(struct peers *p, size_t i, const struct exchange *x);

#endif
