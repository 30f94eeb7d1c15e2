/* launcher/plugins/diagnose/sentence.h - what a verdict says of the ranks
 *
 * The ranks as verdict.c sees them, and their parts in a sentence.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_SENTENCE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_SENTENCE_H

#include "common/strv.h"
#include "launcher/plugins/diagnose/place.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A message that a rank waits for: an element of "awaits" (mpi_trace.h). */
struct awaited {
    const char *group;            /* its id */
    json_int_t peer, tag, number; /* peer -1: none is known */
    bool sends;
    json_int_t stray_tag; /* peers.h; -1: none */
    const json_t *stray_group;
};

struct view {
    const json_t *is;
    int rank;
    const char *host, *state, *gone; /* gone: exited, or its node does not answer */
    struct place at;
    bool timed_out;      /* it had waited, and has failed */
    bool awaits, absent; /* of a group: it waits; others wait for it */
    bool unrecorded;     /* hidden in a group */
    struct awaited awaited;
    /* in the group that is examined */
    bool member, known;       /* it is one, its numbers are known */
    bool hidden;              /* it may be one, but does not record this */
    json_int_t entered, done; /* 0 if they are not */
    const json_t *call;       /* of the number that is compared; NULL: none */
};

struct job_view {
    struct view *ranks;
    size_t n;
    bool hosts_differ;
    json_t *sentences, *culprits;
    const char *kind;
    struct strv arena; /* owns what marks() has returned */
    FILE *sentence;    /* that is open; text: so far */
    char *text;
    size_t ntext;
};

/* A mark for each rank, none set; valid as long as the view. */
bool *marks(struct job_view *j);

bool stopped(const struct view *v);

/* One sentence at a time. */
FILE *sentence_open(struct job_view *j);
void sentence_add(struct job_view *j, bool first); /* else as the last one */

void print_age(json_int_t ms, FILE *f);

/* "rank 1 on node2", "ranks 0,2-3": those for which `mark` is set. */
void print_ranks(const struct job_view *j, const bool *mark, bool hosts, FILE *f);

void print_operands(const json_t *call, FILE *f); /* "(1,000 x float32)" */
char *rank_list(const json_t *ranks); /* "0,2-3", for the caller; NULL: it is empty */
void print_group(const json_t *group, FILE *f);
bool is_default(const json_t *group); /* that of all ranks */

/* " at train.py:17", if that is known; without the function, as an operation was named.
 */
void print_line(const struct place *at, FILE *f);

/* " for rank 1 (tag 7)", if it waits for a message of a known rank. */
void print_peer(const struct view *v, FILE *f);

/* "rank 1 on node2 has not arrived: it is ..." for each place; without a verb (NULL)
 * "rank 1 on node2 is ...". */
void print_places(struct job_view *j, const bool *mark, const char *verb, FILE *f);

/* The ranks that are the reason, replacing those before; `kind`: verdict.h. */
void set_culprits(struct job_view *j, const bool *mark, const char *kind);

#endif
