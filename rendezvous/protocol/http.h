/* rendezvous/protocol/http.h - the key-value protocol of Horovod's rendezvous server
 *
 * GET, PUT and DELETE of /SCOPE/KEY, as Horovod's Gloo clients send them: a connection
 * per request, closed by the client. The key in the store is the path without its first
 * slash; PyTorch's keys begin with one, so the two never conflict. A GET of a missing key
 * is held until the key exists, or until session_expire(), which answers with 404;
 * Horovod then repeats it (horovodrun's server answers at once, and gets 91 GETs a
 * second).
 */
#ifndef RENDEZVOUS_PROTOCOL_HTTP_H
#define RENDEZVOUS_PROTOCOL_HTTP_H

#include "rendezvous/protocol/session.h"

/* May this be the first byte of a request? No opcode of the TCPStore is equal to it. */
bool http_begins(uint8_t first);

/* As session_feed(). */
ssize_t http_feed(struct session *s, const uint8_t *in, size_t n, struct out *out,
                  struct ddp_err *err);

#endif
