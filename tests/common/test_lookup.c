/* tests/common/test_lookup.c - names that are answered, and one that is not
 *
 * getaddrinfo() is this file's own: no name server is asked.
 */
#include "common/duration.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "tests/support/suite.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static pthread_mutex_t dead = PTHREAD_MUTEX_INITIALIZER; /* held: no server answers */

static atomic_int asked; /* for names that are no numbers */

static struct addrinfo *one(void)
{
    struct addrinfo *a = calloc(1, sizeof *a);
    struct sockaddr_in *in = calloc(1, sizeof *in);
    ck_assert(a && in);
    in->sin_family = AF_INET;
    a->ai_addr = (struct sockaddr *)in;
    return a;
}

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict list)
{
    bool number = strcmp(name, "10.0.0.1") == 0;
    if (hints->ai_flags & AI_NUMERICHOST && !number)
        return EAI_NONAME;
    asked += !number;
    if (strcmp(name, "slow") == 0) {
        pthread_mutex_lock(&dead);
        pthread_mutex_unlock(&dead);
        return EAI_AGAIN;
    }
    if (strcmp(name, "nobody") == 0)
        return EAI_NONAME;
    ck_assert(!service || strcmp(service, "80") == 0);
    ck_assert_int_eq(hints->ai_socktype, SOCK_STREAM);
    *list = one();
    return 0;
}

void freeaddrinfo(struct addrinfo *a)
{
    free(a->ai_addr);
    free(a);
}

static const struct {
    const char *name, *service;
    int rc;
} names[] = {
    {"10.0.0.1", "80", 0}, {"10.0.0.1", NULL, 0},        {"quick", "80", 0},
    {"quick", NULL, 0},    {"nobody", NULL, EAI_NONAME},
};

LOOP_TEST(a_name_is_looked_up, ARRAY_LEN(names))
{
    struct addrinfo *list = NULL;
    int rc =
        lookup(names[_i].name, names[_i].service, SOCK_STREAM, now_ms() + 40000, &list);
    ck_assert_int_eq(rc, names[_i].rc);
    ck_assert_int_eq(list == NULL, rc != 0);
    if (list)
        freeaddrinfo(list);
    else
        ck_assert_str_eq(lookup_error(rc), gai_strerror(rc));
}

TEST(a_silent_name_server_is_abandoned)
{
    struct addrinfo *list = NULL;
    pthread_mutex_lock(&dead);
    ck_assert_int_eq(lookup("slow", NULL, SOCK_STREAM, now_ms() + 20, &list),
                     LOOKUP_LATE);
    ck_assert_ptr_null(list);
    ck_assert_ptr_nonnull(strstr(lookup_error(LOOKUP_LATE), "do not answer"));
    pthread_mutex_unlock(&dead);
    ck_assert_int_eq(lookup("slow", NULL, SOCK_STREAM, now_ms() + 40000, &list),
                     EAI_AGAIN);
}

TEST(after_the_deadline_no_query_is_sent)
{
    struct addrinfo *list = NULL;
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(lookup("quick", NULL, SOCK_STREAM, now_ms() - 1, &list),
                         LOOKUP_LATE);
    ck_assert_int_eq(asked, 0);
    ck_assert_int_eq(lookup("10.0.0.1", NULL, SOCK_STREAM, now_ms() - 1, &list), 0);
    freeaddrinfo(list);
}
