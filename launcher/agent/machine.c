/* launcher/agent/machine.c - see machine.h */
#include "launcher/agent/machine.h"

#include "common/affinity.h"
#include "common/duration.h"
#include "common/fnv.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/sock.h"
#include "launcher/place/bind.h"

#include <ifaddrs.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A hash of this machine and its GPUs: two nodes with the same one are one host. The
 * containers of a machine are hosts of their own. */
static uint64_t gpus_id(uint32_t ngpus)
{
    char boot[64];
    struct stat net = {0}, pids = {0};
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (ngpus == 0 || stat("/proc/self/ns/net", &net) < 0 ||
        stat("/proc/self/ns/pid", &pids) < 0)
        return 0;
    read_start("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    OWNED char *text = xasprintf("%s net %lu pid %lu gpus %s", boot, net.st_ino,
                                 pids.st_ino, visible ? visible : "all");
    return fnv1a(FNV1A, text, strlen(text));
}

void machine_describe(int fd, struct msg_hello *m)
{
    char host[256] = "?", addr[INET6_ADDRSTRLEN];
    gethostname(host, sizeof host - 1);
    *m = (struct msg_hello){
        .protocol = LINK_PROTOCOL,
        .version = xstrdup(DDPRUN_VERSION),
        .hostname = xstrdup(host),
        .ncpus = (uint32_t)affinity_cpus_here(),
        .ngpus = (uint32_t)topo_gpus(),
    };
    m->gpus_id = gpus_id(m->ngpus);
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) == 0 && ss.ss_family != AF_UNIX) {
        sock_addr((struct sockaddr *)&ss, addr, sizeof addr);
        m->addr = xstrdup(addr);
    }
    sock_own_addrs(true, &m->addrs); /* the store finds a client's node by them */
}

/* ms, for one name: the lookup blocks the loop, and with it the heartbeats. */
enum { LOOKUP_MS = 2000 };

/* Does our host name resolve to a loopback address, or not at all? Gloo takes the first
 * address, and falls back to loopback. */
static bool name_is_loopback(void)
{
    char host[256] = "";
    struct addrinfo *list;
    gethostname(host, sizeof host - 1);
    if (lookup(host, NULL, SOCK_STREAM, now_ms() + LOOKUP_MS, &list) != 0)
        return true;
    char addr[INET6_ADDRSTRLEN];
    sock_addr(list->ai_addr, addr, sizeof addr);
    freeaddrinfo(list);
    return sock_is_loopback(addr);
}

uint64_t machine_oom_kills(void)
{
    uint64_t kills = 0;
    char line[128];
    SCOPED(close_file) FILE *f = fopen("/proc/vmstat", "re");
    while (f && fgets(line, sizeof line, f) &&
           sscanf(line, "oom_kill %" SCNu64, &kills) == 0)
        continue;
    return kills;
}

char *machine_gloo_interface(const char *master_addr)
{
    struct sockaddr_storage ours;
    struct ifaddrs *list;
    char want[INET6_ADDRSTRLEN], text[INET6_ADDRSTRLEN], *name = NULL;
    if (!name_is_loopback() || !lookup_route(master_addr, now_ms() + LOOKUP_MS, &ours))
        return NULL;
    sock_addr((struct sockaddr *)&ours, want, sizeof want);
    if (sock_is_loopback(want) || getifaddrs(&list) < 0)
        return NULL;
    for (const struct ifaddrs *i = list; i && !name; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != ours.ss_family)
            continue;
        sock_addr(i->ifa_addr, text, sizeof text);
        if (strcmp(text, want) == 0)
            name = xstrdup(i->ifa_name);
    }
    freeifaddrs(list);
    return name;
}
