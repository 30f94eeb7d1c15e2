/* launcher/alloc/hosttext.h - parse one host of a hostfile or of -H
 *
 *     [^] [user@] host [:N]      host: name | IPv4 | IPv6 | [IPv6] | n[01-16,20]-ib
 *
 * One grammar for the host files of Open MPI, MPICH and Horovod and for -H. Errors show
 * the position, the line, and a caret below the offending byte.
 */
#ifndef LAUNCHER_ALLOC_HOSTTEXT_H
#define LAUNCHER_ALLOC_HOSTTEXT_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

#define SLOTS_MAX 1000000 /* of one host; more is a typing error */

/* Position of a text, for messages. All borrowed. */
struct host_place {
    const char *source; /* "hosts", "-H" */
    long line;          /* from 1; 0: the source is one line (-H) */
    const char *text;   /* the whole line, no newline */
    size_t len;
};

struct host_entry {
    bool exclude;     /* ^host */
    const char *host; /* the name or bracket expression, borrowed */
    size_t host_len;
    bool literal;     /* an address: no brackets, no domain */
    const char *user; /* borrowed, NULL: none */
    size_t user_len;
    int slots;            /* 0: not given */
    int max_slots;        /* 0: none */
    int port;             /* 0: none */
    const char *slots_at; /* position of `slots` in the text, borrowed */
};

/* Set `err` to "hosts:3:7: " and the message, the line, and a caret under `at`. Long
 * lines are cut around the caret. Returns -1. */
int host_complain(const struct host_place *place, const char *at, struct ddp_err *err,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Parse the word from `p` to `end` (no blanks in it). Unused fields become 0. */
int host_word(const struct host_place *place, const char *p, const char *end,
              struct host_entry *e, struct ddp_err *err);

/* The item at `*p` of a list up to `stop`: from `*p` to `*end`, without the blanks around
 * it. Returns the ',' behind it, or `stop`; a comma in brackets is part of the item. */
const char *host_item(const char **p, const char *stop, const char **end);

/* Parse a whole number from `min` to `max`, and nothing else; `what` names it in the
 * error.
 */
int host_number(const struct host_place *place, const char *p, const char *end,
                const char *what, int min, int max, int *value, struct ddp_err *err);

/* Check that [p, end) is safe as a login name for ssh. */
int host_login(const struct host_place *place, const char *p, const char *end,
               struct ddp_err *err);

bool host_is_address(const char *name, size_t len);

#endif
