/* launcher/transport/tree.c - see tree.h */
#include "launcher/transport/tree.h"

#include <stddef.h>

unsigned tree_below(const struct msg_hosts *hosts, unsigned node,
                    void (*each)(unsigned node, void *arg), void *arg)
{
    if (node != TREE_ROOT && hosts->width >= hosts->nhosts)
        return 0; /* flat */
    /* the index of `node` in the row; the launcher is -1 */
    int64_t place = -1;
    for (unsigned i = 0; node != TREE_ROOT && i < node && i < hosts->nhosts; i++)
        place += !hosts->hosts[i].started;
    if (node != TREE_ROOT)
        place += 1;
    int64_t first = (int64_t)hosts->width * (place + 1), row = 0;
    unsigned n = 0;
    for (unsigned i = 0; i < hosts->nhosts; i++) {
        if (hosts->hosts[i].started)
            continue;
        if (row >= first + hosts->width)
            break;
        if (row >= first) {
            n++;
            if (each)
                each(i, arg);
        }
        row++;
    }
    return n;
}
