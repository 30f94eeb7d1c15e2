/* launcher/agent/pty.c - see pty.h */
#include "launcher/agent/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

void pty_resize(int master, const struct pty_size *size)
{
    struct winsize w = {.ws_row = (unsigned short)size->rows,
                        .ws_col = (unsigned short)size->columns};
    ioctl(master, TIOCSWINSZ, &w);
}

int pty_open(const struct pty_size *size, int *master, int *slave)
{
    char path[PATH_MAX];
    *slave = -1;
    *master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (*master < 0)
        return -1;
    if (grantpt(*master) == 0 && unlockpt(*master) == 0 &&
        ptsname_r(*master, path, sizeof path) == 0)
        *slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*slave >= 0) {
        pty_resize(*master, size);
        return 0;
    }
    int saved = errno;
    close(*master);
    errno = saved;
    *master = -1;
    return -1;
}

/* Two of them: the first ends a line that is incomplete. */
void pty_end_input(int master)
{
    struct termios t;
    if (tcgetattr(master, &t) < 0)
        return;
    const cc_t end[] = {t.c_cc[VEOF], t.c_cc[VEOF]};
    /* all earlier input has been taken, so there is room */
    while (write(master, end, sizeof end) < 0 && errno == EINTR)
        ;
}
