/* common/sanitize.h - make untrusted text safe to print in a message
 *
 * Its first part, without terminal control characters.
 *
 *     err_set(err, "%s='%s' names no node", name, SANITIZED(value));
 */
#ifndef COMMON_SANITIZE_H
#define COMMON_SANITIZE_H

struct sanitized {
    char text[128];
};

/* All of a text, in place; returns it. */
char *sanitize_all(char *text);

/* Returns out->text. */
const char *sanitize(const char *text, struct sanitized *out);

/* The buffer is valid until the end of the enclosing block. */
#define SANITIZED(value) sanitize(value, &(struct sanitized){{0}})

#endif
