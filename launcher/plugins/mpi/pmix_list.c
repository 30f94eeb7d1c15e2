/* launcher/plugins/mpi/pmix_list.c - see pmix_list.h */
#include "launcher/plugins/mpi/pmix_list.h"

#include "common/mem.h"

#include <pmix.h>
#include <stdint.h>

void pmix_list_add(struct pmix_list *l, const char *key, const void *value,
                   pmix_data_type_t type)
{
    l->v = xroom(l->v, l->n, &l->room, sizeof *l->v);
    pmix_info_t *info = &l->v[l->n++];
    PMIX_INFO_CONSTRUCT(info);
    PMIX_INFO_LOAD(info, key, (void *)(uintptr_t)value, type);
}

void pmix_list_add_list(struct pmix_list *l, const char *key, struct pmix_list *inner)
{
    pmix_data_array_t array = {.type = PMIX_INFO, .size = inner->n, .array = inner->v};
    pmix_list_add(l, key, &array, PMIX_DATA_ARRAY);
    pmix_list_finish(inner);
}

void pmix_list_finish(struct pmix_list *l)
{
    if (l->v)
        PMIX_INFO_FREE(l->v, l->n);
    *l = (struct pmix_list){0};
}
