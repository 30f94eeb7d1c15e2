/* tests/worker/test_group_card.c - the card of a rank (worker/group/layout.h)
 *
 * The linker passes getaddrinfo() to the test, whose name servers do not answer.
 */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "worker/group/layout.h"

#include <ctype.h>
#include <netdb.h>

enum { SILENT_MS = 5000, LIMIT_MS = 300, LATE_MS = 2500 };

int __real_getaddrinfo(const char *name, const char *service,
                       const struct addrinfo *hints, struct addrinfo **list);
int __wrap_getaddrinfo(const char *name, const char *service,
                       const struct addrinfo *hints, struct addrinfo **list);

int __wrap_getaddrinfo(const char *name, const char *service,
                       const struct addrinfo *hints, struct addrinfo **list)
{
    if (name && isalpha((unsigned char)*name) && !(hints->ai_flags & AI_NUMERICHOST)) {
        sleep_ms(SILENT_MS);
        return EAI_AGAIN;
    }
    return __real_getaddrinfo(name, service, hints, list);
}

TEST(silent_name_servers_cost_no_more_than_the_deadline)
{
    struct card card;
    struct ddp_err err;
    int64_t began = now_ms();
    ck_assert_int_eq(card_make(&card, 0, "head.example", began + LIMIT_MS, false, &err),
                     0);
    ck_assert_int_lt(now_ms() - began, LATE_MS);
    ck_assert_str_ne(card.addr, "");
}
