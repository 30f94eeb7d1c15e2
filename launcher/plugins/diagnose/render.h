/* launcher/plugins/diagnose/render.h - a report as text */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_RENDER_H
#define LAUNCHER_PLUGINS_DIAGNOSE_RENDER_H

#include <jansson.h>
#include <stdio.h>

/* The main threads' stacks, one for each distinct stack with its ranks: at most `max`, of
 * `nframes` each (0: all). */
void render_stacks(const json_t *ranks, size_t max, size_t nframes, FILE *f);
/* Each rank: process, collectives, all threads. */
void render_ranks(const json_t *ranks, FILE *f);

#endif
