/* launcher/transport/shell_command.h - run a user's command in the background
 *
 * By /bin/sh -c, in a process group of its own, without stdin. Its stdout is kept, up to
 * a limit; of its stderr the last line. After a time limit, with too much output, or when
 * this process ends, also by SIGKILL (common/group_guard.h), it is killed with its group.
 * Nothing here blocks.
 *
 * Owner: a plug-in, of the launcher or of an agent.
 */
#ifndef LAUNCHER_TRANSPORT_SHELL_COMMAND_H
#define LAUNCHER_TRANSPORT_SHELL_COMMAND_H

#include "launcher/transport/reap.h"

#include <stddef.h>

/* All borrowed for the time of the call. */
struct shell_command_spec {
    const char *text;
    char *const *env; /* NULL: ours */
    const char *dir;  /* NULL: ours */
    int64_t limit_ms;
    size_t most; /* bytes of stdout */
};

/* It has ended. `trouble`: NULL for exit status 0, else how it failed, as in "exited with
 * status 3: 'no GPU'". `output` is followed by '\0'. Both are borrowed for the time of
 * the call; the callee may destroy the command. */
typedef void (*shell_command_fn)(const char *trouble, const char *output, size_t size,
                                 void *arg);

struct shell_command;

struct shell_command *shell_command_start(struct loop *loop, struct reap *reap,
                                          const struct shell_command_spec *spec,
                                          shell_command_fn ended, void *arg,
                                          struct ddp_err *err);
/* Its process group; 0: it does not run. */
pid_t shell_command_group(const struct shell_command *c);
/* Is it one of the two children that we have started for it? */
bool shell_command_has(const struct shell_command *c, pid_t pid);
/* Kills it if it runs; NULL is fine. */
void shell_command_destroy(struct shell_command *c);

#endif
