/* launcher/plugins/horovod/slots.h - the ranks of an elastic Horovod job, and their
 * states
 *
 * A slot is a rank of the plan. Its place is that of its process in Horovod's world,
 * which is numbered anew each time the ranks form one (world.h).
 */
#ifndef LAUNCHER_PLUGINS_HOROVOD_SLOTS_H
#define LAUNCHER_PLUGINS_HOROVOD_SLOTS_H

#include "launcher/job/plugin.h"
#include "launcher/plugins/horovod/kv_server.h"
#include "launcher/plugins/horovod/notify.h"
#include "launcher/plugins/horovod/world.h"

enum slot_state {
    SLOT_STARTS, /* not yet in hvd.elastic.run */
    SLOT_JOINS,  /* has its place in the next world, and is not connected to all in it */
    SLOT_RUNS,
    SLOT_ASKS,    /* waits for its place in the next world */
    SLOT_MISSING, /* has failed, or is new; it is started in the next world */
    SLOT_ENDED,   /* has exited with status 0 */
    SLOT_GONE,    /* is ended, as its host is not to be used, or is lost */
    SLOT_STATES
};

/* One per rank of the plan. */
struct slot {
    enum slot_state state;
    struct place place;
    bool found, connected; /* in its world: the others can find it; it has found all */
    struct notify_service service;
};

struct horovod {
    struct job *j;        /* borrowed */
    struct kv_server *kv; /* owned; NULL before the loop exists */
    struct slot *slots;   /* owned; NULL before the first message */
    int nslots;
    int counts[SLOT_STATES]; /* slots in each state */
    bool formed;        /* all ranks of the first world have come to hvd.elastic.run */
    bool ending;        /* a rank has exited with status 0 */
    int replaced;       /* ranks, in all attempts */
    int64_t failed_ns;  /* the first failure since the last world; 0: none */
    int64_t changed_ms; /* hosts have changed since the last world; 0: they have not */
    int64_t told_ms;    /* ... of which rank 0 was last told then; 0: it was not */
    uint32_t told_s;    /* the time in the last request to a rank 0 */
    bool resized;       /* the present world has other hosts than the one before */
    int kept_slots;     /* of a host that keeps its ranks nonetheless; 0: none told */
    int64_t late_ms;    /* the ranks wait for hosts until then; 0: they do not */
};

/* Slots for the ranks of the plan that have none, in this state. */
void slots_add(struct horovod *h, enum slot_state state);
void slot_move(struct horovod *h, struct slot *s, enum slot_state to);
int slots_keepers(const struct horovod *h); /* ranks that have the state of the program */
const char *slot_host(const struct horovod *h, int rank);
/* By "HOST:LOCAL_RANK", as the rank has it from its last world; NULL: there is none. */
struct slot *slots_find(struct horovod *h, const char *id);
/* Those of a place of the plan. */
void slots_set_gone(struct horovod *h, int place);
bool slots_are_gone(const struct horovod *h, int place);

#endif
