/* worker/cuda/choices.h - which algorithm each product takes, as a table and as text
 *
 * A product is known by its key (products.h), an algorithm by its name; CHOICE_USUAL is
 * the library's own choice. The text is exchanged between ranks and kept in checkpoints:
 * "1 HEADER;KEY=NAME;KEY=NAME", where the header has what the names depend on: the
 * libraries' versions and the device.
 */
#ifndef WORKER_CUDA_CHOICES_H
#define WORKER_CUDA_CHOICES_H

#include <stdbool.h>
#include <stddef.h>

enum { CHOICE_KEY = 128, CHOICE_HEADER = 160 };
#define CHOICE_USUAL "-"

struct choice {
    char *key, *name; /* owned */
    double gain;      /* microseconds that it saves, where it was measured */
};

struct choices {
    struct choice *of; /* owned */
    size_t n;
};

/* NULL: there is none. */
const char *choices_find(const struct choices *c, const char *key);
void choices_set(struct choices *c, const char *key, const char *name, double gain);
void choices_clear(struct choices *c);

/* The caller frees. */
char *choices_write(const struct choices *c, const char *header);
/* In place of what c has. False: it is not such a text, and c is empty then. */
bool choices_read(struct choices *c, const char *text, char header[CHOICE_HEADER]);

#endif
