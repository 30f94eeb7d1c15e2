/* common/ancestry.c - see ancestry.h */
#include "common/ancestry.h"

#include "common/read_start.h"

#include <stdio.h>
#include <string.h>

/* Read "PID (NAME) STATE PPID PGRP ..." into `text`. Returns what follows the last ')',
 * as the name may contain any character. */
static const char *read_fields(pid_t pid, char *text, size_t size)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    read_start(path, text, size);
    const char *end = strrchr(text, ')');
    return end ? end + 1 : NULL;
}

bool ancestry_read(pid_t pid, struct ancestry_proc *p)
{
    char text[512];
    const char *fields = read_fields(pid, text, sizeof text);
    const char *name = fields ? strchr(text, '(') : NULL;
    *p = (struct ancestry_proc){.pid = pid};
    if (!name || sscanf(fields, " %c %d %d", &p->state, &p->parent, &p->group) != 3)
        return false;
    snprintf(p->name, ANCESTRY_NAME, "%.*s", (int)(fields - name - 2), name + 1);
    return true;
}

bool ancestry_use(pid_t pid, struct ancestry_use *u)
{
    char text[1024];
    const char *fields = read_fields(pid, text, sizeof text);
    return fields &&
           sscanf(fields,
                  " %c %*d %*d %*d %*d %*d %*u %*u %*u %lu %*u %lu %lu %ld %ld %*d %*d "
                  "%d %*d %*u %*u %ld %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u "
                  "%*u %*d %d",
                  &u->state, &u->major_faults, &u->user, &u->system, &u->child_user,
                  &u->child_system, &u->threads, &u->pages, &u->cpu) == 9;
}

pid_t ancestry_parent(pid_t pid, char name[ANCESTRY_NAME])
{
    struct ancestry_proc p;
    if (!ancestry_read(pid, &p))
        return 0;
    if (name)
        memcpy(name, p.name, ANCESTRY_NAME);
    return p.parent;
}

/* The bound ends a loop that pid reuse may have formed. */
bool ancestry_leads(pid_t pid, pid_t ancestor)
{
    for (int up = 0; pid > 1 && up < 1000; up++) {
        if (pid == ancestor)
            return true;
        pid = ancestry_parent(pid, NULL);
    }
    return false;
}
