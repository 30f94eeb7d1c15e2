/* launcher/hooks.h - calling a hook of all plug-ins: of the launcher's and of the agent's
 * table
 *
 * `table` ends with NULL; states[i] is the state of plug-in i, NULL if it is not used in
 * this job. Arguments behind the hook's name follow the state.
 */
#ifndef LAUNCHER_HOOKS_H
#define LAUNCHER_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

/* Call the hook of all plug-ins that have it and a state. */
#define HOOKS_CALL(table, states, hook, ...)                    \
    do {                                                        \
        for (size_t i_ = 0; (table)[i_]; i_++) {                \
            if ((states)[i_] && (table)[i_]->hook)              \
                (table)[i_]->hook((states)[i_], ##__VA_ARGS__); \
        }                                                       \
    } while (0)

/* Call it until one returns true; true: one did. */
#define HOOKS_ANY(table, states, hook, ...)                        \
    ({                                                             \
        bool any_ = false;                                         \
        for (size_t i_ = 0; (table)[i_] && !any_; i_++)            \
            any_ = (states)[i_] && (table)[i_]->hook &&            \
                   (table)[i_]->hook((states)[i_], ##__VA_ARGS__); \
        any_;                                                      \
    })

/* Call it of all; true: all that have it return true. */
#define HOOKS_ALL(table, states, hook, ...)                             \
    ({                                                                  \
        bool all_ = true;                                               \
        for (size_t i_ = 0; (table)[i_]; i_++) {                        \
            if ((states)[i_] && (table)[i_]->hook)                      \
                all_ &= (table)[i_]->hook((states)[i_], ##__VA_ARGS__); \
        }                                                               \
        all_;                                                           \
    })

#endif
