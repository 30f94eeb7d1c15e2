/* launcher/alloc/hostbook.h - hosts collected into an allocation, each once
 *
 * Knows a host again by its name or, when one of the two is written without a domain, by
 * its first label ("n1" and "n1.cluster"). Repeats add up.
 *
 * Owner: the source that reads; the allocation is borrowed and outlives the book.
 */
#ifndef LAUNCHER_ALLOC_HOSTBOOK_H
#define LAUNCHER_ALLOC_HOSTBOOK_H

#include "launcher/alloc/alloc.h"
#include "launcher/alloc/hosttext.h"

struct hostbook;

/* What an explicit number of slots for a host that is there already means: a list (-H
 * n1:2,n1:2) adds up, a file that says it twice contradicts itself. */
enum repeat { REPEAT_ADDS, REPEAT_REFUSED };

/* Nodes that `a` has already are entered. */
struct hostbook *hostbook_create(struct alloc *a, enum repeat repeat);
void hostbook_destroy(struct hostbook *b);

/* Expand the entry's brackets and enter each name. */
int hostbook_add(struct hostbook *b, const struct host_place *place,
                 const struct host_entry *e, struct ddp_err *err);

/* The index of a host; -1 when it is not there, or when more than one could be meant:
 * `place` and `at` are for the complaint that is then set. */
long hostbook_find(struct hostbook *b, const char *name, const struct host_place *place,
                   const char *at, struct ddp_err *err);

/* Call `fn` with each name of the entry. Stops at the first -1. */
int host_each_name(const struct host_place *place, const struct host_entry *e,
                   int (*fn)(const char *name, void *arg, struct ddp_err *err), void *arg,
                   struct ddp_err *err);

#endif
