/* common/hostlist.h - "n[01-16,20],gpu3" to names and back
 *
 * Slurm's notation. A term is text with any number of bracketed lists of numbers, lo-hi
 * or single; the width of lo is kept ("[08-10]": 08, 09, 10). Text after a bracket is
 * allowed ("n[1-2]-ib"), which Slurm itself supports only since 23.11.
 *
 * Several brackets are enumerated in Slurm's order (scontrol show hostnames): the last
 * one fastest, then the first, then the second and so on; the last but one is slowest.
 */
#ifndef COMMON_HOSTLIST_H
#define COMMON_HOSTLIST_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stddef.h>

#define HOSTLIST_RANGE_MAX 65536     /* names of one range, Slurm's limit */
#define HOSTLIST_MAX       (1 << 20) /* names of one term: more is a typing error */

/* One term (`len` bytes, no separators outside brackets): its names are appended to
 * `names` in order. On failure `*at` is the offset of the invalid byte and `err` the
 * message without a position. */
int hostlist_term(const char *text, size_t len, struct strv *names, size_t *at,
                  struct ddp_err *err);

/* A whole list: terms separated by commas and blanks. Failure names the column. */
int hostlist_expand(const char *text, struct strv *names, struct ddp_err *err);

/* Consecutive names that differ only in their last number, counting up, become one
 * bracket: "n1,n2,n3,n10" is "n[1-3,10]". The caller frees. */
char *hostlist_compress(char *const *names, size_t n);

#endif
