/* launcher/plugins/diagnose/rank_files.c - see rank_files.h */
#include "launcher/plugins/diagnose/rank_files.h"

#include "common/ancestry.h"
#include "common/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_MAX = 16 << 20, SMALL_MAX = 64 << 10 };
enum { SHARED_SIZE = 256 << 10, PIECE_MIN = 64 << 10 };

static bool tells_target(const char *suffix)
{
    static const char *const suffixes[] = {"stacks", "calls", "arrivals", "mpi"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        if (strcmp(suffix, suffixes[i]) == 0)
            return true;
    }
    return false;
}

char *rank_stem(const char *folder, struct dirent *const *files, int nfiles, int rank,
                pid_t pid, pid_t *target)
{
    char *stem = NULL;
    *target = pid;
    for (int i = 0; i < nfiles; i++) {
        int of, by, end = 0;
        if (atoi(files[i]->d_name) != rank) /* cheaper: ranks times files */
            continue;
        if (sscanf(files[i]->d_name, "%d.%d.%n", &of, &by, &end) != 2 || !end ||
            !tells_target(files[i]->d_name + end) || (stem && by > *target) ||
            !ancestry_leads(by, pid))
            continue;
        free(stem);
        stem = xasprintf("%s/%d.%d", folder, of, by);
        *target = by;
    }
    return stem;
}

char *rank_file(const char *stem, const char *suffix, off_t from, size_t max)
{
    OWNED char *path = xasprintf("%s.%s", stem, suffix);
    char *text = NULL;
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    ssize_t n = 0, got = 1;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) { /* a FIFO would block */
        size_t left = st.st_size > from ? (size_t)(st.st_size - from) : 0;
        if (max > SMALL_MAX && left < max) /* large memory is expensive */
            max = left > SMALL_MAX ? left : SMALL_MAX;
        text = xcalloc(1, max + 1);
    }
    while (text && (size_t)n < max &&
           (got = pread(fd, text + n, max - (size_t)n, from + n)) > 0)
        n += got;
    return text;
}

void rank_trace_ask(struct rank_trace *t, const char *stem)
{
    static const char request[] =
        "POST /handler/fr_trace_json HTTP/1.1\r\nHost: localhost"
        "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    *t = (struct rank_trace){.sock = -1};
    if (!stem || snprintf(to.sun_path, sizeof to.sun_path, "%s.sock", stem) >=
                     (int)sizeof to.sun_path)
        return;
    t->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t->sock >= 0 && (connect(t->sock, (struct sockaddr *)&to, sizeof to) < 0 ||
                         send(t->sock, request, strlen(request), MSG_NOSIGNAL) !=
                             (ssize_t)strlen(request))) {
        close(t->sock);
        t->sock = -1;
    }
}

bool rank_trace_read(struct rank_trace *t)
{
    /* Large answers are received and shortened here, one after the other: to get new
     * pages for each would take a fifth of all CPU time. */
    static char shared[SHARED_SIZE];
    bool fits = t->room <= sizeof shared;
    char *in = fits ? shared : t->answer;
    size_t room = fits ? sizeof shared : t->room;
    ssize_t n;
    if (t->sock < 0)
        return false;
    if (fits && t->size > 0)
        memcpy(in, t->answer, t->size);
    do {
        if (room - t->size < PIECE_MIN && t->shorten)
            t->size = t->shorten(in, t->size);
        if (room - t->size < PIECE_MIN && room < ANSWER_MAX) {
            t->room = room *= 2;
            t->answer = xrealloc(t->answer, room + 1, 1);
            if (fits)
                memcpy(t->answer, in, t->size);
            in = t->answer;
            fits = false;
        }
        n = recv(t->sock, in + t->size, room - t->size, 0);
        t->size += n > 0 ? (size_t)n : 0;
        t->received += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    if (fits) {
        t->size = t->shorten ? t->shorten(in, t->size) : t->size;
        if (t->size > t->room || !t->answer)
            t->answer = xrealloc(t->answer, (t->room = t->size) + 1, 1);
        memcpy(t->answer, in, t->size);
    }
    if (n < 0)
        return true; /* EAGAIN */
    close(t->sock);
    t->sock = -1;
    return false;
}

char *rank_trace_body(struct rank_trace *t)
{
    if (!t->answer)
        return NULL;
    t->answer[t->size] = '\0';
    char *body = strstr(t->answer, "\r\n\r\n");
    return body ? body + 4 : NULL;
}
