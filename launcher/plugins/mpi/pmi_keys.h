/* launcher/plugins/mpi/pmi_keys.h - a table of PMI keys and values
 *
 * A table is a pointer, NULL when empty; its owner must call pmi_keys_clear().
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMI_KEYS_H
#define LAUNCHER_PLUGINS_MPI_PMI_KEYS_H

struct pmi_keys;

/* Copies both; replaces the key's old value. */
void pmi_keys_put(struct pmi_keys **table, const char *key, const char *value);

/* Valid until the next put of that key; NULL: not found. */
const char *pmi_keys_get(const struct pmi_keys *table, const char *key);

void pmi_keys_clear(struct pmi_keys **table);

#endif
