/* launcher/peer/note.h - what the head and a peer say to each other before the job
 *
 * One record of a fixed size each way, sealed with the keys of the handshake, whose
 * counts go on in the link that follows (link/link.h).
 *
 *     peer -> head   here     how many copies its machine has, its name, its slots
 *     head -> peer   answer   which node it is; or why there will be no job
 */
#ifndef LAUNCHER_PEER_NOTE_H
#define LAUNCHER_PEER_NOTE_H

#include "launcher/link/link.h"

#include <stdint.h>

enum { NOTE_PLAIN = 1024, NOTE_SIZE = NOTE_PLAIN + SEAL_EXTRA };

struct note_here {
    uint32_t copies;  /* of ddprun on this machine */
    uint32_t slots;   /* that its scheduler gives it there; 0: not said */
    char *host;       /* owned: as the machine calls itself */
    char *slots_from; /* owned, or NULL: who said so */
};
void note_here_seal(const struct note_here *n, struct seal *s,
                    unsigned char out[NOTE_SIZE]);
int note_here_open(const unsigned char in[NOTE_SIZE], struct seal *s, struct note_here *n,
                   struct ddp_err *err);
void note_here_finish(struct note_here *n);

struct note_answer {
    bool welcome;
    uint32_t node, nnodes;
    uint32_t code; /* exit code, when not */
    char *why;     /* owned: when not */
};
void note_answer_seal(const struct note_answer *n, struct seal *s,
                      unsigned char out[NOTE_SIZE]);
int note_answer_open(const unsigned char in[NOTE_SIZE], struct seal *s,
                     struct note_answer *n, struct ddp_err *err);

#endif
