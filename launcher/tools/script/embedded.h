/* launcher/tools/script/embedded.h - the files of templates/, carried inside the program
 *
 * Made by embed.py when ddprun is built, so that a copied ddprun needs nothing beside it.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_EMBEDDED_H
#define LAUNCHER_TOOLS_SCRIPT_EMBEDDED_H

#include <stddef.h>

struct embedded {
    const char *name; /* within templates/: "slurm.sh.in", "site/tara.ini" */
    const char *text;
};

extern const struct embedded embedded[]; /* sorted by name */
extern const size_t embedded_len;

const char *embedded_text(const char *name); /* NULL: there is none */

#endif
