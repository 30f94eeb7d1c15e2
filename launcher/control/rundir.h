/* launcher/control/rundir.h - the directory with the control sockets of a user's jobs
 *
 * $XDG_RUNTIME_DIR/ddprun, else /tmp/ddprun-UID. It has mode 0700: others cannot reach
 * the sockets in it. One socket per running job, named PID-ID: the launcher's pid and the
 * job's id.
 */
#ifndef LAUNCHER_CONTROL_RUNDIR_H
#define LAUNCHER_CONTROL_RUNDIR_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Make a file in the directory, which is made if it is missing: `make` gets its path and
 * returns a descriptor, or -1 with errno, ENOENT after which it is called again, as
 * another job's end may have removed the empty directory. Returns what it has; -1 with
 * `err`, also if the directory is another user's or open to others. */
int rundir_make(int (*make)(const char *dir, void *arg), void *arg, struct ddp_err *err);
/* Remove the directory if it is empty: a file of ours in it has been removed. */
void rundir_leave(void);

/* A launcher's file here, RUNDIR_TOKEN and its pid: the secret of its page. The launcher
 * has locked it (flock). */
#define RUNDIR_TOKEN ".token-"

/* The sockets of jobs: their paths. In both places, as the job's environment may have
 * been another. Removes what killed launchers have left, and a directory that is empty
 * then. */
void rundir_list(struct strv *sockets);
void rundir_clean(void); /* only that */

/* The address of a socket. Fails if the path is too long. */
int rundir_addr(const char *path, struct sockaddr_un *sa, struct ddp_err *err);

#endif
