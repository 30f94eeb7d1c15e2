/* bench/tiny.c - the smallest child that proves it ran: appends one byte to $TINY_COUNT
 *
 * Linked statically, so that what is measured is the launcher and not ld.so. With an
 * argument it stays until it is killed.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *path = getenv("TINY_COUNT");
    if (path) {
        int fd = open(path, O_WRONLY | O_APPEND);
        if (fd < 0 || write(fd, "x", 1) != 1)
            return 1;
        close(fd);
    }
    if (argc > 1)
        pause();
    return 0;
}
