/* common/ancestry.h - processes, their parents and what they use, from /proc/PID/stat,
 * without a cache
 */
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

bool ancestry_read(pid_t pid, struct ancestry_proc *p); /* false: it has ended */

struct ancestry_use {
    char state;
    int threads, cpu;              /* cpu: on which it ran last */
    unsigned long user, system;    /* its CPU time, in clock ticks */
    long child_user, child_system; /* that of children it has waited for */
    unsigned long major_faults;
    long pages; /* resident */
};
bool ancestry_use(pid_t pid, struct ancestry_use *u); /* false: it has ended */

/* The parent of a process, and its program's name (may be NULL), cut by the kernel after
 * 15 bytes; 0 when it has ended. */
pid_t ancestry_parent(pid_t pid, char name[ANCESTRY_NAME]);
/* Is `ancestor` the process itself or one of its ancestors? */
bool ancestry_leads(pid_t pid, pid_t ancestor);

#endif
