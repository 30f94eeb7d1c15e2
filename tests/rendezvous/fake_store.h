/* tests/rendezvous/fake_store.h - a peer that says what a test wrote down
 *
 * It accepts one client and follows a script of lines, separated by newlines or ';':
 *     C ...   read exactly these bytes from the client
 *     S ...   send these bytes
 *     silence the client has nothing more to say either, and closes
 *     deaf    take whatever comes, say nothing, until the client closes
 *     close   close the connection
 * The bytes of a line are words: `.6` one byte, `#3` eight bytes little-endian (may be
 * negative), `"/a"` a string with its length in front, `x0dff` plain hex.
 * `hello in order` and `hello at once` stand for the handshake with a server of either
 * kind.
 */
#ifndef TESTS_RENDEZVOUS_FAKE_STORE_H
#define TESTS_RENDEZVOUS_FAKE_STORE_H

struct fake;

/* Listens and plays `script` (borrowed) on a thread. */
struct fake *fake_start(const char *script);
int fake_port(const struct fake *f);
/* Waits for the script's end: NULL when all was as written, else what was not. The text
 * lives until the next call. */
const char *fake_end(struct fake *f);

#endif
