/* launcher/alloc/hosts.h - hostfile and -H, for source.c */
#ifndef LAUNCHER_ALLOC_HOSTS_H
#define LAUNCHER_ALLOC_HOSTS_H

#include "launcher/alloc/alloc.h"

/* -H beside a hostfile or a scheduler: select nodes of `alloc`, in the order of -H,
 * possibly with other slots ("^host" excludes one); a scheduler's number of tasks is
 * checked when the node's GPUs are known (plan_cap()). Other hosts are refused by name.
 */
int hosts_arg_filter(const struct opts *opts, struct alloc *alloc, struct ddp_err *err);

/* Parse the text of a hostfile into `alloc`; `source` is its name in messages. */
int hostfile_parse(const char *source, const char *text, size_t size, struct alloc *alloc,
                   struct ddp_err *err);

enum { HOSTFILE_MAX = 256 << 20 }; /* bytes */

/* hostfile_parse() for that file, which may be a pipe that is silent for so long. */
int hostfile_read(const char *path, int64_t silence_ms, struct alloc *alloc,
                  struct ddp_err *err);

#endif
