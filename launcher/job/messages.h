/* launcher/job/messages.h - a frame from an agent, for the table in job.c */
#ifndef LAUNCHER_JOB_MESSAGES_H
#define LAUNCHER_JOB_MESSAGES_H

#include "launcher/job/state.h"

void job_handle_frame(struct job *j, struct link *l, const struct frame *f);

#endif
