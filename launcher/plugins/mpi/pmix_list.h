/* launcher/plugins/mpi/pmix_list.h - lists of attributes for libpmix
 *
 * As its own PMIx_Info_list_add(), which 4.1.2 (Ubuntu 22.04) does not have.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_LIST_H
#define LAUNCHER_PLUGINS_MPI_PMIX_LIST_H

#include <pmix_common.h>

/* Zero-initialised: empty. */
struct pmix_list {
    pmix_info_t *v; /* owned */
    size_t n, room;
};

/* Copies the value: a PMIX_STRING and a PMIX_REGEX are its text, others are behind it. */
void pmix_list_add(struct pmix_list *l, const char *key, const void *value,
                   pmix_data_type_t type);
/* Adds a list as the value, and empties that. */
void pmix_list_add_list(struct pmix_list *l, const char *key, struct pmix_list *inner);
void pmix_list_finish(struct pmix_list *l);

#endif
