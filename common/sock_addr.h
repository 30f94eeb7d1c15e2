/* common/sock_addr.h - addresses of sockets as text */
#ifndef COMMON_SOCK_ADDR_H
#define COMMON_SOCK_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* "10.0.0.1:4711" or "[fe80::1]:4711"; IPv4-mapped addresses are written as IPv4. */
void sock_name(const struct sockaddr *sa, char *text, size_t size);
/* The same without the port and without brackets. */
void sock_addr(const struct sockaddr *sa, char *text, size_t size);
int sock_port(const struct sockaddr *sa);
/* The text of sock_addr(): 127.0.0.0/8 or ::1. */
bool sock_is_loopback(const char *addr);

#endif
