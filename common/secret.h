/* common/secret.h - the job key: create it, prove it, seal messages with it
 *
 * Implemented with libsodium, which only secret.c and digest.c use: BLAKE2b with a key as
 * the MAC, ChaCha20-Poly1305 (RFC 8439) for sealing, crypto_kx (X25519) for ephemeral
 * keys, the kernel's random numbers.
 */
#ifndef COMMON_SECRET_H
#define COMMON_SECRET_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SECRET_SIZE = 32, SEAL_EXTRA = 16 };

struct secret {
    unsigned char bytes[SECRET_SIZE];
};

int secret_make(struct secret *s, struct ddp_err *err);
void secret_to_hex(const struct secret *s, char text[SECRET_SIZE * 2 + 1]);
int secret_from_hex(const char *text, struct secret *s, struct ddp_err *err);
void secret_wipe(void *p, size_t n); /* not optimised away */

/* Derive a key or a proof for one purpose (`label`) from `key` and two pieces of data. */
void secret_derive(const struct secret *key, const char *label, const void *a, size_t na,
                   const void *b, size_t nb, struct secret *out);

/* Ephemeral keys (X25519), for forward secrecy: a recorded exchange stays secret even if
 * the long-lived keys become known later. */
struct exchange {
    unsigned char public[SECRET_SIZE]; /* to be sent */
    unsigned char private[SECRET_SIZE];
};

void exchange_make(struct exchange *x);
/* The secrets of the two directions, equal on both sides: `down` from the one that
 * `listens` to the other. Wipes the private key. -1: `theirs` is not a valid public key.
 */
int exchange_finish(struct exchange *x, bool listens,
                    const unsigned char theirs[SECRET_SIZE], struct secret *down,
                    struct secret *up);

/* In constant time. */
bool secret_equal(const struct secret *a, const struct secret *b);

/* One direction of a connection: its key, and a counter as the nonce, so that replayed,
 * dropped or reordered messages make seal_open() fail. */
struct seal {
    struct secret key;
    uint64_t count;
};

/* `sealed` has room for size + SEAL_EXTRA bytes. `head` is authenticated, not encrypted.
 */
void seal_close(struct seal *s, const void *head, size_t nhead, const void *plain,
                size_t size, unsigned char *sealed);
/* `plain` has room for size - SEAL_EXTRA bytes, and may be `sealed` itself. */
int seal_open(struct seal *s, const void *head, size_t nhead, const unsigned char *sealed,
              size_t size, unsigned char *plain);

#endif
