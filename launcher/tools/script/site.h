/* launcher/tools/script/site.h - what is known of a cluster: its scheduler, partitions,
 * limits
 *
 * A site file is ini, with one section [site] and a [partition NAME] for each partition,
 * queue or resource type; templates/site/README.md is its manual. It holds no code.
 * A limit that a file leaves out is not checked.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_SITE_H
#define LAUNCHER_TOOLS_SCRIPT_SITE_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* By enum scheduler. */
extern const struct scheduler_facts {
    const char *name;
    const char *submit;      /* the command that takes a script: one word or two */
    const char *brief;       /* its option to print only the job's number; NULL: none */
    const char *end_signals; /* that it sends a script at the end of its time */
    bool submits_itself;     /* a script that is to go on submits itself again */
    bool goes_on;            /* a job that has lost a node may go on */
} schedulers[];

/* What Grid Engine multiplies the amount of a complex by: sge_complex(5). */
enum consumable { CONSUMABLE_SLOT, CONSUMABLE_JOB, CONSUMABLE_HOST };

/* 0 means "not known" for numbers. Strings are owned; NULL: not given. */
struct partition {
    char *name;
    int nodes;         /* per job */
    int gpus;          /* of a node; -1: not known */
    int cores;         /* of a node */
    int64_t memory_mb; /* of a node, available to jobs */
    int64_t time_s;    /* longest job */
    double node_hours; /* of one job: nodes x hours */
    bool whole;        /* jobs get whole nodes */
    bool preemptible;  /* jobs are put back in the queue when others need the nodes */
    char *request;     /* instead of the site's */
};

struct site {
    char *name; /* as given to --site */
    char *file; /* its path, for messages */
    char *title;
    char *closed; /* when the cluster was shut down, "October 2024"; NULL: in service */
    enum scheduler scheduler;
    bool account;               /* a job must name one */
    char *account_hint;         /* how users find theirs */
    enum consumable consumable; /* of the GPUs' complex; Grid Engine */
    char *request;      /* lines that ask for nodes, CPUs and GPUs: template text */
    char *submit;       /* more arguments of the submit command: template text */
    char *modules_init; /* a file that defines the command 'module' */
    char *modules;      /* to load, separated by blanks */
    char *scratch;      /* a path, with $VARIABLES of the job */
    char *interface;    /* of the fast network, for --interface */
    char *exports;      /* NAME=value for every job, one per line */
    struct partition *partitions; /* in the file's order; the first is the default */
    size_t npartitions;
};

/* `name` is one of those that come with ddprun, a file NAME.ini in
 * ~/.config/ddprun/site or /etc/ddprun/site, or the path of a file (with a '/' or ending
 * in ".ini"). Returns NULL with one line: file, line, column and what is wrong there. */
struct site *site_read(const char *name, struct ddp_err *err);
void site_destroy(struct site *s); /* NULL is fine */

/* Borrowed; NULL when the site has no such partition. */
struct partition *site_partition(const struct site *s, const char *name);

/* Print the sites that site_read() knows by name: --list-sites. */
void site_list(FILE *out);

#endif
