/* launcher/cli/foreign.h - the command lines of mpirun, mpiexec, torchrun, horovodrun,
 * accelerate launch, deepspeed and srun
 *
 * Private to launcher/cli/. Each option of theirs that ddprun has under another name, or
 * with another meaning, is translated to an option of ddprun or to a variable of the
 * ranks, ignored, or refused with a hint. One table per program, from its manual.
 *
 * ddprun takes them beside its own options; called as one of these programs (a link with
 * its name, or --as), it takes only that program's, and those before its own.
 */
#ifndef LAUNCHER_CLI_FOREIGN_H
#define LAUNCHER_CLI_FOREIGN_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>

struct foreign {
    const char *names; /* separated by blanks, no dashes */
    int values;        /* number of its arguments: 0, 1 or 2 */
    enum {
        FOREIGN_OURS,     /* our option `text`; see `fixed` */
        FOREIGN_VARIABLE, /* variables of the ranks, by foreign_variables() */
        FOREIGN_IGNORED,  /* no effect */
        FOREIGN_REFUSED,  /* `text` is the hint */
    } answer;
    const char *text;  /* of VARIABLE: '*' at the end is the option's name, in capitals */
    const char *fixed; /* the value of our option, or of the variable, where it has no
                          argument; else "theirs=ours ..." for OURS: all it may be, and
                          "MiB" for a VARIABLE that is in bytes */
};

/* Whose options. */
enum foreign_program {
    OPEN_MPI = 1,
    HYDRA = 2,
    TORCHRUN = 4,
    HOROVODRUN = 8,
    ACCELERATE = 16,
    DEEPSPEED = 32,
    SRUN = 64,
    AMBIGUOUS = 128 /* of two programs, with different meanings */
};
/* Of these, options are taken beside ddprun's own, too. */
#define FOREIGN_BESIDE (AMBIGUOUS | OPEN_MPI | HYDRA | TORCHRUN | HOROVODRUN | SRUN)

/* A name that ddprun may be called by. */
struct foreign_name {
    const char *name;
    unsigned programs;    /* enum foreign_program, or-ed */
    const char *version;  /* what --version prints, before that of ddprun */
    const char *defaults; /* an option of ours that comes first; NULL: none */
    const char *command;  /* the word that must follow the name; NULL: none */
};

/* All names, "a, b or c", for messages. */
#define FOREIGN_NAMES \
    "torchrun, mpirun, mpiexec, horovodrun, accelerate, deepspeed or srun"

/* What to do where an option lists the GPUs to use. */
#define FOREIGN_GPUS "use -x CUDA_VISIBLE_DEVICES=LIST and --nproc-per-node N"

/* The name in a path such as argv[0], or NULL. */
const struct foreign_name *foreign_name(const char *path);

/* The row for option `word` ("--rdzv-id=7", srun's "-N2") of these programs, or NULL. */
const struct foreign *foreign_find(unsigned programs, const char *word);

/* The value attached to the name in `word`, which foreign_find() found; NULL: none. */
const char *foreign_value(const struct foreign *f, const char *word);

/* A launcher with option `word` whose options are taken only with --as; NULL: none. */
const struct foreign_name *foreign_owner(const char *word);

/* The launcher that this command line of a program would start, or NULL: "torchrun",
 * "python -m torch.distributed.run". */
const struct foreign_name *foreign_started(char *const *argv);

/* "--bind-to=numa", malloc'ed, of a FOREIGN_OURS with this value; NULL: not translatable.
 */
char *foreign_ours(const struct foreign *f, const char *value);

/* The same for Open MPI's --mca NAME VALUE; NULL: it is a variable. */
char *foreign_mca(const struct foreign *f, const char *const *values);

/* Append "OMPI_MCA_a=b" of a FOREIGN_VARIABLE, written as `word`, with these values. */
void foreign_variables(const struct foreign *f, const char *word,
                       const char *const *values, struct strv *variables);

/* Append to `refused`: "'--rankfile': list the hosts ...". */
void foreign_complain(const char *word, const char *hint, struct strv *refused);

/* Sets `err` to one line for all refused options; returns -1. */
int foreign_refuse(const struct strv *refused, struct ddp_err *err);

#endif
