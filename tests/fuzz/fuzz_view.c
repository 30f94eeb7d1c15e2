/* tests/fuzz/fuzz_view.c - what reaches ddprun-view: HTTP requests, and output of ranks
 *
 * Input: an even byte and the bytes of a connection to the page, where every "$T" is
 * the token; or an odd one and pieces of output, each of a byte with rank and stream, a
 * length byte and the text. Aborts when a request without the token gets more than a
 * refusal, and when the series are not JSON.
 */
#include "common/duration.h"
#include "launcher/plugins/observe/view/view.h"
#include "tests/fuzz/fuzz.h"

#include <event2/bufferevent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RANKS = 4, ANSWER_MAX = 1 << 20, TURNS_MAX = 200 };

static const char token[] = "0123456789abcdef";
static struct view v;
static struct sockaddr_un at = {.sun_family = AF_UNIX};

/* Metrics need no token, and are written from the same data as the page's. */
static void open_view(void)
{
    struct ddp_err err;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    socklen_t size = sizeof(sa_family_t); /* the kernel chooses an abstract name */
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, 8) < 0 ||
        dup2(fd, VIEW_UI_FD) < 0)
        abort();
    close(fd);
    v.base = event_base_new();
    v.config = json_pack("{s:b}", "ui", 1);
    v.created_ms = now_ms();
    snprintf(v.token, sizeof v.token, "%s", token);
    if (http_open(&v, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static void on_line(size_t rank, const char *text, size_t size, void *arg)
{
    series_line(v.series, rank, text, size, 1.5);
}

/* Both are made anew, so that an input does not depend on those before. */
static void open_texts(void)
{
    struct ddp_err err;
    v.logs = logs_create(RANKS, on_line, NULL);
    v.series = series_create(".", &err);
}

static void close_texts(void)
{
    logs_destroy(v.logs);
    series_destroy(v.series);
}

/* The answer to `request`, with a NUL; empty: the connection was closed. */
static const char *ask(const char *request, size_t size)
{
    static char answer[ANSWER_MAX + 1];
    struct sockaddr_un to = {0};
    socklen_t len = sizeof to;
    size_t got = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    getsockname(VIEW_UI_FD, (struct sockaddr *)&to, &len);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, len) < 0 ||
        send(fd, request, size, MSG_NOSIGNAL) != (ssize_t)size ||
        shutdown(fd, SHUT_WR) < 0)
        abort();
    ssize_t n = -1;
    for (int i = 0; i < TURNS_MAX && n != 0; i++) {
        event_base_loop(v.base, EVLOOP_NONBLOCK);
        while ((n = recv(fd, answer + got, ANSWER_MAX - got, MSG_DONTWAIT)) > 0)
            got += (size_t)n;
    }
    close(fd);
    event_base_loop(v.base, EVLOOP_NONBLOCK); /* it sees the end */
    answer[got] = '\0';
    return answer;
}

static void try_request(const char *data, size_t size)
{
    bool knows = false;
    char *text = malloc(size * (sizeof token + 1) + 1);
    size_t used = 0;
    if (!text)
        abort();
    for (size_t i = 0; i < size; i++) {
        if (i + 1 < size && memcmp(data + i, "$T", 2) == 0) {
            memcpy(text + used, token, sizeof token - 1);
            used += sizeof token - 1;
            knows = true;
            i++;
        } else {
            text[used++] = data[i];
        }
    }
    const char *answer = ask(text, used);
    if (!knows && strstr(answer, "HTTP/1.1 200"))
        abort();
    free(text);
}

static void try_output(const uint8_t *data, size_t size)
{
    while (size >= 2) {
        size_t n = data[1] < size - 2 ? data[1] : size - 2;
        logs_feed(v.logs, data[0] % RANKS, data[0] / RANKS % 2, (const char *)data + 2,
                  n);
        data += 2 + n;
        size -= 2 + n;
    }
}

/* Names come from ranks and from requests. */
static void check_series(void)
{
    static const char request[] = "GET /api/series?t=0123456789abcdef HTTP/1.0\r\n\r\n";
    const char *body = strstr(ask(request, sizeof request - 1), "\r\n\r\n");
    json_t *series = body ? json_loads(body, 0, NULL) : NULL;
    if (!json_is_object(series))
        abort();
    json_decref(series);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 8192)
        return 0;
    if (!v.base)
        open_view();
    open_texts();
    if (data[0] % 2)
        try_output(data + 1, size - 1);
    else
        try_request((const char *)data + 1, size - 1);
    check_series();
    close_texts();
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char trainer[] =
        "0POST /api/trainer HTTP/1.1\r\nAuthorization: Bearer $T\r\nContent-Length: 99\r\n"
        "\r\n{\"trainerStatus\":{\"progressPercentage\":42,\"metrics\":[{\"name\":\"a\\\"b\","
        "\"value\":\"0.5\"}]}}         \n";
    static const char *const seeds[] = {
        "0GET /?t=$T HTTP/1.1\r\nHost: a\r\n\r\n",
        "0GET /api/log?t=$T&rank=1&from=3 HTTP/1.1\r\n\r\n",
        "0GET /api/search?q=lo%20ss&t=$T HTTP/1.0\r\n\r\n",
        "0GET /api/events?from=7&t=other HTTP/1.1\r\n\r\nGET /api/status?t=$T HTTP/1.1\r\n\r\n",
        trainer,
        "1\x03\x12step 20/100 loss=.5\n\x01\x1atest loss: '-inf', lr 1e-3\n",
        "1\x04\x10 512.5 images/s\n\x04\x09{'a': 3}\n",
    };
    const char *seed = seeds[n % (sizeof seeds / sizeof seeds[0])];
    size_t len = strlen(seed) < room ? strlen(seed) : room;
    memcpy(data, seed, len);
    return len;
}
