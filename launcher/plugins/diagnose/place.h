/* launcher/plugins/diagnose/place.h - where a rank is, from its stack */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_PLACE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_PLACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct place {
    const char *op;       /* the communication call it waits in; NULL: none */
    const char *function; /* of the user's innermost frame; NULL: no stack is known */
    const char *file;     /* NULL: unknown */
    long line;
};

/* The object of a list whose "id" is this text; NULL: none. */
const json_t *with_id(const json_t *list, const char *id);

/* All borrowed from `rank`, an object of collect(). */
const json_t *main_frames(const json_t *rank); /* of its main thread; NULL: unknown */
struct place place_of(const json_t *rank);
bool place_equal(const struct place *a, const struct place *b);
void place_print(const struct place *p, FILE *f); /* "load() at data.py:10" */

#endif
