/* Horovod's worlds, and its notification service. */
#include "tests/support/suite.h"

#include "launcher/plugins/horovod/notify.h"
#include "launcher/plugins/horovod/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members of a world, "NODE.SEAT=RANK" each, where RANK is '-' for one that is started;
 * then the places of all by rank, "NODE.SEAT RANK,SIZE,LOCAL,SIZE,CROSS,SIZE". */
static const struct {
    const char *members, *places;
} worlds[] = {
    {"0.0=0 0.1=1 1.0=2 1.1=3",
     "0.0 0,4,0,2,0,2;0.1 1,4,1,2,0,2;1.0 2,4,0,2,1,2;1.1 3,4,1,2,1,2;"},
    /* the state is that of the lowest rank that is left */
    {"0.0=- 0.1=1 1.0=2", "0.1 0,3,1,2,0,1;0.0 1,3,0,2,0,2;1.0 2,3,0,1,1,2;"},
    {"0.0=- 0.1=- 1.0=2 1.1=3",
     "1.0 0,4,0,2,0,2;1.1 1,4,1,2,0,2;0.0 2,4,0,2,1,2;0.1 3,4,1,2,1,2;"},
    /* ranks dealt round robin, and a local rank that is missing */
    {"0.0=0 2.0=1 1.1=2 2.1=3 1.2=-",
     "0.0 0,5,0,1,0,3;1.1 1,5,0,2,1,3;1.2 2,5,1,2,0,2;2.0 3,5,0,2,2,3;2.1 4,5,1,2,1,2;"},
    {"3.5=7", "3.5 0,1,0,1,0,1;"},
};

LOOP_TEST(places_in_a_world, sizeof worlds / sizeof *worlds)
{
    struct member m[8];
    char *all = strdup(worlds[_i].members), *save = NULL, text[1024] = "";
    int n = 0;
    for (char *w = strtok_r(all, " ", &save); w; w = strtok_r(NULL, " ", &save), n++) {
        m[n] = (struct member){.id = n, .keeps = !strchr(w, '-')};
        ck_assert_int_ge(
            sscanf(w, "%d.%d=%d", &m[n].node, &m[n].local_rank, &m[n].place.rank), 2);
    }
    free(all);
    world_form(m, n);
    for (int i = 0; i < n; i++) {
        char *place = place_text(&m[i].place);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d.%d %s;", m[i].node,
                 m[i].local_rank, place);
        free(place);
    }
    ck_assert_str_eq(text, worlds[_i].places);
}

/* As Horovod 0.28.1 under Python 3.11 wrote it: two interfaces, one of them with two
 * addresses, port 45123, and the key 0, 1, 2 ... */
#define WRITTEN                                                                    \
    "gAWVbgAAAAAAAAB9lCiMAmxvlF2UjAkxMjcuMC4wLjGUTUOwhpRhjARldGgwlF2UKIwIMTAuMC4w" \
    "LjGUTUOwhpSMCDEwLjEuMC4xlE1DsIaUZXVDIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhsc" \
    "HR4flIaULg=="

TEST(a_service_is_read)
{
    struct notify_service s;
    ck_assert(notify_read(WRITTEN, &s));
    ck_assert_uint_eq(s.port, 45123);
    for (unsigned i = 0; i < NOTIFY_KEY; i++)
        ck_assert_uint_eq(s.key[i], i);
}

TEST(what_is_no_service)
{
    /* not base64; nothing; the first half; another operation: a class of its own */
    static const char *const bad[] = {
        "?", "", "gAWVdQAAAAAAAAB9lCiMAmxvlF2UjAkxMjcuMC4wLjGU", "gAJjb3MKc3lzdGVtCi4="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct notify_service s;
        ck_assert_msg(!notify_read(bad[i], &s), "%s", bad[i]);
        ck_assert_uint_eq(s.port, 0);
    }
    char cut[] = WRITTEN; /* every length but the whole */
    for (size_t n = strlen(cut) - 8; n > 0; n -= 4) {
        struct notify_service s;
        cut[n] = '\0';
        ck_assert(!notify_read(cut, &s));
    }
}

/* The sum is that of Python's hmac module. */
TEST(a_request)
{
    unsigned char request[NOTIFY_MOST];
    struct notify_service s;
    int32_t size;
    ck_assert(notify_read(WRITTEN, &s));
    size_t n = notify_request(&s, 1700000000, request);
    memcpy(&size, request + 32, sizeof size);
    ck_assert_uint_eq(n, 36 + (size_t)size);
    static const unsigned char sum[32] = {0xf6, 0xce, 0x19, 0x5f, 0xa9, 0x32, 0x60, 0x28,
                                          0xee, 0x17, 0xe6, 0x40, 0xbf, 0xab, 0xb4, 0xd0,
                                          0x63, 0x42, 0x43, 0x9b, 0x12, 0xe5, 0x05, 0xaa,
                                          0x5a, 0xef, 0x25, 0xa2, 0x4f, 0xda, 0x8e, 0x0f};
    ck_assert_mem_eq(request, sum, sizeof sum);
}
