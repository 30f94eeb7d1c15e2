/* common/sock_addr.c - see sock_addr.h */
#include "common/sock_addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int sock_port(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)(const void *)sa)->sin_port);
    if (sa->sa_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)sa)->sin6_port);
    return 0;
}

void sock_addr(const struct sockaddr *sa, char *text, size_t size)
{
    text[0] = '\0';
    if (sa->sa_family == AF_INET) {
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)sa)->sin_addr,
                  text, (socklen_t)size);
    } else if (sa->sa_family == AF_INET6) {
        const struct in6_addr *a =
            &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(a))
            inet_ntop(AF_INET, &a->s6_addr[12], text, (socklen_t)size);
        else
            inet_ntop(AF_INET6, a, text, (socklen_t)size);
    } else {
        snprintf(text, size, "local");
    }
}

bool sock_is_loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

void sock_name(const struct sockaddr *sa, char *text, size_t size)
{
    char addr[INET6_ADDRSTRLEN];
    sock_addr(sa, addr, sizeof addr);
    snprintf(text, size, strchr(addr, ':') ? "[%s]:%d" : "%s:%d", addr, sock_port(sa));
}
