/* tests/launcher/alloc_text.h - allocations as texts */
#ifndef TESTS_LAUNCHER_ALLOC_TEXT_H
#define TESTS_LAUNCHER_ALLOC_TEXT_H

#include "launcher/alloc/source.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "user@name:port slots/max (else 2); ..." without what was not given; the last are slots
 * that count only without GPUs. malloc'ed. */
static inline char *alloc_text(const struct alloc *a)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (size_t i = 0; i < a->nnodes; i++) {
        const struct alloc_node *n = &a->nodes[i];
        fprintf(f, "%s%s%s%s", i ? "; " : "", n->user ? n->user : "", n->user ? "@" : "",
                n->name);
        if (n->port)
            fprintf(f, ":%d", n->port);
        if (n->slots)
            fprintf(f, " %d", n->slots);
        if (n->max_slots)
            fprintf(f, "/%d", n->max_slots);
        if (n->slots_else)
            fprintf(f, " (else %d)", n->slots_else);
    }
    fclose(f);
    return text;
}

/* The options give this allocation, from this source. */
static inline void check_alloc(const struct opts *opts, const char *source,
                               const char *nodes)
{
    struct ddp_err err = {""};
    struct alloc *a = alloc_read(opts, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    char *text = alloc_text(a);
    ck_assert_str_eq(a->source, source);
    ck_assert_str_eq(text, nodes);
    free(text);
    alloc_destroy(a);
}

/* They are refused with an error that contains `what`. */
static inline void check_refused(const struct opts *opts, const char *what)
{
    struct ddp_err err = {""};
    struct alloc *a = alloc_read(opts, &err);
    ck_assert_msg(a == NULL, "accepted: %s", a ? a->source : "");
    ck_assert_msg(strstr(err.text, what) != NULL, "'%s' says nothing of '%s'", err.text,
                  what);
}

#endif
