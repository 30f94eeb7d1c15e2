/* examples/example.h - error handling of the examples */
#ifndef EXAMPLES_EXAMPLE_H
#define EXAMPLES_EXAMPLE_H

#include <ddprun/group.h>

#include <stdio.h>
#include <stdlib.h>

static struct ddp_err err;

/* On failure, print one line to stderr and exit with a status that ends the job. */
static inline void check(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

#endif
