/* launcher/plugins/diagnose/group_order.h - ranks that make groups in different orders
 *
 * A rank numbers the groups that it makes. If two ranks have made groups of other members
 * under the same number, they make them in different orders.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_GROUP_ORDER_H
#define LAUNCHER_PLUGINS_DIAGNOSE_GROUP_ORDER_H

#include "launcher/plugins/diagnose/sentence.h"

/* Add a sentence about the first such number, and the ranks in the minority. Not if no
 * rank waits: it may be that nothing depends on it. */
void find_order(struct job_view *j);

#endif
