/* launcher/agent/pmi_wire.h - what stands on a PMI_FD
 *
 * Two dialects. PMI-1 is lines of words, "cmd=put kvsname=k key=a value=b c\n". PMI-2
 * begins with such a line, "cmd=init pmi_version=2 ...", and goes on with six digits of
 * length and so many bytes "cmd=kvs-put;key=a;value=b;", in which a ';' of a value is
 * written twice.
 */
#ifndef LAUNCHER_AGENT_PMI_WIRE_H
#define LAUNCHER_AGENT_PMI_WIRE_H

#include "launcher/link/rankmap.h"

#include <stdbool.h>
#include <stddef.h>

/* What clients may rely on; and the longest request, an abort with its message. */
enum {
    PMI_KEY_MAX = 64,
    PMI_VALUE_MAX = 1024,
    PMI_NAME_MAX = 256,
    PMI_REQUEST_MAX = 8192
};

enum { PMI_WORDS = 32 };

/* A request, taken apart: the strings stand in its own bytes. */
struct pmi_request {
    size_t n;
    struct {
        const char *name, *value;
    } words[PMI_WORDS]; /* more than these are not looked at */
};

/* How many bytes the first request of `size` bytes takes; 0: more must come; -1: it
 * cannot be one. */
long pmi_request_size(const char *data, size_t size, bool second);

/* Take it apart: `text` is those bytes, all of them, and is written into. */
void pmi_request_read(struct pmi_request *r, char *text, size_t size, bool second);

/* The value of a word; NULL: it is not there. */
const char *pmi_word(const struct pmi_request *r, const char *name);
const char *pmi_text(const struct pmi_request *r, const char *name); /* "" then */

/* The key PMI_process_mapping: which rank is on which node, "(vector,(0,2,4))": from node
 * 0 on, 2 nodes of 4 ranks each, and again from its beginning until there are enough.
 * malloc'ed; NULL: too long for a value, clients then compare host names. */
char *pmi_mapping(const struct rankmap *map);

#endif
