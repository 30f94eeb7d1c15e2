/* launcher/mpi_calls/find.h - the MPI library of this process, whichever it is
 *
 * Handles are pointers (Open MPI, MPI 5's ABI) or ints in the lower half (MPICH).
 */
#ifndef LAUNCHER_MPI_CALLS_FIND_H
#define LAUNCHER_MPI_CALLS_FIND_H

#include <stdbool.h>

/* Of definitions that the library for large counts uses, too. */
#define FOR_BOTH __attribute__((visibility("protected")))

enum { NAME_MAX_MPI = 1024 }; /* more than any MPI_MAX_OBJECT_NAME */
enum abi { ABI_MPICH, ABI_OPEN_MPI, ABI_STANDARD };

struct mpi {
    enum abi abi;
    long world, null, null_type, null_request;
    int size, keyval;
    long group; /* of all ranks */
    int (*comm_size)(long comm, int *size);
    int (*comm_test_inter)(long comm, int *flag);
    int (*comm_group)(long comm, long *group);
    int (*comm_get_name)(long comm, char *name, int *n);
    int (*comm_set_attr)(long comm, int keyval, void *value);
    int (*comm_create_keyval)(int (*copy)(long comm, int keyval, void *extra, void *in,
                                          void *out, int *flag),
                              int (*forget)(long comm, int keyval, void *value,
                                            void *extra),
                              int *keyval, void *extra);
    int (*group_free)(long *group);
    int (*group_translate_ranks)(long group, int n, const int *ranks, long to, int *out);
    int (*type_get_name)(long type, char *name, int *n);
    int (*type_size)(long type, int *size);
    int (*initialized)(int *flag);
    /* Open MPI's */
    long (*comm_f2c)(int comm), (*type_f2c)(int type), (*request_f2c)(int request);
};
extern struct mpi mpi;

/* False: it is none of these, or lacks something. */
bool mpi_find(void);

/* The function that ours stands before: in the library that is searched next. Never NULL:
 * a program that lacks it ends with a message. */
void *ddprun_mpi_next(const char *name);

#endif
