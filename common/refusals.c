/* common/refusals.c - see refusals.h */
#include "common/refusals.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock_addr.h"

#include <stdlib.h>

enum { PAUSE_MS = 60000 };

char *refusals_line(struct refusals *r, const struct sockaddr *from, const char *what,
                    const char *why)
{
    if (now_ms() < r->next_ms) {
        r->held++;
        return NULL;
    }
    char name[64];
    sock_name(from, name, sizeof name);
    char *line = xasprintf("refused a connection from %s to %s: %s", name, what, why);
    if (r->held > 0)
        xappendf(&line, " (and %u more before it)", r->held);
    *r = (struct refusals){.next_ms = now_ms() + PAUSE_MS};
    return line;
}
