/* tests/fuzz/fuzz_hostfile.c - a host file, or what stands behind -H
 *
 * Input: a byte that chooses between the two, then the text. Aborts when an accepted host
 * could not be handed to ssh, when its numbers contradict each other, and when a refusal
 * has no text or its caret is not below the line it shows.
 */
#include "launcher/alloc/hosts.h"
#include "launcher/alloc/source.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *text)
{
    fprintf(stderr, "%s: '%s'\n", what, text);
    abort();
}

static void check_nodes(const struct alloc *a)
{
    if (a->nnodes == 0)
        fail("accepted", "no host");
    for (size_t i = 0; i < a->nnodes; i++) {
        const struct alloc_node *n = &a->nodes[i];
        if (!n->name[0] || n->name[0] == '-' || strpbrk(n->name, " \t\r\n,;'\"`$&|<>@"))
            fail("a name that no host has", n->name);
        if (n->user && (!n->user[0] || n->user[0] == '-'))
            fail("a login that is an option", n->user);
        if (n->slots < 0 || n->port < 0 || n->port > 65535 || n->max_slots < 0 ||
            (n->max_slots && n->slots > n->max_slots))
            fail("numbers out of range", n->name);
        if ((n->slots > 0) != (n->slots_by == SLOTS_GIVEN) || !n->slots != !n->slots_from)
            fail("slots from nowhere", n->name);
    }
}

static void check_error(const struct ddp_err *err)
{
    size_t lines = 0, len = strlen(err->text);
    for (const char *p = err->text; (p = strchr(p, '\n')); p++)
        lines++;
    if (len == 0 || len >= sizeof err->text - 1)
        fail("a refusal without words, or cut short", err->text);
    if (lines != 0 && (lines != 2 || err->text[len - 1] != '^'))
        fail("no caret at the end", err->text);
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

static struct alloc *read_file(const uint8_t *data, size_t size, struct ddp_err *err)
{
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    if (hostfile_parse("hosts", (const char *)data, size, a, err) == 0)
        return a;
    alloc_destroy(a);
    return NULL;
}

/* A million names from two brackets take as long as a thousand other inputs; that they
 * are counted and limited is what test_hostfile.c looks at. */
static bool is_slow(const uint8_t *data, size_t size)
{
    size_t run = 0, brackets = 0, longest = 0;
    for (size_t i = 0; i < size; i++) {
        run = data[i] >= '0' && data[i] <= '9' ? run + 1 : 0;
        longest = run > longest ? run : longest;
        brackets += data[i] == '[';
    }
    return brackets > 0 && brackets * longest > 4;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_err err = {""};
    if (size == 0 || is_slow(data, size))
        return 0;
    struct alloc *a = data[0] % 2 ? read_list(data + 1, size - 1, &err)
                                  : read_file(data + 1, size - 1, &err);
    if (a)
        check_nodes(a);
    else
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
    };
    size_t len = strlen(seeds[n % 5]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 5], len);
    return len;
}
