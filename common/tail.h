/* common/tail.h - the last bytes of a stream, in a ring buffer
 *
 * All tails have one size, which the caller passes.
 */
#ifndef COMMON_TAIL_H
#define COMMON_TAIL_H

#include <stddef.h>
#include <stdint.h>

enum { TAIL_LINES = 20 };

struct tail {
    char *ring;      /* owned by the stream, freed by it; NULL before the first bytes */
    int64_t fed_ms;  /* when the last bytes were fed; 0: none yet */
    uint64_t nbytes; /* fed since the start; nbytes % size: the end in the ring */
};

size_t tail_size(size_t nstreams); /* bytes of a tail when there are so many */

void tail_feed(struct tail *t, size_t size, const char *data, size_t n);

/* The last TAIL_LINES lines, as far as they are kept; malloc'ed. */
char *tail_lines(const struct tail *t, size_t size);

/* The last line that is not blank, without blanks at its end, truncated to `nline`; "" if
 * there is none. */
void tail_last_line(const struct tail *t, size_t size, char *line, size_t nline);

#endif
