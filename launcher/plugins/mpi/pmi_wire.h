/* launcher/plugins/mpi/pmi_wire.h - the PMI wire protocol
 *
 * PMI-1 sends lines of words, "cmd=put kvsname=k key=a value=b c\n". PMI-2 starts with
 * such a line, "cmd=init pmi_version=2 ...", followed by messages of a length in six
 * digits and that many bytes, "cmd=kvs-put;key=a;value=b;". A ';' in a value is doubled.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMI_WIRE_H
#define LAUNCHER_PLUGINS_MPI_PMI_WIRE_H

#include "launcher/link/rankmap.h"

#include <stdbool.h>
#include <stddef.h>

/* Limits announced to clients; and the longest request, an abort with its message. */
enum {
    PMI_KEY_MAX = 64,
    PMI_VALUE_MAX = 1024,
    PMI_NAME_MAX = 256,
    PMI_REQUEST_MAX = 8192
};

enum { PMI_WORDS = 512 }; /* a spawn has many */

/* A parsed request: the strings point into the request's bytes. */
struct pmi_request {
    size_t n;
    struct {
        const char *name, *value;
    } words[PMI_WORDS]; /* further words are ignored */
};

/* The size in bytes of the first request in `data`; 0: incomplete; -1: not a request. */
long pmi_request_size(const char *data, size_t size, bool pmi2);

/* Parse a request: `text` is those `size` bytes, and is modified. */
void pmi_request_read(struct pmi_request *r, char *text, size_t size, bool pmi2);

/* The value of a word; NULL: missing. */
const char *pmi_word(const struct pmi_request *r, const char *name);
const char *pmi_text(const struct pmi_request *r, const char *name); /* "": missing */

/* The value of PMI_process_mapping, "(vector,(0,2,4))": starting at node 0, 2 nodes with
 * 4 ranks each, repeated until all ranks are mapped. malloc'ed; NULL: too long for a
 * value; clients then compare host names. */
char *pmi_mapping(const struct rankmap *map);

#endif
