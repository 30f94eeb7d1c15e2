/* common/mem.h - allocation that aborts with a message when memory runs out
 *
 * For sizes that the program chooses. Sizes from the network or from files use plain
 * malloc, and the caller handles NULL. Everything is freed with free().
 */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H

#include "common/scoped.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

void *xcalloc(size_t n, size_t size);
void *xaligned(size_t alignment, size_t bytes); /* zeroed; a multiple of `alignment` */
void *xrealloc(void *p, size_t n, size_t size); /* an array of n elements */
void *xgrow(void *p, size_t from, size_t n, size_t size); /* new elements are zero */
/* An array of `n` elements, with room for one more: if it has none, `*room` doubles. */
void *xroom(void *p, size_t n, size_t *room, size_t size);
char *xstrdup(const char *s); /* NULL stays NULL */
char *xstrndup(const char *s, size_t n);
void *xmemdup(const void *p, size_t n);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Append to `*text`, malloc'ed; NULL counts as empty. Not for loops over thousands. */
void xappendf(char **text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
FILE *xmemstream(char **text, size_t *size); /* open_memstream() */
void xmemclose(FILE *memstream);
char *xvasprintf(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

/* First in main(): all threads allocate from one arena. An arena of its own costs a
 * thread five system calls and its pages, for a few allocations. */
void mem_init(void);

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
