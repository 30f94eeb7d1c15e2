/* common/embedded.h - files that a program carries
 *
 * tools/embed.py makes a table of them when it is built, so that a copied program needs
 * nothing beside it.
 */
#ifndef COMMON_EMBEDDED_H
#define COMMON_EMBEDDED_H

#include <stddef.h>

struct embedded {
    const char *name; /* within their folder: "slurm.sh.in", "site/tara.ini"; NULL ends */
    const char *text;
    size_t bytes; /* of it, without the 0 at its end */
};

extern const struct embedded embedded_templates[]; /* templates/; sorted, as all are */
extern const struct embedded embedded_models[];    /* models/ */
extern const struct embedded embedded_digits[];    /* worker/data/digits/ */

/* The text of that name; NULL: there is none. */
const char *embedded_text(const struct embedded *table, const char *name);

#endif
