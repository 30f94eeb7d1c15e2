/* launcher/plugins/diagnose/proc.h - what the kernel knows of a process */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_PROC_H
#define LAUNCHER_PLUGINS_DIAGNOSE_PROC_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct described {
    pid_t pid;
    json_t *out; /* borrowed */
};

/* Sets "pid", "program", "state", "wchan", "cpu_s" and "nthreads" in `process`; false: it
 * has ended. */
bool proc_describe(pid_t pid, json_t *process);
char proc_state(pid_t pid); /* R, S, D, T, Z, ...; 0: it has ended */

/* Bit masks of signals in /proc/PID/status of a thread, such as "SigCgt", all that are
 * named in `masks`, as one. */
uint64_t proc_signals(pid_t pid, const char *masks);

/* The target of a link of the process, such as "exe" or "fd/3"; false and "": there is
 * none. */
bool proc_link(pid_t pid, const char *name, char *text, size_t size);

/* It has mapped a file whose path contains `text`. */
bool proc_maps(pid_t pid, const char *text);

/* Processes below `pid`, itself first; at most `max`. Returns how many. */
size_t proc_tree(pid_t pid, pid_t *pids, size_t max);

#endif
