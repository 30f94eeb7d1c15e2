/* launcher/alloc/counts.c - see sched.h: Slurm's lists of counts
 *
 * A separate file: the Slurm plugin (spank/) links it and nothing else of this folder.
 */
#include "launcher/alloc/sched.h"

#include "common/err.h"
#include "common/sanitize.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int sched_number(const char **p)
{
    char *end;
    if (!isdigit((unsigned char)**p))
        return 0;
    long n = strtol(*p, &end, 10);
    *p = end;
    return n >= 1 && n <= SCHED_COUNT_MAX ? (int)n : 0;
}

int sched_counts(const char *name, const char *text, int *counts, size_t n,
                 struct ddp_err *err)
{
    size_t have = 0;
    for (const char *p = text;;) {
        int count = sched_number(&p), times = 1;
        if (count > 0 && strncmp(p, "(x", 2) == 0) {
            p += 2;
            times = sched_number(&p);
            if (*p++ != ')')
                times = 0;
        }
        if (count == 0 || times == 0 || (*p && *p != ','))
            return err_set(err, "%s='%s': expected the form '4(x2),1'", name,
                           SANITIZED(text));
        for (; times > 0; times--, have++) {
            if (have < n)
                counts[have] = count;
        }
        if (!*p)
            break;
        p++;
    }
    if (have != n)
        return err_set(err, "%s='%s' counts %zu nodes, but the node list has %zu", name,
                       SANITIZED(text), have, n);
    return 0;
}
