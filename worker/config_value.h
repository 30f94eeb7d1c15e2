/* worker/config_value.h - what the text behind an option means
 *
 * -1 with a line that quotes the text; the option's name is for the caller to put before.
 */
#ifndef WORKER_CONFIG_VALUE_H
#define WORKER_CONFIG_VALUE_H

#include "include/ddprun/err.h"
#include "worker/kernels/augment.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdbool.h>
#include <stdint.h>

int value_integer(const char *text, long long lo, long long hi, long long *out,
                  struct ddp_err *err);
int value_int(const char *text, int lo, int hi, int *out, struct ddp_err *err);
int value_real(const char *text, double lo, double hi, double *out, struct ddp_err *err);
int value_model(const char *text, struct model_type **out, struct ddp_err *err);
int value_optimizer(const char *text, const struct optim_type **out, struct ddp_err *err);
int value_precision(const char *text, enum precision *out, struct ddp_err *err);
/* One of `names` (NULL ends them), of which the first leaves the choice to others: NULL.
 */
int value_choice(const char *text, const char *const *names, const char **out,
                 struct ddp_err *err);
int value_on_nan(const char *text, bool *skip, struct ddp_err *err);
int value_timeout(const char *text, int64_t *ms, struct ddp_err *err);
int value_file(const char *text, const char **out, struct ddp_err *err);
/* "none", or what is to be done, with commas between; the key stays 0. */
int value_augment(const char *text, struct augment *out, struct ddp_err *err);

#endif
