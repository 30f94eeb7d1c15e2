/* common/strv.h - a growing, NULL-terminated vector of strings: argv and environments
 *
 * Invariant: v[n] is NULL whenever v is not NULL. strv_push copies, strv_push_nodup
 * takes. A zeroed struct is an empty vector.
 */
#ifndef COMMON_STRV_H
#define COMMON_STRV_H

#include <stdbool.h>
#include <stddef.h>

struct strv {
    char **v; /* owned, as are the strings */
    size_t n, room;
    char *block;          /* owned: where strings are copied to while they fit; or NULL */
    size_t used, reserve; /* bytes of it */
};

/* For an empty vector: room for so many strings of so many bytes in all, ends included.
 * What does not fit is allocated one by one. */
void strv_reserve(struct strv *s, size_t n, size_t nbytes);

void strv_push(struct strv *s, const char *str);
void strv_push_nodup(struct strv *s, char *str);
void strv_pushf(struct strv *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void strv_push_all(struct strv *s, char *const *strs); /* up to NULL */
void strv_finish(struct strv *s);                      /* frees; s is empty afterwards */

bool strv_has(const struct strv *s, const char *str,
              size_t len); /* the first `len` bytes */

/* For "NAME=value" entries. */
void strv_env_push(struct strv *s, const char *name,
                   const char *value);                            /* is not there */
const char *strv_env_get(const struct strv *s, const char *name); /* borrowed, or NULL */
void strv_env_set(struct strv *s, const char *name, const char *value); /* NULL removes */
void strv_env_set_all(struct strv *s, const struct strv *entries);      /* each */
/* Does the first `len` bytes of `name` match? '*' at the pattern's end matches any rest.
 */
bool strv_env_match(const char *pattern, const char *name, size_t len);

/* Quote one word for a POSIX shell; the caller frees. */
char *shell_quote(const char *word);
/* Quote all words and join them with blanks; the caller frees. */
char *shell_join(char *const *words);

#endif
