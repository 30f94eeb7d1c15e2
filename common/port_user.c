/* common/port_user.c - see port_user.h */
#include "common/port_user.h"

#include "common/ancestry.h"
#include "common/scoped.h"
#include "common/sockdiag.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool holds(const char *pid, const char *socket)
{
    char path[300], target[64];
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    SCOPED(close_folder) DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *d; dir && !found && (d = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), d->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        found = strcmp(target, socket) == 0;
    }
    return found;
}

static pid_t find_holder(uint64_t inode)
{
    char socket[40];
    snprintf(socket, sizeof socket, "socket:[%" PRIu64 "]", inode);
    SCOPED(close_folder) DIR *proc = opendir("/proc");
    pid_t holder = 0;
    for (struct dirent *d; proc && !holder && (d = readdir(proc));) {
        if (isdigit((unsigned char)d->d_name[0]) && holds(d->d_name, socket))
            holder = (pid_t)atoi(d->d_name);
    }
    return holder;
}

void port_user(int port, char *text, size_t size)
{
    struct sock_owner owner;
    struct ancestry_proc p;
    text[0] = '\0';
    if (!sockdiag_find_listener(port, &owner))
        return;
    pid_t holder = find_holder(owner.inode);
    if (holder && ancestry_read(holder, &p))
        snprintf(text, size, "%s (pid %d)", p.name, (int)holder);
    else
        snprintf(text, size, "a process of user %u", (unsigned)owner.uid);
}
