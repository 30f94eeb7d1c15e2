/* launcher/agent/rank_env.h - the environment of a rank: the contract's, and plug-ins' */
#ifndef LAUNCHER_AGENT_RANK_ENV_H
#define LAUNCHER_AGENT_RANK_ENV_H

#include "launcher/agent/prepare.h"
#include "launcher/agent/state.h"

/* Of the local rank; `prep` is done. With `note`, changes to the user's own variables are
 * logged. */
void rank_env_make(struct agent *a, const struct prepare *prep, uint32_t local, bool note,
                   struct strv *env);

#endif
