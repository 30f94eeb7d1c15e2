/* examples/example.h - what every example does when a call fails */
#ifndef EXAMPLES_EXAMPLE_H
#define EXAMPLES_EXAMPLE_H

#include "include/ddprun/group.h"

#include <stdio.h>
#include <stdlib.h>

static struct ddp_err err;

/* One line on stderr, and a status that ends the job. */
static inline void check(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

#endif
