/* launcher/preflight/board.h - the findings of all hosts, judged and printed
 *
 * What one host says is worth little; side by side the findings are. Hosts that say the
 * same share a line of the table, and a problem that many have is one line, too. The
 * odd one out is found by the majority: which of two programs is the right one nobody
 * knows, but that they differ is plain.
 */
#ifndef LAUNCHER_PREFLIGHT_BOARD_H
#define LAUNCHER_PREFLIGHT_BOARD_H

#include "launcher/preflight/check.h"

struct board;

/* `names` of all hosts, by node number; borrowed. */
struct board *board_create(const char *const *names, size_t n);
void board_destroy(struct board *b);

/* Takes the finding over. One that is there already (same host, check and item) gives way
 * when it has a number that is worse: a second measurement counts if it is better. */
void board_add(struct board *b, unsigned node, struct msg_found *f);

/* Compare the hosts: adds problems. Call it once, when all is there. */
void board_judge(struct board *b);

/* Would board_judge() find this host's number odd, as far as is known? */
bool board_is_odd(const struct board *b, unsigned node, uint32_t check);

typedef void (*board_line_fn)(const char *line, void *arg);

/* The table, and the problems with their hosts: a line each. When all is judged, as
 * are the following. */
void board_table(const struct board *b, board_line_fn line, void *arg);
void board_problems(const struct board *b, board_line_fn line, void *arg);

/* Problems that are no mere remarks, and the hosts that have some. */
size_t board_faults(const struct board *b, size_t *hosts);

#endif
