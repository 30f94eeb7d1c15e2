/* launcher/link/message_impl.h - begin and end of unpacking a message */
#ifndef LAUNCHER_LINK_MESSAGE_IMPL_H
#define LAUNCHER_LINK_MESSAGE_IMPL_H

#include "launcher/link/message.h"

static inline struct unpack body_of(const struct frame *f)
{
    return (struct unpack){.p = f->body, .n = f->size};
}

/* On failure `finish` frees what was unpacked so far. */
#define UNPACK_END(u, f, m, finish, err)            \
    do {                                            \
        if (unpack_end(&(u), (f)->type, err) < 0) { \
            finish(m);                              \
            return -1;                              \
        }                                           \
        return 0;                                   \
    } while (0)

#endif
