/* worker/group/net.h - byte streams to the ranks that do not share our memory
 *
 * A stream goes from one rank to another, on one of two channels: collectives, whose
 * messages come in an order that both sides know, and messages between two ranks. Who has
 * something to say first opens a TCP connection, shows the receiver's secret (from its
 * card), and says who it is; the answer comes back by the same connection. Nothing here
 * waits: what cannot be done now is noted as an interest, and net_sleep() sleeps until
 * one of them can.
 *
 * A rank whose group breaks tells the others why before it closes its streams, so that
 * all name the first cause and not the neighbour who passed it on.
 */
#ifndef WORKER_GROUP_NET_H
#define WORKER_GROUP_NET_H

#include "worker/group/meet.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

enum net_channel { NET_COLL, NET_MESSAGE, NET_NCHANNELS };

/* What is sent, or received, before the other direction has its turn: long enough that
 * the calls do not count, short enough that what comes is still in the caches of the CPU
 * that sent it, or of mine when it is added to. */
enum { NET_TURN = 262144 };

struct net;

/* What a rank calls: one collective. */
struct call {
    uint64_t number, bytes;
    uint32_t what; /* coll_what() */
};

/* What it has called last, the latest first; number 0: nothing. */
enum { CALLS_SAID = 16 };
struct said_calls {
    struct call call[CALLS_SAID];
};

/* Takes the listening socket out of `doors`. `entered` counts the collectives that this
 * rank has entered; both pointers are borrowed. */
struct net *net_create(const struct layout *layout, struct meet_doors *doors,
                       const uint64_t *entered);
void net_destroy(struct net *n); /* NULL is fine */

/* Forget the interests of the last round. */
void net_begin(struct net *n);

/* Bytes taken, 0 when there is no room now, -1 when the rank cannot be reached. */
ssize_t net_send(struct net *n, int rank, enum net_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err);
/* Bytes got, 0 when there are none yet, -1 when the rank has closed the stream. */
ssize_t net_recv(struct net *n, int rank, enum net_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err);
/* Counts the calls of these two that moved something. */
uint64_t net_moves(const struct net *n);
/* NET_TURN bytes that stay where they are, for the collective that is under way. */
char *net_room(struct net *n);

/* Is there a stream for messages with this rank? */
bool net_has_stream(const struct net *n, int rank);

bool net_interested(const struct net *n);
/* Is something awaited on a stream that has not been opened yet? Then net_told() lets it
 * in. */
bool net_expects(const struct net *n);
/* Sleep until an interest can be served, somebody connects, or `ms` have passed. */
void net_sleep(struct net *n, int ms);

/* Look whether those that are waited for, or watched, still live, by any stream there is
 * with them; opens one to those that have none: to a few each time, since who waits for
 * anybody waits for thousands, and as long as these take no more than half of the
 * descriptors that the process may have. Returns the rank that has gone with `err`
 * filled, or -1. What it has sent may have come meanwhile: */
int net_look(struct net *n, struct ddp_err *err);
/* Is something awaited from this rank on a stream that is not there, or to be sent, or is
 * it watched? */
bool net_misses(const struct net *n, int rank);

/* Ranks whose end matters although nothing of what comes from them is seen here, in
 * collective `number`: first nobody, then each. They are looked at, and told what I call,
 * until the next net_watch_none(). */
void net_watch_none(struct net *n, uint64_t number);
void net_watch(struct net *n, int rank);
/* I leave in order: those that watch me shall not take it for more than it is. */
void net_take_leave(struct net *n, const int *ranks, int nranks);

/* Ranks of which something is awaited: up to `max` into `ranks`; returns how many. */
int net_awaited(const struct net *n, int *ranks, int max);

/* Take what newcomers say. True when, now or earlier, a rank has told why its group
 * broke; the first cause that came is kept. */
bool net_told(struct net *n, int *culprit, struct ddp_err *err);
/* Sleep until somebody may have something to tell, or `ms` have passed. */
void net_await_news(const struct net *n, int ms);
/* Tell ranks of other hosts: all, or those that this rank has a stream with. */
enum net_audience { NET_TO_ALL, NET_TO_NEIGHBOURS };
void net_tell(struct net *n, int culprit, const char *why, enum net_audience audience);
/* Tell ranks of which something is awaited, or that are watched, each once, what I call:
 * some now, and more when asked again. One that calls something else may wait for
 * somebody quite different, and would never find out by what comes to it. What I called
 * before goes with it: some libraries let calls pass that differ. Nothing is waited for
 * here. */
void net_say_calls(struct net *n, const struct said_calls *mine);
/* What another one has told that way, if I have entered the latest of them, too: false
 * when there is nothing left. */
bool net_hear_calls(struct net *n, int *rank, struct said_calls *theirs);
/* Which ranks of other hosts have not entered collective `number`, or do not answer soon:
 * up to `max` into `late`; returns how many. */
int net_ask(struct net *n, uint64_t number, int *late, int max);
/* Does a rank of another host still listen, whatever has become of our streams? */
bool net_answers(const struct net *n, int rank);
void net_hang_up(struct net *n); /* close all streams */

#endif
