/* rendezvous/protocol/reply_cache.h - long replies that many clients request
 *
 * In a fence every client requests the same thousands of keys while nothing is written:
 * the reply is built once and shared.
 */
#ifndef RENDEZVOUS_PROTOCOL_REPLY_CACHE_H
#define RENDEZVOUS_PROTOCOL_REPLY_CACHE_H

#include "rendezvous/protocol/out.h"

/* Created by the first call; owned by the session_host. */
struct reply_cache;

void reply_cache_multi_get(struct reply_cache **cache, struct space *s,
                           struct packed keys, struct out *out);
void reply_cache_list_keys(struct reply_cache **cache, struct space *s, struct out *out);
void reply_cache_destroy(struct reply_cache *m); /* NULL is fine */

#endif
