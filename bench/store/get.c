/* bench/store/get.c - store-get: how long one client waits for a value that is there
 *
 *     store-get client HOST PORT N     our client library, ddp_store_get()
 *     store-get bare HOST PORT N       as many bytes to an echo server and back, blocking
 *
 * Prints the median of N in microseconds.
 */
#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "include/ddprun/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define VALUE_SIZE 64

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int fail(const char *what)
{
    fprintf(stderr, "store-get: %s\n", what);
    return 1;
}

static int time_client(const char *host, int port, size_t n, int64_t *ns)
{
    struct ddp_err err;
    char text[VALUE_SIZE] = "value";
    struct ddp_value v;
    struct ddp_store *s = ddp_store_connect(host, port, 10000, &err);
    if (!s || ddp_store_set(s, "k", text, sizeof text, &err) < 0)
        return fail(err.text);
    for (size_t i = 0; i < n; i++) {
        int64_t began = now_ns();
        if (ddp_store_get(s, "k", &v, &err) < 0)
            return fail(err.text);
        ns[i] = now_ns() - began;
        if (v.size != sizeof text || memcmp(v.data, text, sizeof text) != 0)
            return fail("got another value");
        ddp_values_free(&v, 1);
    }
    ddp_store_close(s);
    return 0;
}

static int time_bare(const char *host, int port, size_t n, int64_t *ns)
{
    struct ddp_err err;
    char bytes[VALUE_SIZE + 9] = "bare";
    int fd = sock_connect(host, port, now_ms() + 10000, true, &err);
    if (fd < 0)
        return fail(err.text);
    sock_set_nonblock(fd, false);
    for (size_t i = 0; i < n; i++) {
        int64_t began = now_ns();
        if (send(fd, bytes, sizeof bytes, 0) != sizeof bytes ||
            recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes)
            return fail("the echo has failed");
        ns[i] = now_ns() - began;
    }
    return 0;
}

int main(int argc, char **argv)
{
    size_t n = argc == 5 ? strtoul(argv[4], NULL, 10) : 0;
    if (n == 0)
        return fail("usage: store-get {client|bare} HOST PORT N");
    int64_t *ns = xcalloc(n, sizeof *ns);
    int rc = strcmp(argv[1], "bare") == 0 ? time_bare(argv[2], atoi(argv[3]), n, ns)
                                          : time_client(argv[2], atoi(argv[3]), n, ns);
    if (rc == 0) {
        qsort(ns, n, sizeof *ns, compare);
        printf("%.2f\n", (double)ns[n / 2] / 1e3);
    }
    free(ns);
    return rc;
}
