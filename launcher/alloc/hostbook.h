/* launcher/alloc/hostbook.h - add hosts to an allocation, merging repeats
 *
 * Two names are the same host if they are equal or, when one of them has no domain, if
 * their first labels are ("n1" and "n1.cluster"). The slots of repeats are added. A name
 * without a domain beside two domains is an error, in any order.
 *
 * Owner: the source that reads; the allocation is borrowed and outlives the hostbook.
 */
#ifndef LAUNCHER_ALLOC_HOSTBOOK_H
#define LAUNCHER_ALLOC_HOSTBOOK_H

#include "common/strv.h"
#include "launcher/alloc/alloc.h"
#include "launcher/alloc/hosttext.h"

struct hostbook;

/* A second explicit number of slots for a host: added in a list (-H n1:2,n1:2), an error
 * in a file. */
enum repeat { REPEAT_ADDS, REPEAT_REFUSED };

/* Starts with the nodes that `a` has already. */
struct hostbook *hostbook_create(struct alloc *a, enum repeat repeat);
void hostbook_destroy(struct hostbook *b);

/* Add each name of the entry. */
int hostbook_add(struct hostbook *b, const struct host_place *place,
                 const struct host_entry *e, struct ddp_err *err);

/* The index of a host; -1 with `err` when it is missing or ambiguous (`place` and `at`
 * are the position in the message). */
long hostbook_find(struct hostbook *b, const char *name, const struct host_place *place,
                   const char *at, struct ddp_err *err);

/* Append the names of the entry, whose brackets are expanded. */
int host_names(const struct host_place *place, const struct host_entry *e,
               struct strv *names, struct ddp_err *err);

#endif
