/* launcher/plugins/preflight/check.h - the table of --preflight's checks
 *
 * A row has two halves. `run` runs on each node, in a child process that is killed when
 * it takes too long, and reports findings: a value to print, a key that must be the same
 * on all hosts, a number, or a problem. The launcher
 * compares the findings of all hosts (results.h) by the rest of the row. A new check is a
 * function, an enum value and a row in checks.c.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_CHECK_H
#define LAUNCHER_PLUGINS_PREFLIGHT_CHECK_H

#include "common/strv.h"
#include "launcher/link/message.h"

enum probe_phase {
    PROBE_NODE,     /* checks of one node */
    PROBE_NEIGHBOUR /* the connection to the next node */
};

/* The rows, in the order of the lines. */
enum check_row {
    CHECK_REACHED,
    CHECK_AGENT,
    CHECK_USER,
    CHECK_CLOCK,
    CHECK_CPUS,
    CHECK_GPUS,
    CHECK_DIRECTORY,
    CHECK_CONTAINER,
    CHECK_PROGRAM,
    CHECK_LIBRARIES,
    CHECK_PYTHON,
    CHECK_TMP,
    CHECK_SHM,
    CHECK_LIMITS,
    CHECK_NAMES,
    CHECK_PORT,
    CHECK_NETWORK,
    CHECKS
};

/* The input of a check. All borrowed. */
struct check_ctx {
    const struct msg_probe *probe;
    unsigned self;          /* this node's number */
    const struct strv *env; /* the environment of ranks on this node */
    const char *root;       /* prefix of /proc and /sys: "" except in tests */
    uint32_t check;         /* the row that runs */
    void (*found)(const struct msg_finding *f, void *arg);
    void *arg;
};

struct check {
    const char *name;
    enum probe_phase phase;
    void (*run)(const struct check_ctx *ctx); /* NULL: the launcher fills it in */
    /* Not NULL: keys must be equal on all hosts. The text ends the line about a host
     * whose key differs ("VALUE, but OTHER on HOSTS; "). */
    const char *mismatch;
    bool mismatch_is_remark;
    bool count_only; /* many items: the table shows only their number */
    char *(*range)(int64_t least,
                   int64_t most); /* printable, malloc'ed; NULL: no numbers */
    /* The problem text (malloc'ed, with what to try) if `number` is a fault; else NULL.
     */
    char *(*fault)(int64_t number);
};

extern const struct check checks[CHECKS];

/* For checks: report a finding (finding.c). `item` and `key` may be NULL. */
void found_value(const struct check_ctx *ctx, const char *item, const char *key,
                 const char *value, ...) __attribute__((format(printf, 4, 5)));
void found_number(const struct check_ctx *ctx, int64_t number);
void found_problem(const struct check_ctx *ctx, const char *problem, ...)
    __attribute__((format(printf, 2, 3)));
void found_remark(const struct check_ctx *ctx, const char *remark, ...)
    __attribute__((format(printf, 2, 3)));

/* The checks, a row each in checks.c. */
void check_user(const struct check_ctx *ctx); /* check_machine.c */
void check_cpus(const struct check_ctx *ctx);
void check_gpus(const struct check_ctx *ctx);
void check_clock(const struct check_ctx *ctx);
void check_limits(const struct check_ctx *ctx);
void check_shm(const struct check_ctx *ctx); /* check_files.c */
void check_tmp(const struct check_ctx *ctx);
void check_wdir(const struct check_ctx *ctx);
void check_container(const struct check_ctx *ctx); /* check_container.c */
void check_program(const struct check_ctx *ctx);   /* check_program.c */
void check_libraries(const struct check_ctx *ctx); /* check_libraries.c */
void check_python(const struct check_ctx *ctx);
void check_names(const struct check_ctx *ctx); /* check_net.c */
void check_port(const struct check_ctx *ctx);
void check_network(const struct check_ctx *ctx);

#endif
