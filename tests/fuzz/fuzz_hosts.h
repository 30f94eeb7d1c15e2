/* tests/fuzz/fuzz_hosts.h - what the targets that read lists of hosts look at */
#ifndef TESTS_FUZZ_FUZZ_HOSTS_H
#define TESTS_FUZZ_FUZZ_HOSTS_H

#include "launcher/alloc/source.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In place of libc's: a name that begins like this machine's is looked up, and a name
 * server may take seconds. Addresses are no names. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    static int (*of_libc)(const char *, const char *, const struct addrinfo *,
                          struct addrinfo **);
    if (!hints || !(hints->ai_flags & AI_NUMERICHOST))
        return EAI_NONAME;
    if (!of_libc)
        of_libc = (__typeof__(of_libc))dlsym(RTLD_NEXT, "getaddrinfo");
    return of_libc(name, service, hints, list);
}

static inline void fail(const char *what, const char *text)
{
    fprintf(stderr, "%s: '%s'\n", what, text);
    abort();
}

/* `numbers`: are those of this node in range? */
static inline void check_nodes(const struct alloc *a,
                               bool (*numbers)(const struct alloc_node *n))
{
    if (a->nnodes == 0)
        fail("accepted", "no host");
    for (size_t i = 0; i < a->nnodes; i++) {
        const struct alloc_node *n = &a->nodes[i];
        if (!n->name[0] || n->name[0] == '-' || strpbrk(n->name, " \t\r\n,;'\"`$&|<>@"))
            fail("a name that no host has", n->name);
        if (n->user && (!n->user[0] || n->user[0] == '-'))
            fail("a login that is an option", n->user);
        if (!numbers(n))
            fail("numbers out of range", n->name);
    }
}

static inline void check_error(const struct ddp_err *err)
{
    size_t lines = 0, len = strlen(err->text);
    for (const char *p = err->text; (p = strchr(p, '\n')); p++)
        lines++;
    if (len == 0 || len >= sizeof err->text - 1)
        fail("a refusal without words, or cut short", err->text);
    if (lines != 0 && (lines != 2 || err->text[len - 1] != '^'))
        fail("several lines, and no caret at the end", err->text);
}

/* A million names from two brackets take as long as a thousand other inputs; that they
 * are counted and limited is what test_hostfile.c looks at. */
static inline bool is_slow(const uint8_t *data, size_t size)
{
    size_t run = 0, brackets = 0, longest = 0;
    for (size_t i = 0; i < size; i++) {
        run = data[i] >= '0' && data[i] <= '9' ? run + 1 : 0;
        longest = run > longest ? run : longest;
        brackets += data[i] == '[';
    }
    return brackets > 0 && brackets * longest > 4;
}

#endif
