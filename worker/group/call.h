/* worker/group/call.h - one collective as a rank has called it, which others compare */
#ifndef WORKER_GROUP_CALL_H
#define WORKER_GROUP_CALL_H

#include <stdint.h>

struct call {
    uint64_t number, bytes; /* of the collective, as the user calls it: coll_call() */
    uint32_t what;
    uint32_t streams; /* over TCP: that the message behind it is divided over */
};

#endif
