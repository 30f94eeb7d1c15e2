/* tests/rendezvous/wire_differences.h - rows of wire_replay.c: file, title of the case,
 * what we say instead (NULL: the section is left out), why
 *
 * Transcripts are "connection:hex", with "close" where we close it.
 */

#define EVERY_BYTE  "where a segment ends must not matter"
#define EMPTY       "GET of a missing key answers an empty string in every dialect"
#define RECHECK     "all keys must be there at the moment of release"
#define IN_ORDER    "requests behind a WAIT are answered behind it"
#define NOT_STORED  "a COMPARE_SET that stores nothing wakes no waiter"
#define AT_ONCE     "a connection that does not begin as a client's is closed at once"
#define OLD_CLIENT  "without VALIDATE at the start it is taken for an old client"
#define HAVE_QUEUES "the legacy backend has no queues"
#define HAVE_LIMITS "the legacy backend has no limits"

/* D0, torch 1.13 */
{"1.13.0a0/raw.txt", "opcode 9", "", "it begins a MULTI_GET of torch 2.1"},
    {"1.13.0a0/raw.txt", "GET of a missing key", "1:0000000000000000", EMPTY},
    {"1.13.0a0/raw.txt",
     "WAIT [wa,wb]; SET wa; DELETE wa; SET wb: the waiter is released though wa is gone",
     "2:010000000000000001", RECHECK},
    {"1.13.0a0/raw.txt",
     "WAIT, then another request before the reply; then the key is set",
     "1:0800000000000000", "an old client that sends something has given its wait up"},
    {"1.13.0a0/raw.txt", "COMPARE_SET and a waiter: stores", "1:00 2:010000000000000079",
     "whatever makes a key present wakes"},
    {"1.13.0a0/raw.txt", "another client while one has sent half a request",
     "2:0b00000000000000", "half a request holds up its own connection only"},
    {"1.13.0a0/raw.txt", "WATCH_KEY on 2; SET, SET, DELETE by 1",
     "1:01000000000000000100000000000000 "
     "2:03"
     "0102000000000000002f770000000000000000010000000000000078"
     "0002000000000000002f77010000000000000078010000000000000079"
     "0202000000000000002f770100000000000000790000000000000000",
     "the reference holds the last, empty length back for 200 ms: not in the recording"},

    /* D3, torch 2.15, libuv backend */
    {"raw-libuv.txt", "VALIDATE split after its opcode byte", "1:34120000", EVERY_BYTE},
    {"raw-libuv.txt", "VALIDATE split inside the magic", "1:34120000", EVERY_BYTE},
    {"raw-libuv.txt", "VALIDATE with a wrong magic", "1:close", AT_ONCE},
    {"raw-libuv.txt", "VALIDATE with a wrong magic, then GETNUMKEYS", "1:close", AT_ONCE},
    {"raw-libuv.txt", "no VALIDATE: PING first", "1:close", AT_ONCE},
    {"raw-libuv.txt", "no VALIDATE: ADD first", "1:close",
     OLD_CLIENT ", of which it is none"},
    {"raw-libuv.txt", "no VALIDATE: ADD twice", "1:close",
     OLD_CLIENT ", of which it is none"},
    {"raw-libuv.txt", "no VALIDATE: HTTP", "1:close", AT_ONCE},
    {"raw-libuv.txt", "no VALIDATE: a D0 client (ADD init/ 1)", "1:0100000000000000",
     OLD_CLIENT},
    {"raw-libuv.txt", "no VALIDATE: a D0 client, opcode byte alone", "1:0200000000000000",
     OLD_CLIENT},
    {"raw-libuv.txt",
     "WAIT [wa,wb]; SET wa; DELETE wa; SET wb: the waiter is released though wa is gone",
     "1:34120000 2:34120000010000000000000001", RECHECK},
    {"raw-libuv.txt", "WAIT, then another request before the reply; then the key is set",
     "1:34120000000900000000000000 2:34120000", IN_ORDER},
    {"raw-libuv.txt", "COMPARE_SET and a waiter: does not store",
     "1:34120000 2:3412000002000000000000006e6f", NOT_STORED},
    {"raw-libuv.txt", "queue already filled; WAIT [queue, key]; SET: never released",
     "1:3412000000 2:34120000", "both are there, so it is released"},
    {"2.15.0/two-clients.txt", "second waits [w9]; first compare_set (does not store)",
     NULL, NOT_STORED},

    /* D3, torch 2.15, legacy backend: as above, and */
    {"raw-legacy.txt", "VALIDATE with a wrong magic", "1:close", AT_ONCE},
    {"raw-legacy.txt", "no VALIDATE: a D0 client (ADD init/ 1)", "1:0100000000000000",
     OLD_CLIENT},
    {"raw-legacy.txt", "no VALIDATE: a D0 client, opcode byte alone",
     "1:0200000000000000", OLD_CLIENT},
    {"raw-legacy.txt", "MULTI_GET, one key missing",
     "1:34120000030000000000000076616c0000000000000000", EMPTY},
    {"raw-legacy.txt", "GET of a missing key", "1:341200000000000000000000", EMPTY},
    {"raw-legacy.txt",
     "WAIT [wa,wb]; SET wa; DELETE wa; SET wb: the waiter is released though wa is gone",
     "1:34120000 2:34120000010000000000000001", RECHECK},
    {"raw-legacy.txt", "WAIT, then another request before the reply; then the key is set",
     "1:34120000000900000000000000 2:34120000", IN_ORDER},
    {"raw-legacy.txt", "COMPARE_SET and a waiter: stores",
     "1:3412000000 2:34120000010000000000000079", "whatever makes a key present wakes"},
    {"raw-legacy.txt", "another client while one has sent half a request",
     "1:34120000 2:34120000", "half a request holds up its own connection only"},
    {"raw-legacy.txt", "key of 8193 bytes announced", "1:34120000close", HAVE_LIMITS},
    {"raw-legacy.txt", "key of 2^40 bytes announced", "1:34120000close", HAVE_LIMITS},
    {"raw-legacy.txt", "value of 8388609 bytes announced", "1:34120000close",
     HAVE_LIMITS},
    {"raw-legacy.txt", "CHECK with 131073 keys announced", "1:34120000close",
     HAVE_LIMITS},
    {"raw-legacy.txt", "WAIT with 131073 keys announced", "1:34120000close", HAVE_LIMITS},
    {"raw-legacy.txt", "MGET with 131073 keys announced", "1:34120000close", HAVE_LIMITS},
    {"raw-legacy.txt", "MSET with 131073 keys announced", "1:34120000close", HAVE_LIMITS},
    {"raw-legacy.txt", "QUEUE_PUSH", "1:34120000", HAVE_QUEUES},
    {"raw-legacy.txt", "QUEUE_LEN", "1:341200000100000000000000", HAVE_QUEUES},
    {"legacy-queue.txt", "queue_len q, client with the default use_libuv", NULL,
     HAVE_QUEUES},
    {"legacy-two-clients.txt", "second waits [w8]; first compare_set (stores)", NULL,
     "whatever makes a key present wakes"},
