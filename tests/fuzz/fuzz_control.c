/* tests/fuzz/fuzz_control.c - requests to a running job (--top, the page, other programs)
 *
 * Input: the bytes of a connection. Aborts when a line has no answer or two, and when an
 * answer is no JSON object on a line.
 */
#include "launcher/control/control.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURNS = 4 };

static void on_echo(struct control *c, uint32_t peer, const json_t *request, void *arg)
{
    control_reply(c, peer, request);
}

/* The next turn sends what this one has queued. */
static void turn(struct loop *loop)
{
    for (int i = 0; i < TURNS; i++)
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
}

static void check_answers(int fd, size_t asked)
{
    static char text[1 << 20];
    size_t size = 0, answers = 0;
    ssize_t n;
    while ((n = recv(fd, text + size, sizeof text - size, MSG_DONTWAIT)) > 0)
        size += (size_t)n;
    for (char *at = text, *end; (end = memchr(at, '\n', size - (size_t)(at - text)));
         at = end + 1) {
        json_t *answer = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        if (!json_is_object(answer))
            abort();
        json_decref(answer);
        answers++;
    }
    if (answers != asked)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    size_t lines = 0;
    if (size > 8192)
        return 0;
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    struct loop *loop = loop_create(NULL);
    struct control *c = control_create(loop, "fuzz");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 ||
        send(pair[1], data, size, MSG_NOSIGNAL) != (ssize_t)size)
        abort();
    control_handle(c, "status", on_echo, NULL);
    control_attach(c, pair[0]);
    turn(loop);
    check_answers(pair[1], lines);
    close(pair[1]);
    turn(loop); /* it sees the end */
    control_destroy(c);
    loop_destroy(loop);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "{\"do\": \"status\"}\n{\"do\": \"status\", \"follow\": true}\n",
        "{\"do\": \"other\"}\nstatus\n{\"do\": 3}\n[]\n",
    };
    size_t len = strlen(seeds[n % 2]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 2], len);
    return len;
}
