/* launcher/spawn/child.h - start one process, the fast way
 *
 * The child shares our memory until it has become the new program (CLONE_VM and
 * CLONE_VFORK, as posix_spawn does it), so nothing is copied and whatever goes wrong is
 * known, with its reason, when child_spawn() returns.
 */
#ifndef LAUNCHER_SPAWN_CHILD_H
#define LAUNCHER_SPAWN_CHILD_H

#include "include/ddprun/err.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* One more descriptor that a child may be given. Out of the way of what scripts use (3 to
 * 9, 10 on, 255), and small enough for a table of descriptors that need not grow. */
enum { CHILD_EXTRA_FD = 63 };

/* What the new process is to be. All borrowed, for the time of the call. */
struct child_spec {
    const char *path; /* of the program: no search */
    char *const *argv;
    char *const *env;
    const char *dir;       /* NULL: ours */
    int in, out, err;      /* become 0, 1, 2 (-1: /dev/null); all above are closed */
    int extra;             /* but this becomes CHILD_EXTRA_FD; 0 or -1: none */
    const cpu_set_t *cpus; /* NULL: ours */
    size_t cpus_size;      /* bytes of it */
    bool session; /* a session of its own: for ssh, which shall find no terminal */
    bool group;   /* a process group of its own, in our session: for ranks. A session each
                   * would make the kernel (sched_autogroup) a scheduling group for each,
                   * which doubles the time a launch takes on a busy machine. */
};

/* Which step of the child failed. */
enum child_step { CHILD_OK, CHILD_CLONE, CHILD_SETUP, CHILD_DIR, CHILD_CPUS, CHILD_EXEC };

/* The child has every signal at its default and none blocked, and is killed by the kernel
 * when this process ends. Returns its pid, or -1 with errno and the step that failed. */
pid_t child_spawn(const struct child_spec *spec, enum child_step *step);

/* Set up what child_spawn() needs, once; and give it back. */
int child_init(struct ddp_err *err);
void child_finish(void);

#endif
