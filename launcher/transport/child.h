/* launcher/transport/child.h - start one process with little overhead
 *
 * The child shares our memory until execve() (CLONE_VM and CLONE_VFORK, as posix_spawn
 * does), so nothing is copied, and any failure and its reason are known when
 * child_spawn() returns.
 */
#ifndef LAUNCHER_TRANSPORT_CHILD_H
#define LAUNCHER_TRANSPORT_CHILD_H

#include "include/ddprun/err.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* One more descriptor that a child may get. Above those that scripts use (3 to 9, 10 on),
 * below 64 so the kernel's descriptor table need not grow. */
enum { CHILD_EXTRA_FD = 63 };

/* What child_spawn() needs in a thread other than the main one: a stack, descriptors, and
 * room for those of about `nchildren` children. Created before the thread, after all
 * signal handlers. */
struct child_place;
struct child_place *child_place_create(unsigned nchildren, struct ddp_err *err);
void child_place_destroy(struct child_place *p);

/* Description of the new process. All borrowed for the time of the call. */
struct child_spec {
    const char *path; /* of the program; PATH is not searched */
    char *const *argv;
    char *const *env;
    const char *dir;  /* NULL: ours */
    int in, out, err; /* become 0, 1, 2 (-1: /dev/null); all above are closed */
    int extra;        /* except this one, which becomes CHILD_EXTRA_FD; 0 or -1: none */
    const cpu_set_t *cpus;           /* NULL: ours */
    size_t cpus_size;                /* bytes of it */
    const struct child_place *place; /* NULL: the main thread's */
    int *pidfd;   /* gets a pidfd, owned by the caller, -1 before Linux 5.2; NULL: none */
    bool session; /* a new session: for ssh, which must find no terminal */
    pid_t join;   /* the process group of another child, in our session; 0: none */
    bool terminal; /* with `session`: `in` becomes its controlling terminal */
    bool group; /* a new process group in our session: for ranks. A session for each rank
                   would make a scheduling group for each (sched_autogroup), which doubles
                   the launch time on a busy machine. */
};

/* The step that failed. */
enum child_step { CHILD_OK, CHILD_CLONE, CHILD_SETUP, CHILD_DIR, CHILD_CPUS, CHILD_EXEC };

/* The child has default signal actions and no blocked signals, and the kernel kills it
 * when this process ends. Returns its pid, or -1 with errno and the failed step. */
pid_t child_spawn(const struct child_spec *spec, enum child_step *step);

/* Undo what our parent may have left: blocked signals do not reach us, nor the children;
 * with SIGCHLD ignored, exit statuses are lost. Early in main(). */
void child_signals_reset(void);

/* Set up what child_spawn() needs, once; and release it. -1 also where /proc does not
 * show our children. */
int child_init(struct ddp_err *err);
void child_finish(void);

#endif
