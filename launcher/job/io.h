/* launcher/job/io.h - output and input of ranks, by ddprun's own streams */
#ifndef LAUNCHER_JOB_IO_H
#define LAUNCHER_JOB_IO_H

#include "launcher/job/state.h"

int job_open_streams(struct job *j, struct ddp_err *err);
void job_close_streams(struct job *j);
void job_continue_streams(struct job *j); /* ddprun has been stopped */
void job_input_more(struct job *j);       /* as much as the nodes have consumed */
/* Ranks have been started, perhaps on other nodes: they get what has not been read yet,
 * or the end of the input. */
void job_input_begin(struct job *j);
/* Tell the agents the size of our terminal, if rank 0 has a pseudo-terminal. */
bool job_send_window(struct job *j);

#endif
