/* launcher/plugins/mpi/pmix_list.h - lists of attributes for libpmix
 *
 * Like libpmix's own PMIx_Info_list_add(), which 4.1.2 (Ubuntu 22.04) lacks.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_LIST_H
#define LAUNCHER_PLUGINS_MPI_PMIX_LIST_H

#include <pmix_common.h>

/* Zero-initialised: empty. */
struct pmix_list {
    pmix_info_t *v; /* owned */
    size_t n, room;
};

/* Copies the value: `value` is the text of a PMIX_STRING or PMIX_REGEX, else it points to
 * the value. */
void pmix_list_add(struct pmix_list *l, const char *key, const void *value,
                   pmix_data_type_t type);
/* Adds a copy of the list `inner` as the value, and frees `inner`. */
void pmix_list_add_list(struct pmix_list *l, const char *key, struct pmix_list *inner);
void pmix_list_finish(struct pmix_list *l);

#endif
