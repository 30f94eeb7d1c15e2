/* common/ancestry.h - parents of processes, from /proc, without a cache */
#ifndef COMMON_ANCESTRY_H
#define COMMON_ANCESTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { ANCESTRY_NAME = 32 };

struct ancestry_proc {
    pid_t pid, parent, group;
    char state; /* as in /proc/PID/stat: 'Z' for a zombie */
    char name[ANCESTRY_NAME];
};

/* Read /proc/PID/stat into `text`. Returns the fields after the name, from the state on;
 * NULL when the process has ended. */
const char *ancestry_fields(pid_t pid, char *text, size_t size);
/* The first fields; false when the process has ended. */
bool ancestry_read(pid_t pid, struct ancestry_proc *p);
/* The parent of a process, and its program's name (may be NULL), cut by the kernel after
 * 15 bytes; 0 when it has ended. */
pid_t ancestry_parent(pid_t pid, char name[ANCESTRY_NAME]);
/* Is `ancestor` the process itself or one of its ancestors? */
bool ancestry_leads(pid_t pid, pid_t ancestor);

#endif
