/* common/port_user.c - see port_user.h */
#include "common/port_user.h"

#include "common/ancestry.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTEN = 0x0A }; /* TCP_LISTEN of linux/net/tcp_states.h */

/* Find the listening socket in one of the kernel's tables (proc_net_tcp.rst). */
static bool find_socket(const char *table, int port, unsigned *uid, unsigned long *inode)
{
    FILE *f = fopen(table, "re");
    bool found = false;
    char line[512];
    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned at, state;
        found = sscanf(line, " %*[0-9]: %*[0-9A-F]:%x %*s %x %*s %*s %*s %u %*u %lu", &at,
                       &state, uid, inode) == 4 &&
                (int)at == port && state == LISTEN;
    }
    if (f)
        fclose(f);
    return found;
}

static bool holds(const char *pid, const char *socket)
{
    char path[300], target[64];
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *d; dir && !found && (d = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), d->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        found = strcmp(target, socket) == 0;
    }
    if (dir)
        closedir(dir);
    return found;
}

static pid_t find_holder(unsigned long inode)
{
    char socket[40];
    snprintf(socket, sizeof socket, "socket:[%lu]", inode);
    DIR *proc = opendir("/proc");
    pid_t holder = 0;
    for (struct dirent *d; proc && !holder && (d = readdir(proc));) {
        if (isdigit((unsigned char)d->d_name[0]) && holds(d->d_name, socket))
            holder = (pid_t)atoi(d->d_name);
    }
    if (proc)
        closedir(proc);
    return holder;
}

void port_user(int port, char *text, size_t size)
{
    unsigned uid;
    unsigned long inode;
    struct ancestry_proc p;
    text[0] = '\0';
    if (!find_socket("/proc/self/net/tcp", port, &uid, &inode) &&
        !find_socket("/proc/self/net/tcp6", port, &uid, &inode))
        return;
    pid_t holder = find_holder(inode);
    if (holder && ancestry_read(holder, &p))
        snprintf(text, size, "%s (pid %d)", p.name, (int)holder);
    else
        snprintf(text, size, "a process of user %u", uid);
}
