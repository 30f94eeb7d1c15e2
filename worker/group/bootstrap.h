/* worker/group/bootstrap.h - how the ranks of a group exchange their cards
 *
 * By one of the methods of ddp_group_options.meeting (include/ddprun/group.h), or by
 * messages of a parent group (subgroup.c). Each takes one card (layout.h) and returns the
 * cards of all ranks.
 */
#ifndef WORKER_GROUP_BOOTSTRAP_H
#define WORKER_GROUP_BOOTSTRAP_H

#include "worker/group/layout.h"

struct ddp_group;

struct bootstrap {
    struct ddp_group *parent; /* a parent group, and the members' numbers in it; without
                                 one their numbers in the job, NULL: the same */
    const int *ranks;
    const char *place; /* else: the URL without its scheme */
    const char *name;  /* of the group, with a counter of groups of this name */
    char addr[256];    /* where the others are expected: env://, tcp://; else empty */
    int port;          /* there; env:// 0: MASTER_PORT */
    bool listens;      /* rank 0 does by now: one that refuses a connection has ended */
    int rank, size;
    const struct card *card; /* borrowed: mine */
    struct card *cards;      /* borrowed: room for `size`, in which they are returned */
    int held;            /* file://, on rank 0: the file that it has locks on, or -1 */
    int64_t deadline_ms; /* not with a parent, whose messages have their own. Time in
                            which this process is stopped moves it */
    char made[300];      /* `place`, where no URL has it */
};

/* Exchanges cards. */
typedef int (*bootstrap_fn)(struct bootstrap *m, struct ddp_err *err);

/* group.c: exchange cards, g->card being ours (alone: no others), and set up shared
 * memory, TCP and the backend. */
int group_meet(struct ddp_group *g, struct bootstrap *m, bootstrap_fn exchange,
               struct ddp_err *err);

int bootstrap_tcp(struct bootstrap *m, struct ddp_err *err);
int bootstrap_file(struct bootstrap *m, struct ddp_err *err);
int bootstrap_launcher(struct bootstrap *m, struct ddp_err *err);

/* By MPI, after mpi_begin() (mpi/mpi.c), which loads the shim for the MPI that this
 * process runs under and calls MPI_Init. */
int mpi_begin(int *rank, int *size, struct ddp_err *err);
int bootstrap_mpi(struct bootstrap *m, struct ddp_err *err);

/* Between two attempts; the next pause is twice as long, up to `most_ms`. */
void bootstrap_pause(struct bootstrap *m, int *pause_ms, int most_ms);

/* tcp://, on rank 0 that listens already. */
int bootstrap_tcp_serve(struct bootstrap *m, int listener, struct ddp_err *err);

/* tcp://, at an address that all ranks have found. Rank 0 passes its `listener`, or -1 to
 * listen at `port`; the others pass -1. `word` becomes part of the group's name, so that
 * ranks of another job are refused. */
int bootstrap_at(const struct bootstrap *m, const char *addr, int port, const char *word,
                 int listener, struct ddp_err *err);

/* tcp://, where another way carries rank 0's address: rank 0 listens at a free port and
 * has "PORT@ADDRESS@WORD" in `value`, with a random word by which the others show that
 * they have read it; share() gives the others what rank 0 has; then cards are exchanged.
 * `source`: what share() reads, for errors. */
enum { BOOTSTRAP_VALUE = 256 };
typedef int (*bootstrap_share_fn)(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                                  struct ddp_err *err);
int bootstrap_by_value(struct bootstrap *m, bootstrap_share_fn share, const char *source,
                       struct ddp_err *err);

/* By the launcher's PMIx: called by all ranks of the job. MPI may use it in the same
 * process before and after us, so it is not finalised before the process exits. */
int bootstrap_share_pmix(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                         struct ddp_err *err);
/* A key for it: letters, digits and '-', which names are not confined to. */
void bootstrap_key(const struct bootstrap *m, char key[32]);

/* Choose by the scheme of `url` (NULL: as group.h says). m->addr and m->port may be those
 * of the user's options; fills them and m->place. */
bootstrap_fn bootstrap_find(struct bootstrap *m, const char *url, struct ddp_err *err);

#endif
