/* tests/fuzz/fuzz_pmi_client.c - what a launcher's PMI answers to a rank of ours
 *
 * Input: the bytes on the descriptor, which is closed after them. Aborts when a failure
 * has no words, and when a name or a reply that was accepted has more than one line.
 */
#include "common/duration.h"
#include "common/pmi_client.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    char name[PMI_CLIENT_LINE], line[PMI_CLIENT_LINE];
    struct ddp_err err = {""};
    if (size > 8192)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 ||
        send(pair[1], data, size, MSG_NOSIGNAL) != (ssize_t)size ||
        shutdown(pair[1], SHUT_WR) < 0)
        abort();
    int64_t end = now_ms() + 5000;
    int rc = pmi_client_begin(pair[0], name, &end, &err);
    if (rc == 0 && strpbrk(name, " \n"))
        abort();
    while (rc == 0) {
        rc = pmi_client_ask(pair[0], "cmd=get\n", "get_result", line, &end, &err);
        if (rc == 0 && strchr(line, '\n'))
            abort();
    }
    if (!err.text[0])
        abort();
    close(pair[0]);
    close(pair[1]);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
        "cmd=my_kvsname kvsname=kvs_1_0\ncmd=get_result rc=0 msg=success value=B\n",
        "cmd=response_to_init rc=0\ncmd=my_kvsname rc=0 kvsname=k\ncmd=get_result rc=-1\n",
    };
    size_t len = strlen(seeds[n % 2]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 2], len);
    return len;
}
