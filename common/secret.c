/* common/secret.c - see secret.h
 *
 * sodium_init() only selects the fastest code for this CPU and is not needed by programs
 * that never seal anything: it is called when the first key is made or read.
 */
#include "common/secret.h"

#include "common/err.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(crypto_kx_PUBLICKEYBYTES == SECRET_SIZE &&
                   crypto_kx_SECRETKEYBYTES == SECRET_SIZE &&
                   crypto_kx_SESSIONKEYBYTES == SECRET_SIZE,
               "all keys have one size");

static int ready(struct ddp_err *err)
{
    return sodium_init() < 0 ? err_set(err, "libsodium cannot be used here") : 0;
}

int secret_make(struct secret *s, struct ddp_err *err)
{
    ssize_t n;
    do
        n = getrandom(s->bytes, sizeof s->bytes, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof s->bytes)
        return err_errno(err, "no random numbers from the kernel");
    return ready(err);
}

void secret_to_hex(const struct secret *s, char text[SECRET_SIZE * 2 + 1])
{
    sodium_bin2hex(text, SECRET_SIZE * 2 + 1, s->bytes, SECRET_SIZE);
}

int secret_from_hex(const char *text, struct secret *s, struct ddp_err *err)
{
    size_t n = 0;
    const char *end = NULL;
    if (sodium_hex2bin(s->bytes, SECRET_SIZE, text, strlen(text), NULL, &n, &end) != 0 ||
        n != SECRET_SIZE || *end != '\0')
        return err_set(err, "the key is not %d hexadecimal digits", SECRET_SIZE * 2);
    return ready(err);
}

void secret_wipe(void *p, size_t n)
{
    sodium_memzero(p, n);
}

void secret_derive(const struct secret *key, const char *label, const void *a, size_t na,
                   const void *b, size_t nb, struct secret *out)
{
    crypto_generichash_state st;
    crypto_generichash_init(&st, key->bytes, SECRET_SIZE, SECRET_SIZE);
    /* includes the label's NUL, so that no label is a prefix of another */
    crypto_generichash_update(&st, (const unsigned char *)label, strlen(label) + 1);
    crypto_generichash_update(&st, a, na);
    crypto_generichash_update(&st, b, nb);
    crypto_generichash_final(&st, out->bytes, SECRET_SIZE);
    sodium_memzero(&st, sizeof st);
}

void exchange_make(struct exchange *x)
{
    crypto_kx_keypair(x->public, x->private);
}

int exchange_finish(struct exchange *x, bool listens,
                    const unsigned char theirs[SECRET_SIZE], struct secret *down,
                    struct secret *up)
{
    int rc = listens ? crypto_kx_server_session_keys(up->bytes, down->bytes, x->public,
                                                     x->private, theirs)
                     : crypto_kx_client_session_keys(down->bytes, up->bytes, x->public,
                                                     x->private, theirs);
    sodium_memzero(x->private, sizeof x->private);
    return rc;
}

bool secret_equal(const struct secret *a, const struct secret *b)
{
    return sodium_memcmp(a->bytes, b->bytes, SECRET_SIZE) == 0;
}

static void next_nonce(struct seal *s,
                       unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES])
{
    memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
    for (int i = 0; i < 8; i++)
        nonce[4 + i] = (unsigned char)(s->count >> (8 * i));
    s->count++;
}

void seal_close(struct seal *s, const void *head, size_t nhead, const void *plain,
                size_t size, unsigned char *sealed)
{
    unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    next_nonce(s, nonce);
    crypto_aead_chacha20poly1305_ietf_encrypt(sealed, NULL, plain, size, head, nhead,
                                              NULL, nonce, s->key.bytes);
}

int seal_open(struct seal *s, const void *head, size_t nhead, const unsigned char *sealed,
              size_t size, unsigned char *plain)
{
    unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    next_nonce(s, nonce);
    return crypto_aead_chacha20poly1305_ietf_decrypt(plain, NULL, NULL, sealed, size,
                                                     head, nhead, nonce, s->key.bytes);
}
