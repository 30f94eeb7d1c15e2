/* launcher/agent/machine.c - see machine.h */
#include "launcher/agent/machine.h"

#include "common/mem.h"
#include "common/sock.h"
#include "launcher/place/bind.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <unistd.h>

/* All that others could see: the store's door finds the machine of a client by these. */
static void list_addresses(struct strv *out)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) < 0)
        return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        const struct sockaddr *sa = i->ifa_addr;
        if (!sa || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) ||
            (i->ifa_flags & IFF_LOOPBACK))
            continue;
        char text[INET6_ADDRSTRLEN];
        sock_addr(sa, text, sizeof text);
        strv_push(out, text);
    }
    freeifaddrs(list);
}

void machine_describe(int fd, struct msg_hello *m)
{
    char host[256] = "?", addr[INET6_ADDRSTRLEN];
    gethostname(host, sizeof host - 1);
    cpu_set_t set;
    *m = (struct msg_hello){
        .protocol = LINK_PROTOCOL,
        .version = xstrdup(DDPRUN_VERSION),
        .hostname = xstrdup(host),
        .ncpus =
            sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1,
        .ngpus = (uint32_t)topo_gpus(),
    };
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) == 0 && ss.ss_family != AF_UNIX) {
        sock_addr((struct sockaddr *)&ss, addr, sizeof addr);
        m->addr = xstrdup(addr);
    }
    list_addresses(&m->addrs);
}
