/* launcher/plugins/diagnose/questions.h - what the launcher asks about the ranks of a
 * node while they run, for --stragglers and for the collectives of a page
 *
 * ddprun-diagnose answers: it reads what the ranks have put into `folder`.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_QUESTIONS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_QUESTIONS_H

#include "launcher/agent/state.h"
#include "launcher/plugins/diagnose/child.h"

struct questions;
struct questions *questions_create(struct agent *a); /* `a` is borrowed */
void questions_destroy(struct questions *s);         /* kills its processes */

/* A message ASK_...; the answer is sent later, and replaces that to an earlier one. */
void questions_ask(struct questions *s, const struct frame *f, const char *folder);

bool questions_spares(const struct questions *s, pid_t pid); /* as the hook `spares` */

/* Start ddprun-diagnose with `part` (main.c) for the ranks that run, rank `first` (-1:
 * any) before the others. 1; 0: none runs; -1: error. `folder` NULL: there is none. */
int diagnose_start(struct diagnose_child *c, const struct agent *a, const char *part,
                   const char *folder, int64_t first, struct ddp_err *err);

#endif
