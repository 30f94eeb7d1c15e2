/* launcher/plugins/observe/view/logs.h - the last output of each rank, as whole lines
 *
 * Both streams of a rank in one text, of which at least the last 64 KiB and at most 4 MiB
 * are kept, by the number of ranks. Positions count from its beginning.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_VIEW_LOGS_H
#define LAUNCHER_PLUGINS_OBSERVE_VIEW_LOGS_H

#include <stddef.h>
#include <stdint.h>

struct logs;

/* `line` is called for each line that has ended, without its newline; it is not
 * terminated by a zero. */
struct logs *logs_create(size_t nranks,
                         void (*line)(size_t rank, const char *text, size_t size,
                                      void *arg),
                         void *arg);
void logs_grow(struct logs *l, size_t nranks); /* fewer than now: nothing is changed */
void logs_destroy(struct logs *l);

void logs_feed(struct logs *l, size_t rank, unsigned stream, const char *data,
               size_t size);

/* Text from `*from` on, at most `most` bytes, borrowed until the next feed; `*from` is
 * set to the position of its first byte, which is later if the text was dropped. -1: the
 * last `most` bytes. NULL: no such rank. */
const char *logs_read(const struct logs *l, size_t rank, int64_t *from, size_t most,
                      size_t *size);

/* Call `found` for lines that contain `what`, ignoring case, until `most` of them. */
void logs_search(const struct logs *l, const char *what, size_t most,
                 void (*found)(size_t rank, const char *line, size_t size, void *arg),
                 void *arg);

#endif
