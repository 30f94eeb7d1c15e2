/* launcher/tools/script/template.h - text with places to fill in: a small part of
 * Mustache
 *
 *     {{name}}                the value of `name`
 *     {{#name}} ... {{/name}} these lines only where `name` has a value
 *     {{^name}} ... {{/name}} these lines only where it has none
 *     {{> file}}              the lines of another template
 *     {{! words}}             a comment; nothing is written
 *
 * The last four stand alone in their line. One rule does the rest: a line is written once
 * for each line of the values in it. So a line whose value is empty is left out, and a
 * value of several lines repeats what stands around it. (At most one value of a line may
 * have several lines.) There are no loops, no expressions and nothing is executed.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_TEMPLATE_H
#define LAUNCHER_TOOLS_SCRIPT_TEMPLATE_H

#include "common/strv.h"
#include "include/ddprun/err.h"

/* The text of the template `name`, or NULL with an error; lives as long as the process
 * or the caller's own storage does. */
typedef const char *(*template_find_fn)(const char *name, void *arg, struct ddp_err *err);

/* Fills `text`, which is called `name` in complaints, with `values` ("name=value"
 * entries). `find` (may be NULL) answers {{> file}}. Returns the text, which the caller
 * frees, or NULL and one line, "slurm.sh.in:12:9: unknown name 'nodse'". */
char *template_fill(const char *name, const char *text, const struct strv *values,
                    template_find_fn find, void *arg, struct ddp_err *err);

#endif
