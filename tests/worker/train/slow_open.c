/* slow_open.c - preloaded into ddp-train: the file $SLOW_OPEN opens as late as those of a
 * slow file server; "late" is there as soon as it is asked for
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LATE_S = 8 };

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    const char *slow = getenv("SLOW_OPEN");
    if (slow && strcmp(path, slow) == 0) {
        close(creat("late", 0600));
        sleep(LATE_S);
    }
    return openat(AT_FDCWD, path, flags, mode);
}
