/* launcher/alloc/hosts.h - what the sources that people write share with source.c */
#ifndef LAUNCHER_ALLOC_HOSTS_H
#define LAUNCHER_ALLOC_HOSTS_H

#include "launcher/alloc/alloc.h"

/* A file has given the hosts; -H picks among them, in its own order, and may lower their
 * slots ("^host" leaves one out). A host that is not in the file is refused by name. */
int hosts_arg_filter(const struct opts *opts, struct alloc *alloc, struct ddp_err *err);

/* The text of a hostfile into `alloc`; `source` is its name in complaints. */
int hostfile_parse(const char *source, const char *text, size_t size, struct alloc *alloc,
                   struct ddp_err *err);

/* The same for the file at `path`. */
int hostfile_read(const char *path, struct alloc *alloc, struct ddp_err *err);

#endif
