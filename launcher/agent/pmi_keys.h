/* launcher/agent/pmi_keys.h - small texts by their names, as PMI's clients put and get
 * them
 *
 * A table is a pointer, NULL when it is empty; its owner's until pmi_keys_clear().
 */
#ifndef LAUNCHER_AGENT_PMI_KEYS_H
#define LAUNCHER_AGENT_PMI_KEYS_H

struct pmi_keys;

/* Both are copied; what was there under `key` goes. */
void pmi_keys_put(struct pmi_keys **table, const char *key, const char *value);

/* Until the next put of that key; NULL: there is none. */
const char *pmi_keys_get(const struct pmi_keys *table, const char *key);

void pmi_keys_clear(struct pmi_keys **table);

#endif
