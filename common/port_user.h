/* common/port_user.h - which process listens on a TCP port of this host */
#ifndef COMMON_PORT_USER_H
#define COMMON_PORT_USER_H

#include <stddef.h>

/* Describe it for an error message: "python3 (pid 4711)", "a process of user 1001" where
 * the kernel hides which, or "" if nothing listens there (a connection may still use the
 * port). Reads /proc: for errors only. */
void port_user(int port, char *text, size_t size);

#endif
