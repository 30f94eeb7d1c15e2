/* worker/cuda/autotune_table.h - the algorithm chosen for each product, as a table and
 * as text
 *
 * A product is identified by its key (products.h), an algorithm by its name;
 * AUTOTUNE_USUAL is the library's default. The text is exchanged between ranks and
 * saved in checkpoints: "1 HEADER;KEY=NAME;KEY=NAME". The header has what the names
 * depend on: the versions of the libraries and the device.
 */
#ifndef WORKER_CUDA_AUTOTUNE_TABLE_H
#define WORKER_CUDA_AUTOTUNE_TABLE_H

#include <stdbool.h>
#include <stddef.h>

enum { AUTOTUNE_KEY = 128, AUTOTUNE_HEADER = 160 };
#define AUTOTUNE_USUAL "-"

struct autotune_row {
    char *key, *name; /* owned */
    double gain;      /* microseconds saved; 0 if not measured here */
};

struct autotune_table {
    struct autotune_row *of; /* owned */
    size_t n;
};

/* The name; NULL if the key is unknown. */
const char *autotune_table_find(const struct autotune_table *c, const char *key);
void autotune_table_set(struct autotune_table *c, const char *key, const char *name,
                        double gain);
void autotune_table_clear(struct autotune_table *c);

/* The caller frees. */
char *autotune_table_write(const struct autotune_table *c, const char *header);
/* Replaces c's rows. Returns false, and leaves c empty, if the text is malformed. */
bool autotune_table_read(struct autotune_table *c, const char *text,
                         char header[AUTOTUNE_HEADER]);

#endif
