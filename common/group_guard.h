/* common/group_guard.h - a process group that ends with this process
 *
 * A small process leads the group and waits for the end of ours, SIGKILL included: then
 * it kills the group, with all that a user's command in it has started. PR_SET_PDEATHSIG
 * would kill only the command itself.
 */
#ifndef COMMON_GROUP_GUARD_H
#define COMMON_GROUP_GUARD_H

#include <sys/types.h>

struct group_guard {
    pid_t pid; /* and the group; a child of ours, which the caller reaps */
    int fd;    /* owned: its end is what the guard waits for */
};

/* 0, or -1 with errno. */
int group_guard_start(struct group_guard *g);
/* It ends; the processes of its group go on. */
void group_guard_end(struct group_guard *g);

#endif
