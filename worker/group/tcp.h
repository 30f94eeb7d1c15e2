/* worker/group/tcp.h - byte streams to ranks of other hosts
 *
 * A stream connects two ranks on one of two channels: collectives, whose messages come
 * in an order that both sides know, and point-to-point messages. The rank that sends
 * first opens a TCP connection, shows the receiver's token (from its card) and
 * identifies itself; answers use the same connection. No function here waits except
 * tcp_sleep(): what would block is recorded as an interest, and tcp_sleep() polls for
 * all interests.
 *
 * A rank whose group breaks sends the cause to the others before it closes its streams,
 * so that all ranks report the first cause and not the neighbour that forwarded it.
 */
#ifndef WORKER_GROUP_TCP_H
#define WORKER_GROUP_TCP_H

#include "worker/group/call.h"
#include "worker/group/layout.h"
#include "worker/group/tcp_streams.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

enum tcp_channel {
    TCP_COLL,
    TCP_MESSAGE,
    TCP_NCHANNELS,
    /* Messages may be divided over several streams: stream i of channel c is number
     * c + i * TCP_NCHANNELS. */
    TCP_ALL_CHANNELS = TCP_NCHANNELS * TCP_STREAMS
};

/* Of a message that is divided, its data go in stripes to one stream after the other. A
 * stripe is as much as a stream's buffers in the kernel hold even at first, so that all
 * streams have something to send. */
enum { TCP_STRIPE = 131072 };

/* Bytes sent or received before the other direction gets its turn: large enough to
 * amortise the system calls, small enough that the data are still in the cache of the
 * sender, or of the receiver when it reduces them. */
enum { TCP_TURN = 262144 };

struct tcp;
struct idset;

/* A rank's latest calls, newest first; number 0: none. */
enum { RECENT_CALLS = 16 };
struct recent_calls {
    struct call call[RECENT_CALLS];
};

/* Takes the listening socket out of `listeners`. `entered` counts the collectives that
 * this rank has entered. Both pointers are borrowed. */
struct tcp *tcp_create(const struct layout *layout, struct listeners *listeners,
                       const uint64_t *entered);
void tcp_destroy(struct tcp *n); /* NULL is fine */
/* In a process forked from the rank's: close the copies of descriptors that show other
 * hosts that the rank lives. Allocates and frees nothing. */
void tcp_close_copies(struct tcp *n);

/* Called at the start of each progress round: clears the interests. If data are expected
 * on a stream that is not open, connections are accepted: tcp_failure_reported(). */
bool tcp_begin(struct tcp *n, int *culprit, struct ddp_err *err);

/* Returns the bytes sent, 0 when it would block, -1 when the rank cannot be reached. */
ssize_t tcp_send(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err);
/* Returns the bytes received, 0 when there are none yet, -1 when the rank closed the
 * stream. */
ssize_t tcp_recv(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err);
/* Connect further streams, so that messages to the rank can be divided over `wanted` in
 * all. Returns how many can be used now: fewer while connections are not complete, or for
 * want of descriptors. */
unsigned tcp_widen(struct tcp *n, int rank, enum tcp_channel ch, unsigned wanted);
/* The stream of byte `at` of data that are divided over `nstreams`, and how many of
 * `*bytes` from there go by it. */
enum tcp_channel tcp_stream_of(enum tcp_channel ch, unsigned nstreams, uint64_t at,
                               size_t *bytes);
/* How many of these calls have moved data. */
uint64_t tcp_moves(const struct tcp *n);
/* A scratch buffer of TCP_TURN bytes for the collective in progress. */
char *tcp_scratch(struct tcp *n);

/* Is there a stream for messages with this rank? */
bool tcp_has_stream(const struct tcp *n, int rank);

bool tcp_interested(const struct tcp *n);
/* Sleep until an interest is ready, a connection arrives, or `ms` have passed. */
void tcp_sleep(struct tcp *n, int ms);

/* Check that the ranks that are waited for, or watched, are alive, by polling a stream
 * to each. Opens a stream where there is none: a few per call, and at most half of the
 * process's descriptors. Returns the rank that has gone with `err` filled, or -1. Data
 * from it may have arrived meanwhile; then tcp_still_needs() is false: */
int tcp_look(struct tcp *n, struct ddp_err *err);
/* Is data expected from this rank on a stream that is not open, or data to be sent to
 * it, or is it watched? */
bool tcp_still_needs(struct tcp *n, int rank);

/* Watched ranks: their exit matters in collective `number` although no data from them
 * pass through here. tcp_watch_none() clears the list, tcp_watch() adds to it. They are
 * checked by tcp_look() and get tcp_send_calls(). */
void tcp_watch_none(struct tcp *n, uint64_t number);
void tcp_watch(struct tcp *n, int rank);
/* Tell `ranks`, which watch this rank, that it leaves without an error. */
void tcp_announce_leave(struct tcp *n, const int *ranks, int nranks);

/* Adds the ranks that data are expected from. */
void tcp_awaited(const struct tcp *n, struct idset *ranks);

/* Accept connections and read their hellos. True when any rank has reported, now or
 * earlier, why its group broke; the first report is kept. */
bool tcp_failure_reported(struct tcp *n, int *culprit, struct ddp_err *err);
/* Sleep until a connection arrives, or `ms` have passed. */
void tcp_await_connection(const struct tcp *n, int ms);
/* Send the cause of a failure to ranks of other hosts: all, or those that this rank has
 * a stream with. */
enum tcp_audience { TCP_TO_ALL, TCP_TO_NEIGHBOURS };
void tcp_report_failure(struct tcp *n, int culprit, const char *why,
                        enum tcp_audience audience);
/* Send this rank's latest calls, once each, to the ranks that are waited for or
 * watched: some per call of this function, which does not wait. A rank that has called
 * something else may wait for a third rank and would never find out from its own data;
 * earlier calls are included because NCCL and MPI accept some mismatches. */
void tcp_send_calls(struct tcp *n, const struct recent_calls *mine);
/* The next report of another rank's calls, once this rank has entered the latest of
 * them, too. False: there is none. */
bool tcp_recv_calls(struct tcp *n, int *rank, struct recent_calls *theirs);
/* Ask ranks of other hosts whether they have entered collective `number`: adds those that
 * have not, or do not answer in time. Returns for how many there was no descriptor. */
int tcp_ask(struct tcp *n, uint64_t number, struct idset *late);
/* Does the rank's listening socket, on another host, still accept connections? Not asked:
 * this process has no descriptor left. */
enum tcp_answer { TCP_REFUSES, TCP_ANSWERS, TCP_NOT_ASKED };
enum tcp_answer tcp_answers(const struct tcp *n, int rank);
void tcp_close_streams(struct tcp *n); /* close all streams */

#endif
