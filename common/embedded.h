/* common/embedded.h - text files that a program carries
 *
 * tools/embed.py makes a table of them when it is built, so that a copied program needs
 * nothing beside it.
 */
#ifndef COMMON_EMBEDDED_H
#define COMMON_EMBEDDED_H

struct embedded {
    const char *name; /* within their folder: "slurm.sh.in", "site/tara.ini"; NULL ends */
    const char *text;
};

extern const struct embedded embedded_templates[]; /* templates/; sorted, as all are */
extern const struct embedded embedded_models[];    /* models/ */

/* The text of that name; NULL: there is none. */
const char *embedded_text(const struct embedded *table, const char *name);

#endif
