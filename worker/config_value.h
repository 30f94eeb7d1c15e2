/* worker/config_value.h - parsers of options' values
 */
#ifndef WORKER_CONFIG_VALUE_H
#define WORKER_CONFIG_VALUE_H

#include "include/ddprun/err.h"
#include "worker/kernels/augment.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdbool.h>
#include <stddef.h>

struct setting;
/* Parses `text` into `to`. -1 with an error that quotes the text; the caller puts the
 * option's name before it.
 */
typedef int setting_read(const struct setting *o, const char *text, void *to,
                         struct ddp_err *err);

/* A row of the table of options (config.c); one with nothing but `doc` begins a group. */
struct setting {
    const char *name, *arg; /* no `arg`: no value */
    size_t at;              /* offset in struct train_config */
    setting_read *read;
    double lo, hi; /* of numbers */
    const char *doc;
    const char *bare;         /* the value if none is given; NULL: a value is required */
    const char *initial;      /* the value without the option; NULL: see config.c's end */
    const char *const *words; /* the valid words; NULL-terminated */
    bool own;                 /* each rank may have its own */
};

/* By the type of the member: */
setting_read value_on, value_off;     /* bool */
setting_read value_flag;              /* bool: is it the second word? */
setting_read value_int;               /* int */
setting_read value_count;             /* uint64_t */
setting_read value_real, value_float; /* double, float */
setting_read value_mib;               /* size_t: bytes */
setting_read value_word;              /* an enum: which of the words */
setting_read value_choice;            /* text; the first word leaves the choice: NULL */
setting_read value_text;              /* text that is not empty */
setting_read value_timeout;           /* int64_t: milliseconds */
setting_read value_model;             /* struct model_type *, owned */
setting_read value_optimizer;         /* const struct optim_type * */
setting_read value_augment; /* struct augment: "none", or what is to be done, with commas
                              between; the key stays 0 */

#endif
