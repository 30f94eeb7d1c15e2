/* launcher/plugins/diagnose/rank_files.h - what a rank has put into the agent's folder
 *
 * Files "RANK.PID.SUFFIX" (doc/hangs.md), and the socket of PyTorch's control plane.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_RANK_FILES_H
#define LAUNCHER_PLUGINS_DIAGNOSE_RANK_FILES_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Of the files of the folder the process nearest to `pid`, the rank's own: it may be a
 * child, if the rank is a shell. The caller frees "FOLDER/RANK.PID"; NULL: there is none,
 * *target is then `pid`. */
char *rank_stem(const char *folder, struct dirent *const *files, int nfiles, int rank,
                pid_t pid, pid_t *target);

/* Up to `max` bytes of the file, from an offset, with a NUL; the caller frees. NULL: it
 * cannot be read, or is no regular file. */
char *rank_file(const char *stem, const char *suffix, off_t from, size_t max);

/* A request for the flight recorder of PyTorch. */
struct rank_trace {
    int sock;     /* owned; -1: none, or it is answered */
    char *answer; /* owned */
    size_t size, room;
    size_t received; /* bytes, with what `shorten` has taken out */
    /* NULL, or: called as it grows, takes what is not needed out of what has come;
     * returns the size that is left */
    size_t (*shorten)(char *answer, size_t size);
};
void rank_trace_ask(struct rank_trace *t, const char *stem);
/* Read what has come; closes it at the end. False: no more is to come. */
bool rank_trace_read(struct rank_trace *t);
char *rank_trace_body(struct rank_trace *t); /* borrowed; NULL: none */

#endif
