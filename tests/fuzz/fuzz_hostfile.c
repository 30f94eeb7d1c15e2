/* tests/fuzz/fuzz_hostfile.c - a host file, what stands behind -H, or what a discovery
 * script prints
 *
 * Input: a byte that chooses among them, then the text. Aborts when an accepted host
 * could not be handed to ssh, when its numbers contradict each other, and when a refusal
 * has no text or its caret is not below the line it shows.
 */
#include "launcher/alloc/discovery.h"
#include "launcher/alloc/hosts.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_hosts.h"

#include <stdlib.h>
#include <string.h>

static bool numbers_fit(const struct alloc_node *n)
{
    return n->slots >= 0 && n->port >= 0 && n->port <= 65535 && n->max_slots >= 0 &&
           (!n->max_slots || n->slots <= n->max_slots) &&
           (n->slots > 0) == (n->slots_by == SLOTS_GIVEN) && !n->slots == !n->slots_from;
}

/* "-H", by way of the table of sources, with the text as a string. */
static struct alloc *read_list(const uint8_t *data, size_t size, struct ddp_err *err)
{
    char *text = calloc(size + 1, 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    const struct opts opts = {.hosts = text};
    struct alloc *a = alloc_read(&opts, err);
    free(text);
    return a;
}

static struct alloc *read_text(bool discovered, const uint8_t *data, size_t size,
                               struct ddp_err *err)
{
    const char *text = (const char *)data;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    if ((discovered ? discovery_parse(text, size, a, err)
                    : hostfile_parse("hosts", text, size, a, err)) == 0)
        return a;
    alloc_destroy(a);
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_err err = {""};
    if (size == 0 || is_slow(data, size))
        return 0;
    unsigned which = data[0] % 3;
    struct alloc *a = which == 1 ? read_list(data + 1, size - 1, &err)
                                 : read_text(which == 2, data + 1, size - 1, &err);
    /* a script may list none */
    bool none = a && a->nnodes == 0 && which == 2;
    if (a && !none)
        check_nodes(a, numbers_fit);
    else if (!none)
        check_error(&err);
    alloc_destroy(a);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "0n1 slots=4\nn2 slots=2 max_slots=8\n# c\nn1.cluster\n",
        "0n[01-16,20].x:4 port=22 username=bob\r\n^n07.x\n/* c\n */ [fe80::1]:2\n",
        "0\"q\" cpu = 3\tmax-slots=9 // c\nbob@10.0.0.1\nn3:auto\nn3\n",
        "1n1:4,n2:*,bob@n[3-8]:2,[::1]:7,n1,",
        "1a[1-2]b[3-4]c[5-6]-ib:2",
        "2\n n1:2\nn2\n",
    };
    size_t len = strlen(seeds[n % 6]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 6], len);
    return len;
}
