/* launcher/mpi_calls/find.c - see find.h */
#include "launcher/mpi_calls/find.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEARCHED = 8 };

/* As in the mpi.h of each. */
#define MPICH_WORLD      0x44000000
#define MPICH_NULL       0x04000000
#define MPICH_TYPE       0x0c000000
#define MPICH_REQUEST    0x2c000000
#define STANDARD_WORLD   0x101
#define STANDARD_NULL    0x100
#define STANDARD_TYPE    0x200
#define STANDARD_REQUEST 0x180

struct mpi mpi;

/* Python loads an MPI that is not searched for us: found by its name. */
struct search {
    char *file[SEARCHED];
    size_t n;
};

/* It is called with a lock that a dlopen() of another thread, which holds another, waits
 * for. */
static int note_file(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *s = arg;
    const char *base = strrchr(info->dlpi_name, '/');
    if (base && strncmp(base, "/libmpi", strlen("/libmpi")) == 0)
        s->file[s->n++] = strdup(info->dlpi_name);
    return s->n == SEARCHED;
}

static void *next_or_null(const char *name)
{
    struct search s = {.n = 0};
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        dl_iterate_phdr(note_file, &s);
    for (size_t i = 0; i < s.n; i++) {
        void *library =
            found || !s.file[i] ? NULL : dlopen(s.file[i], RTLD_LAZY | RTLD_NOLOAD);
        found = library ? dlsym(library, name) : found;
        free(s.file[i]);
    }
    return found;
}

/* A function, or an object of Open MPI. Of objects a program may have a copy, which is
 * then the library's, too: nothing of ours has the name. */
static void *object(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    return found ? found : next_or_null(name);
}

FOR_BOTH void *ddprun_mpi_next(const char *name)
{
    void *found = next_or_null(name);
    if (found)
        return found;
    fprintf(stderr, "ddprun: this program's MPI library has no %s\n", name);
    abort();
}

static bool find_functions(void)
{
    const struct {
        const char *name;
        void **to;
    } needed[] = {
        {"PMPI_Comm_size", (void **)&mpi.comm_size},
        {"PMPI_Comm_test_inter", (void **)&mpi.comm_test_inter},
        {"PMPI_Comm_group", (void **)&mpi.comm_group},
        {"PMPI_Comm_get_name", (void **)&mpi.comm_get_name},
        {"PMPI_Comm_set_attr", (void **)&mpi.comm_set_attr},
        {"PMPI_Comm_create_keyval", (void **)&mpi.comm_create_keyval},
        {"PMPI_Group_free", (void **)&mpi.group_free},
        {"PMPI_Group_translate_ranks", (void **)&mpi.group_translate_ranks},
        {"PMPI_Type_get_name", (void **)&mpi.type_get_name},
        {"PMPI_Type_size", (void **)&mpi.type_size},
        {"PMPI_Initialized", (void **)&mpi.initialized},
        {"PMPI_Comm_f2c", (void **)&mpi.comm_f2c}, /* Open MPI's only, from here */
        {"PMPI_Type_f2c", (void **)&mpi.type_f2c},
        {"PMPI_Request_f2c", (void **)&mpi.request_f2c},
        {"ompi_mpi_comm_null", (void **)&mpi.null},
        {"ompi_mpi_datatype_null", (void **)&mpi.null_type},
        {"ompi_request_null", (void **)&mpi.null_request},
    };
    size_t n = sizeof needed / sizeof *needed - (mpi.abi == ABI_OPEN_MPI ? 0 : 6);
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        *needed[i].to = object(needed[i].name);
        all &= *needed[i].to != NULL;
    }
    return all;
}

bool mpi_find(void)
{
    Dl_info library = {0};
    void *open_mpi = object("ompi_mpi_comm_world"), *size = object("PMPI_Comm_size");
    mpi.abi = ABI_MPICH;
    mpi.world = MPICH_WORLD;
    mpi.null = MPICH_NULL;
    mpi.null_type = MPICH_TYPE;
    mpi.null_request = MPICH_REQUEST;
    bool standard =
        size && dladdr(size, &library) && strstr(library.dli_fname, "libmpi_abi");
    if (open_mpi && !standard) { /* Open MPI 6's libmpi_abi.so needs its other library */
        mpi.abi = ABI_OPEN_MPI;
        mpi.world = (long)open_mpi;
    } else if (standard) {
        mpi.abi = ABI_STANDARD;
        mpi.world = STANDARD_WORLD;
        mpi.null = STANDARD_NULL;
        mpi.null_type = STANDARD_TYPE;
        mpi.null_request = STANDARD_REQUEST;
    }
    bool known =
        mpi.abi != ABI_MPICH || object("MPIR_Dup_fn"); /* which its mpi.h refers to */
    return known && find_functions();
}
