/* bench/scale/sample.c - see sample.h */
#include "bench/scale/sample.h"

#include "common/duration.h"

#include <dirent.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>

/* Call `each` with the path of every entry of /proc/PID/`what`; returns their count. */
static long entries(pid_t pid, const char *what,
                    void (*each)(const char *path, void *arg), void *arg)
{
    char dir[64], path[400];
    long n = 0;
    snprintf(dir, sizeof dir, "/proc/%d/%s", (int)pid, what);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (each)
            each(path, arg);
    }
    if (d)
        closedir(d);
    return n;
}

static void add_thread(const char *path, void *arg)
{
    struct sample *s = arg;
    char file[450];
    int64_t ns;
    snprintf(file, sizeof file, "%s/schedstat", path);
    FILE *f = fopen(file, "re");
    if (f && fscanf(f, "%" SCNd64, &ns) == 1)
        s->cpu_ns += ns;
    if (f)
        fclose(f);
}

void sample_process(pid_t pid, struct sample *s)
{
    char path[64], line[256];
    s->at_ns = now_ns();
    s->cpu_ns = 0;
    entries(pid, "task", add_thread, s);
    s->fds = entries(pid, "fd", NULL, NULL);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "VmRSS: %ld", &s->rss_kib);
        sscanf(line, "VmHWM: %ld", &s->peak_kib);
    }
    if (f)
        fclose(f);
}

void sample_socket(int fd, struct sample *s)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
        return;
    s->up += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    s->down += info.tcpi_bytes_received;
}
