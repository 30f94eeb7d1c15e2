/* launcher/job/heartbeat.h - node liveness and clock offsets */
#ifndef LAUNCHER_JOB_HEARTBEAT_H
#define LAUNCHER_JOB_HEARTBEAT_H

#include "launcher/job/state.h"

void job_start_heartbeat(struct job *j);
void job_ping(struct job *j, unsigned node);
int job_handle_pong(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err);
int job_handle_late(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err);

#endif
