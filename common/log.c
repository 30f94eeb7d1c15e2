/* common/log.c - see log.h
 *
 * The only mutable process-wide state: a threshold, some thresholds by subsystem, and the
 * sink. A line is written with one write(), so that lines of several processes on one
 * terminal do not mix.
 */
#include "common/log.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const char *const log_subsystems[] = {
    "agent", "diagnose",  "elastic", "grace",  "heartbeat", "input",
    "job",   "mpi",       "options", "output", "peers",     "pmi",
    "pmix",  "preflight", "preload", "ranks",  "relay",     "script",
    "spawn", "start",     "store",   "worker", NULL};

static const struct {
    const char *name;
    enum log_level level;
} levels_known[] = {{"error", LOG_ERROR}, {"warn", LOG_WARN},   {"warning", LOG_WARN},
                    {"info", LOG_INFO},   {"debug", LOG_DEBUG}, {"trace", LOG_TRACE}};

static struct {
    const char *program, *host;
    enum log_level threshold;
    struct {
        char subsys[16];
        enum log_level threshold;
    } rules[16];
    size_t nrules;
    void (*sink)(enum log_level level, const char *line, void *arg);
    void *sink_arg;
} state = {.program = "ddprun", .threshold = LOG_WARN};

static int level_parse(const char *name, size_t len, enum log_level *out)
{
    for (size_t i = 0; i < ARRAY_LEN(levels_known); i++) {
        const char *known = levels_known[i].name;
        if (strlen(known) == len && strncasecmp(known, name, len) == 0) {
            *out = levels_known[i].level;
            return 0;
        }
    }
    return -1;
}

/* "agent, grace, ..." */
static int unknown_subsystem(const char *name, size_t len, struct ddp_err *err)
{
    char all[300] = "";
    size_t n = 0;
    for (const char *const *s = log_subsystems; *s && n < sizeof all; s++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", *s);
    return err_set(err, "there is no '%.*s' to log: %s", (int)len, name, all);
}

static int rule_parse(const char *item, size_t len, struct ddp_err *err)
{
    const char *eq = memchr(item, '=', len);
    const char *name = eq ? eq + 1 : item;
    enum log_level level;
    if (level_parse(name, len - (size_t)(name - item), &level) < 0)
        return err_set(err,
                       "unknown log level '%.*s': error, warn, info, debug and trace are "
                       "known, also as 'subsystem=level'",
                       (int)len, item);
    if (!eq) {
        state.threshold = level;
        return 0;
    }
    size_t n = (size_t)(eq - item), known = 0;
    while (log_subsystems[known] && (strlen(log_subsystems[known]) != n ||
                                     memcmp(log_subsystems[known], item, n) != 0))
        known++;
    if (!log_subsystems[known])
        return unknown_subsystem(item, n, err);
    if (n >= sizeof state.rules[0].subsys || state.nrules == ARRAY_LEN(state.rules))
        return err_set(err, "log level '%.*s' is one too many", (int)len, item);
    memcpy(state.rules[state.nrules].subsys, item, n);
    state.rules[state.nrules].subsys[n] = '\0';
    state.rules[state.nrules++].threshold = level;
    return 0;
}

int log_setup(const char *program, const char *host, const char *levels,
              struct ddp_err *err)
{
    state.program = program;
    state.host = host;
    for (const char *p = levels; p && *p;) {
        size_t len = strcspn(p, ",");
        if (len > 0 && rule_parse(p, len, err) < 0)
            return -1;
        p += len + (p[len] == ',');
    }
    return 0;
}

void log_sink(void (*fn)(enum log_level level, const char *line, void *arg), void *arg)
{
    state.sink = fn;
    state.sink_arg = arg;
}

static enum log_level threshold_of(const char *subsys)
{
    for (size_t i = state.nrules; i > 0; i--) {
        if (strcmp(state.rules[i - 1].subsys, subsys) == 0)
            return state.rules[i - 1].threshold;
    }
    return state.threshold;
}

void log_write(enum log_level level, const char *subsys, const char *fmt, ...)
{
    if (level > threshold_of(subsys))
        return;
    int saved = errno;
    char line[2048];
    const char *host = state.host ? state.host : "", *open = *host ? "[" : "",
               *close = *host ? "]" : "";
    int n = level <= LOG_WARN
                ? snprintf(line, sizeof line, "%s%s%s%s: %s: ", state.program, open, host,
                           close, level == LOG_WARN ? "warning" : "error")
                : snprintf(line, sizeof line, "%s%s%s%s %s: ", state.program, open, host,
                           close, subsys);
    if (n < 0 || (size_t)n >= sizeof line - 2)
        return;
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = m < 0 ? (size_t)n : (size_t)n + (size_t)m;
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    line[len] = '\0';
    if (state.sink) {
        state.sink(level, line, state.sink_arg);
    } else {
        line[len] = '\n';
        if (write(STDERR_FILENO, line, len + 1) < 0) {
            /* a failed write to stderr cannot be reported */
        }
    }
    errno = saved;
}
