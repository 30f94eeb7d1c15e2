/* common/sanitize.h - a text from elsewhere, as it may stand in a line for people
 *
 * Its first part, and nothing that a terminal would obey.
 *
 *     err_set(err, "%s='%s' names no node", name, SANITIZED(value));
 */
#ifndef COMMON_SANITIZE_H
#define COMMON_SANITIZE_H

struct sanitized {
    char text[128];
};

/* Returns out->text. */
const char *sanitize(const char *text, struct sanitized *out);

/* For one call: it is gone at the end of the block. */
#define SANITIZED(value) sanitize(value, &(struct sanitized){{0}})

#endif
