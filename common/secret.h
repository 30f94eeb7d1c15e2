/* common/secret.h - the key of a job: make it, prove it, seal messages with it
 *
 * libsodium does the work and is named in secret.c only: BLAKE2b with a key as the MAC,
 * ChaCha20-Poly1305 (RFC 8439) for sealing, its crypto_kx (X25519) for ephemeral keys,
 * the kernel's random numbers.
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

/* A key or a proof for one purpose (`label`) out of `key` and two pieces of data. */
void secret_derive(const struct secret *key, const char *label, const void *a, size_t na,
                   const void *b, size_t nb, struct secret *out);

/* Ephemeral keys (X25519): what two sides derive from a pair each is not known to who
 * reads everything they send, and learns their long-lived keys later. */
struct exchange {
    unsigned char public[SECRET_SIZE]; /* to be sent */
    unsigned char private[SECRET_SIZE];
};

void exchange_make(struct exchange *x);
/* The secrets of the two directions, the same on both sides: `down` from the one that
 * `listens` to the other. Wipes the private key. -1: `theirs` is no public key. */
int exchange_finish(struct exchange *x, bool listens,
                    const unsigned char theirs[SECRET_SIZE], struct secret *down,
                    struct secret *up);

/* In a time that does not depend on where they differ. */
bool secret_equal(const struct secret *a, const struct secret *b);

/* One direction of a connection: a key of its own, and a count that is the nonce, so that
 * nothing can be repeated, left out or moved without the next seal_open() failing. */
struct seal {
    struct secret key;
    uint64_t count;
};

/* `sealed` takes size + SEAL_EXTRA bytes. `head` is covered, but not hidden. */
void seal_close(struct seal *s, const void *head, size_t nhead, const void *plain,
                size_t size, unsigned char *sealed);
/* `plain` takes size - SEAL_EXTRA bytes, and may be `sealed` itself. */
int seal_open(struct seal *s, const void *head, size_t nhead, const unsigned char *sealed,
              size_t size, unsigned char *plain);

#endif
