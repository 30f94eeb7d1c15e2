/* rendezvous/protocol/memo.h - long replies that many clients get
 *
 * At a fence every client asks for the same thousands of keys, and nothing is written
 * meanwhile: the reply is built once and shared.
 */
#ifndef RENDEZVOUS_PROTOCOL_MEMO_H
#define RENDEZVOUS_PROTOCOL_MEMO_H

#include "rendezvous/protocol/out.h"

struct memo; /* made by the first use */

void memo_multi_get(struct memo **m, struct space *s, struct packed keys,
                    struct out *out);
void memo_list_keys(struct memo **m, struct space *s, struct out *out);
void memo_destroy(struct memo *m); /* NULL is fine */

#endif
