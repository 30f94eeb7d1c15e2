/* common/log.h - log lines of the programs on stderr
 *
 *     ddprun[node03]: warning: text          errors and warnings, for users
 *     ddprun[node03] spawn: text             from LOG_INFO on, with the subsystem
 *
 * Programs only; libraries take a callback from their caller instead. The threshold is
 * LOG_WARN until log_setup() sets another. Each .c that logs defines its subsystem once
 * at the top: `#define LOG_SUBSYS "spawn"`.
 */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include "include/ddprun/err.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* Every LOG_SUBSYS of the project, by name; ended by NULL. */
extern const char *const log_subsystems[];

/* `program` and `host` (may be NULL) are borrowed for the life of the process.
 * `levels` is "info" or "start=debug,store=trace" or both mixed; NULL leaves the default.
 */
int log_setup(const char *program, const char *host, const char *levels,
              struct ddp_err *err);

/* Send complete lines (without newline) elsewhere than to stderr, e.g. up an agent's
 * link. NULL restores stderr. */
void log_sink(void (*fn)(enum log_level level, const char *line, void *arg), void *arg);

void log_write(enum log_level level, const char *subsys, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(...) log_write(LOG_ERROR, LOG_SUBSYS, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, LOG_SUBSYS, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, LOG_SUBSYS, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, LOG_SUBSYS, __VA_ARGS__)
#define log_trace(...) log_write(LOG_TRACE, LOG_SUBSYS, __VA_ARGS__)

#endif
