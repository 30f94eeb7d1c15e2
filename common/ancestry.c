/* common/ancestry.c - see ancestry.h */
#include "common/ancestry.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "PID (NAME) STATE PPID PGRP ...", parsed from the last ')': the name may contain any
 * character. */
bool ancestry_read(pid_t pid, struct ancestry_proc *p)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *begin = strchr(text, '('), *end = strrchr(text, ')');
    *p = (struct ancestry_proc){.pid = pid};
    if (!begin || !end ||
        sscanf(end + 1, " %c %d %d", &p->state, &p->parent, &p->group) != 3)
        return false;
    snprintf(p->name, ANCESTRY_NAME, "%.*s", (int)(end - begin - 1), begin + 1);
    return true;
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
