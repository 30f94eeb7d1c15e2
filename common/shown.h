/* common/shown.h - a text from elsewhere, as it may stand in a line for people
 *
 * Its first part, and nothing that a terminal would obey.
 *
 *     err_set(err, "%s='%s' names no node", name, SHOWN(value));
 */
#ifndef COMMON_SHOWN_H
#define COMMON_SHOWN_H

struct shown {
    char text[128];
};

/* Returns out->text. */
const char *show_text(const char *text, struct shown *out);

/* For one call: it is gone at the end of the block. */
#define SHOWN(value) show_text(value, &(struct shown){{0}})

#endif
