/* tests/support/names.h - host names that resolve as a test says
 *
 * Defines getaddrinfo() for the program that includes it; the names in `test_names`,
 * which the includer defines, resolve to their addresses in this order, others as usual.
 */
#ifndef TESTS_SUPPORT_NAMES_H
#define TESTS_SUPPORT_NAMES_H

#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

typedef int (*getaddrinfo_fn)(const char *, const char *, const struct addrinfo *,
                              struct addrinfo **);

struct test_name {
    const char *name, *addresses[3]; /* two at most, then NULL */
};

extern const struct test_name test_names[];
extern const size_t test_nnames;

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict list)
{
    getaddrinfo_fn real;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    for (size_t i = 0; i < test_nnames; i++) {
        const char *const *address = test_names[i].addresses;
        if (!name || strcmp(name, test_names[i].name) != 0)
            continue;
        if (hints->ai_flags & AI_NUMERICHOST)
            return EAI_NONAME;
        for (struct addrinfo **end = list; *address; address++) {
            int rc = real(*address, service, hints, end);
            if (rc != 0)
                return rc;
            while (*end)
                end = &(*end)->ai_next;
        }
        return 0;
    }
    return real(name, service, hints, list);
}

#endif
