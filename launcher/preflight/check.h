/* launcher/preflight/check.h - the table of what --preflight looks at
 *
 * A row has two halves. `look` runs on each node, in a process of its own that is killed
 * when it takes too long, and says what it finds: a value for people, a key that has to
 * be the same on all hosts, a number to be compared with the others', or a problem. What
 * findings mean beside those of other hosts is judged at the launcher (results.h), by the
 * rest of the row. A new check is a function, a number and a row in checks.c.
 */
#ifndef LAUNCHER_PREFLIGHT_CHECK_H
#define LAUNCHER_PREFLIGHT_CHECK_H

#include "common/strv.h"
#include "launcher/link/message.h"

enum probe_phase {
    PROBE_LAUNCHER, /* found by the launcher: no `look` */
    PROBE_NODE,     /* what a node is and has */
    PROBE_RING      /* the way to its neighbour */
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
    CHECK_PROGRAM,
    CHECK_LIBRARIES,
    CHECK_PYTHON,
    CHECK_TMP,
    CHECK_SHM,
    CHECK_LIMITS,
    CHECK_NAMES,
    CHECK_PORT,
    CHECK_LATENCY,
    CHECK_BANDWIDTH,
    CHECKS
};

/* What a look may know. All borrowed. */
struct ask {
    const struct msg_probe *probe;
    unsigned self;          /* our node's number */
    const struct strv *env; /* that ranks would have here */
    const char *root;       /* in front of /proc and /sys: "" but in tests */
    uint32_t check;         /* the row that asks */
    void (*found)(const struct msg_found *f, void *arg);
    void *arg;
};

struct check {
    const char *name;
    enum probe_phase phase;
    void (*look)(const struct ask *ask);
    /* Keys must be equal: this follows "VALUE, but VALUE on HOSTS; ". */
    const char *unlike;
    bool unlike_is_remark;
    bool folds; /* many items: only their number is shown */
    char *(*range)(int64_t least, int64_t most); /* for people; malloc'ed; NULL: none */
    /* A number that stands out from the median of all: the sentence, malloc'ed, with
     * what to try; NULL: it does not. */
    char *(*odd)(int64_t number, int64_t median, size_t nhosts, const char *item);
};

extern const struct check checks[CHECKS];

/* For looks: say what is found (finding.c). `item` and `key` may be NULL. */
void found_value(const struct ask *ask, const char *item, const char *key,
                 const char *value, ...) __attribute__((format(printf, 4, 5)));
void found_number(const struct ask *ask, const char *item, int64_t number);
void found_problem(const struct ask *ask, const char *problem, ...)
    __attribute__((format(printf, 2, 3)));
void found_remark(const struct ask *ask, const char *remark, ...)
    __attribute__((format(printf, 2, 3)));

/* The looks, one line each in checks.c's table. */
void look_user(const struct ask *ask); /* check_machine.c */
void look_cpus(const struct ask *ask);
void look_gpus(const struct ask *ask);
void look_clock(const struct ask *ask);
void look_limits(const struct ask *ask);
void look_shm(const struct ask *ask); /* check_files.c */
void look_tmp(const struct ask *ask);
void look_wdir(const struct ask *ask);
void look_program(const struct ask *ask);   /* check_program.c */
void look_libraries(const struct ask *ask); /* check_libraries.c */
void look_python(const struct ask *ask);
void look_names(const struct ask *ask); /* check_net.c */
void look_port(const struct ask *ask);
void look_ring(const struct ask *ask); /* bandwidth.c */

#endif
