/* launcher/plugins/diagnose/beside.h - the CPUs of a rank, and what else runs on them */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_BESIDE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_BESIDE_H

#include "launcher/plugins/diagnose/collect.h"

/* {"cpus": "0-3", "load": 2.1, "busy": false, "measured_s": 0.2, "cpu_percent": 97,
 * "waits_percent": 3, "stolen_percent": 0, "faults_per_s": 0, "top": {...}}: of the
 * rank's processes the CPU time, the time in which they wait for a CPU, and the major
 * page faults; of the host the CPU time that its hypervisor gives to other machines; the
 * process of others that uses these CPUs most, if one uses them: {"pid", "program",
 * "cpu_percent", "rank"}; "rank" only if it is one of `ranks`, the first of which is the
 * one that is described. Measures for a fifth of a second, on a busy host for two. */
json_t *beside(const struct collect_rank *ranks, size_t n);

#endif
