/* rendezvous/protocol/http.h - the key-value protocol of Horovod's rendezvous server
 *
 * GET, PUT and DELETE of /SCOPE/KEY, as Horovod's Gloo clients send them: a connection
 * per request, closed by the client. The key in the store is the path without its first
 * slash; PyTorch's keys begin with one, so the two never conflict. A GET of a missing key
 * is held until the key exists, or until session_expire(), which answers with 404;
 * Horovod then repeats it (horovodrun's server answers at once, and gets 91 GETs a
 * second).
 *
 * Elastic ranks PUT worker_addresses/HOST:LOCAL_RANK and, to join the next world, GET
 * rank_and_size/HOST:LOCAL_RANK. The host of the session gets both; it answers the GET by
 * setting the key, and the answer deletes it. That GET has no time limit. The host also
 * gets the key when a rank PUTs global/RANK, by which the others find it, and DELETEs
 * cross_LOCAL_RANK/CROSS_RANK, when it has connected to all of them.
 */
#ifndef RENDEZVOUS_PROTOCOL_HTTP_H
#define RENDEZVOUS_PROTOCOL_HTTP_H

#include "rendezvous/protocol/session.h"

/* May this be the first byte of a request? No opcode of the TCPStore is equal to it. */
bool http_begins(uint8_t first);

/* A key of Horovod's Gloo, which is valid in one world only. */
bool http_is_of_world(struct bytes key);

/* As session_feed(). */
ssize_t http_feed(struct session *s, const uint8_t *in, size_t n, struct out *out,
                  struct ddp_err *err);

#endif
