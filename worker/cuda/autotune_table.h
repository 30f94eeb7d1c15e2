/* worker/cuda/autotune_table.h - which algorithm each product takes, as a table and as
 * text
 *
 * A product is known by its key (products.h), an algorithm by its name; AUTOTUNE_USUAL is
 * the library's own choice. The text is exchanged between ranks and kept in checkpoints:
 * "1 HEADER;KEY=NAME;KEY=NAME", where the header has what the names depend on: the
 * libraries' versions and the device.
 */
#ifndef WORKER_CUDA_AUTOTUNE_TABLE_H
#define WORKER_CUDA_AUTOTUNE_TABLE_H

#include <stdbool.h>
#include <stddef.h>

enum { AUTOTUNE_KEY = 128, AUTOTUNE_HEADER = 160 };
#define AUTOTUNE_USUAL "-"

struct autotune_row {
    char *key, *name; /* owned */
    double gain;      /* microseconds that it saves, where it was measured */
};

struct autotune_table {
    struct autotune_row *of; /* owned */
    size_t n;
};

/* NULL: there is none. */
const char *autotune_table_find(const struct autotune_table *c, const char *key);
void autotune_table_set(struct autotune_table *c, const char *key, const char *name,
                        double gain);
void autotune_table_clear(struct autotune_table *c);

/* The caller frees. */
char *autotune_table_write(const struct autotune_table *c, const char *header);
/* In place of what c has. False: it is not such a text, and c is empty then. */
bool autotune_table_read(struct autotune_table *c, const char *text,
                         char header[AUTOTUNE_HEADER]);

#endif
