/* launcher/plugins/horovod/notify.h - telling Horovod's ranks that hosts have changed
 *
 * A rank of hvd.elastic.run listens on a port of its own, its "worker notification
 * service". It puts the addresses and a key into the store, as a pickle in base64. A
 * request is a pickle too, with an HMAC-SHA256 by that key before it. Rank 0 alone is
 * told; the next commit() of the program passes it on to the others, which then all ask
 * for their places (horovod/runner/elastic/worker.py).
 */
#ifndef LAUNCHER_PLUGINS_HOROVOD_NOTIFY_H
#define LAUNCHER_PLUGINS_HOROVOD_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NOTIFY_KEY = 32, NOTIFY_MOST = 256 };

struct notify_service {
    uint32_t port; /* on all addresses of the rank's host; 0: none is known */
    unsigned char key[NOTIFY_KEY];
};

/* Read what a rank has put. False: it has another form. */
bool notify_read(const char *base64, struct notify_service *s);
/* Write a request; returns its size. A rank ignores one whose time is not later than that
 * of the last. */
size_t notify_request(const struct notify_service *s, uint32_t time_s,
                      unsigned char request[NOTIFY_MOST]);

#endif
