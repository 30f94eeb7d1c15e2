/* common/ancestry.c - see ancestry.h */
#include "common/ancestry.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Field 4 of /proc/PID/stat, counted from the last ')': the program's name may contain
 * any character. */
pid_t ancestry_parent(pid_t pid, char name[ANCESTRY_NAME])
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC), parent = 0;
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *begin = strchr(text, '('), *end = strrchr(text, ')');
    if (!begin || !end || sscanf(end + 1, " %*c %d", &parent) != 1)
        return 0;
    if (name)
        snprintf(name, ANCESTRY_NAME, "%.*s", (int)(end - begin - 1), begin + 1);
    return parent;
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
