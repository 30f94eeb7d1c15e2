#include "tests/launcher/alloc_text.h"
#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/alloc/hosts.h"
#include "launcher/alloc/source.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct alloc *parse(const char *text, size_t len, struct ddp_err *err)
{
    struct alloc *a = xcalloc(1, sizeof *a);
    if (hostfile_parse("hosts", text, len, a, err) == 0)
        return a;
    alloc_destroy(a);
    return NULL;
}

static const struct {
    const char *text, *nodes;
} good[] = {
    {"n1\n", "n1"},
    {"n1", "n1"}, /* no final newline */
    {"n1 slots=4\nn2 slots=2 max_slots=8\n", "n1 4; n2 2/8"},
    {"n1:4\nn2:2\n", "n1 4; n2 2"}, /* Hydra */
    {"n1 cpu=3\nn2 count=2\n", "n1 3; n2 2"},
    {"n1 slots = 4 max-slots = 8\n", "n1 4/8"},
    {"n1 max_slots=4\n", "n1 4/4"},
    {"n1 Slots=4 SLOTS-MAX=4\n", "n1 4/4"},
    {"n1 slots=4\r\nn2\r\n", "n1 4; n2"},             /* CRLF */
    {"\tn1\tslots=4\t\n\n   \n\t\nn2\n", "n1 4; n2"}, /* tabs, blank lines */
    {"\xef\xbb\xbfn1\n", "n1"},                       /* byte order mark */
    {"# c\nn1 # c\nn2 // c\n/* c */ n3 /* n4\n n5 */ n6 slots=2\n//n7\n",
     "n1; n2; n3; n6 2"},
    {"n1/*x*/slots=2\n", "n1 2"},
    {"bob@n1\nn2 username=eve port=2222\nn3 user-name=x\n", "bob@n1; eve@n2:2222; x@n3"},
    {"10.0.0.1 slots=2\n10.0.0.2\n", "10.0.0.1 2; 10.0.0.2"},
    {"[fe80::1]:4\nfe80::2 slots=3\n[::3]\nfe80::4%eth0\n",
     "fe80::1 4; fe80::2 3; ::3; fe80::4%eth0"},
    {"\"n1\" slots=2\n", "n1 2"},
    {"n[01-03,10] slots=4\n", "n01 4; n02 4; n03 4; n10 4"},
    {"n[1-2]:2\n", "n1 2; n2 2"},
    {"bob@n[1-2]-ib.x\n", "bob@n1-ib.x; bob@n2-ib.x"},
    {"r[1-2]c[01-02]n[0-1]\n",
     "r1c01n0; r1c01n1; r2c01n0; r2c01n1; r1c02n0; r1c02n1; r2c02n0; r2c02n1"},
    {"n1\nn1\nn1\n", "n1 3"},         /* repeats add up */
    {"n1\nn1.cluster\nN1\n", "n1 3"}, /* short and long are one host */
    {"n1.a\nn1.b\n", "n1.a; n1.b"},   /* these are two */
    {"n1\nn1.a\nn1.A\nn1\n", "n1 4"},
    {"n1.a\nn1\nn1.a\n", "n1.a 3"},
    {"n1:*\nn2:auto\n", "n1; n2"},
    {"n1\nn2\nn3\n^n2\n", "n1; n3"},
    {"n[1-9]\n^n[2-8]\n", "n1; n9"},
    {"n_1 slots=2\n", "n_1 2"}, /* mpirun refuses underscores, DNS does not */
    {"n1 boards=1 sockets=2 cores=8 slots=2\n", "n1 2"},
    {"n1:4 slots=4\n", "n1 4"},
    {"n1 slots=1000000\n", "n1 1000000"},
};

LOOP_TEST(accepted_hostfiles, ARRAY_LEN(good))
{
    struct ddp_err err = {""};
    struct alloc *a = parse(good[_i].text, strlen(good[_i].text), &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    char *text = alloc_text(a);
    ck_assert_str_eq(text, good[_i].nodes);
    free(text);
    alloc_destroy(a);
}

static const struct {
    const char *text, *error;
} bad[] = {
    {"",
     "the hostfile 'hosts' names no host; write one in each line, such as: node1 slots=4"},
    {"# nothing\n\n",
     "the hostfile 'hosts' names no host; write one in each line, such as: node1 slots=4"},
    {"n1\n^n1\n", "no host is left: every one of hostfile 'hosts' is excluded"},
    {"n1 slots=0\n",
     "hosts:1:10: slots must be a whole number from 1 to 1000000, not '0'\n"
     "  n1 slots=0\n"
     "           ^"},
    {"n1\nn2 slots=-1\n",
     "hosts:2:10: slots must be a whole number from 1 to 1000000, not '-1'\n"
     "  n2 slots=-1\n"
     "           ^"},
    {"n1 slots=99999999999\n",
     "hosts:1:10: slots must be a whole number from 1 to 1000000, not '99999999999'\n"
     "  n1 slots=99999999999\n"
     "           ^"},
    {"n1 slots=four\n",
     "hosts:1:10: slots must be a whole number from 1 to 1000000, not 'four'\n"
     "  n1 slots=four\n"
     "           ^"},
    {"n1 slots=4x\r\n",
     "hosts:1:10: slots must be a whole number from 1 to 1000000, not '4x'\n"
     "  n1 slots=4x\n"
     "           ^"},
    {"n1 slots=\n", "hosts:1:10: slots is missing its number\n"
                    "  n1 slots=\n"
                    "           ^"},
    {"n1 slots\n",
     "hosts:1:4: 'slots' is not a setting such as slots=4; a line names one "
     "host\n"
     "  n1 slots\n"
     "     ^"},
    {"n1 n2\n",
     "hosts:1:4: 'n2' is not a setting such as slots=4; a line names one host\n"
     "  n1 n2\n"
     "     ^"},
    {"n1,n2\n", "hosts:1:3: a comma; a line names one host\n"
                "  n1,n2\n"
                "    ^"},
    {"n1\tgpus=4\n", "hosts:1:4: unknown setting 'gpus'; slots, max_slots, port and "
                     "username are known\n"
                     "  n1 gpus=4\n"
                     "     ^"},
    {"slots=4\n",
     "hosts:1:1: a host name comes first, then its settings, as in 'node1:4' or "
     "'node1 slots=4'\n"
     "  slots=4\n"
     "  ^"},
    {"n1 slots=4 slots=5\n", "hosts:1:18: slots: already set to 4\n"
                             "  n1 slots=4 slots=5\n"
                             "                   ^"},
    {"n1:4 slots=5\n", "hosts:1:12: slots: already set to 4\n"
                       "  n1:4 slots=5\n"
                       "             ^"},
    {"n1 slots=4 max_slots=2\n", "hosts:1:10: 4 slots are more than max_slots=2\n"
                                 "  n1 slots=4 max_slots=2\n"
                                 "           ^"},
    {"n1 slots=2\nn2\nn1\n",
     "hosts:3:1: 'n1' is already listed in line 1; give its slots once\n"
     "  n1\n"
     "  ^"},
    {"n1\nn1 slots=2\n",
     "hosts:2:10: 'n1' is already listed in line 1; give its slots once\n"
     "  n1 slots=2\n"
     "           ^"},
    {"n1 slots=2\nn1.cluster slots=2\n",
     "hosts:2:18: 'n1' is already listed in line 1; give its slots once\n"
     "  n1.cluster slots=2\n"
     "                   ^"},
    {"n1.a\nn1.b\nn1\n", "hosts:3:1: 'n1' could be more than one of the hosts; write its "
                         "domain\n"
                         "  n1\n"
                         "  ^"},
    /* in any order */
    {"n1\nn1.a\nn1.b\n", "hosts:3:1: 'n1.b' may be a host that is also named without a "
                         "domain; write its domain everywhere\n"
                         "  n1.b\n"
                         "  ^"},
    {"n1.a\nn1\nn1.b\n", "hosts:3:1: 'n1.b' may be a host that is also named without a "
                         "domain; write its domain everywhere\n"
                         "  n1.b\n"
                         "  ^"},
    {"bob@n1\neve@n1\n", "hosts:2:1: 'n1' has the login name 'bob' already\n"
                         "  eve@n1\n"
                         "  ^"},
    {"n1:x\n", "hosts:1:4: the number of slots must be a whole number from 1 to 1000000, "
               "not 'x'\n"
               "  n1:x\n"
               "     ^"},
    {"n1:\n", "hosts:1:4: the number of slots is missing its number\n"
              "  n1:\n"
              "     ^"},
    {"n1:4:2\n", "hosts:1:3: neither host:slots nor an IPv6 address ([address]:slots)\n"
                 "  n1:4:2\n"
                 "    ^"},
    {"[fe80::zz]:4\n", "hosts:1:2: not an IPv6 address in brackets\n"
                       "  [fe80::zz]:4\n"
                       "   ^"},
    {"[fe80::1\n", "hosts:1:2: not an IPv6 address in brackets\n"
                   "  [fe80::1\n"
                   "   ^"},
    {"[fe80::1]4\n", "hosts:1:10: ':' and a number may follow an address\n"
                     "  [fe80::1]4\n"
                     "           ^"},
    {"10.0.0.300\n", "hosts:1:1: '10.0.0.300' is neither a name nor an address\n"
                     "  10.0.0.300\n"
                     "  ^"},
    {"4\n", "hosts:1:1: '4' is neither a name nor an address\n"
            "  4\n"
            "  ^"},
    {"-oProxyCommand=x\n", "hosts:1:1: a host name cannot begin with '-'\n"
                           "  -oProxyCommand=x\n"
                           "  ^"},
    {"-l@n1\n", "hosts:1:1: '-' cannot be in a login name\n"
                "  -l@n1\n"
                "  ^"},
    {"n1 username=-oX\n", "hosts:1:13: '-' cannot be in a login name\n"
                          "  n1 username=-oX\n"
                          "              ^"},
    {"a@b@n1\n", "hosts:1:4: a second '@' in one host\n"
                 "  a@b@n1\n"
                 "     ^"},
    {"@n1\n", "hosts:1:1: a login name is missing here\n"
              "  @n1\n"
              "  ^"},
    {"bob@\n", "hosts:1:5: a host name is missing here\n"
               "  bob@\n"
               "      ^"},
    {"n1;rm\n", "hosts:1:3: ';' cannot be in a host name\n"
                "  n1;rm\n"
                "    ^"},
    {"n1\xc2\xa0slots=2\n", "hosts:1:3: a no-break space; write a blank\n"
                            "  n1\xc2\xa0slots=2\n"
                            "    ^"},
    {"n\xc3\xbc"
     "1 slots=x\n",
     "hosts:1:2: byte 0xc3 cannot be in a host name\n"
     "  n\xc3\xbc"
     "1 slots=x\n"
     "   ^"},
    {"n1 /* \xc3\xbc */ slots=x\n",
     "hosts:1:18: slots must be a whole number from 1 to 1000000, not 'x'\n"
     "  n1 /* \xc3\xbc */ slots=x\n"
     "                   ^"},
    {"+n3\n", "hosts:1:1: '+' picks from a scheduler's allocation; name the host\n"
              "  +n3\n"
              "  ^"},
    {"n1\n^n2\n", "hosts:2:2: 'n2' is not one of the hosts\n"
                  "  ^n2\n"
                  "   ^"},
    {"rank 3=n1 slot=1\n", "hosts:1:1: a line of a rankfile; a hostfile begins a line "
                           "with a host\n"
                           "  rank 3=n1 slot=1\n"
                           "  ^"},
    {"n1 port=70000\n", "hosts:1:9: port must be a whole number from 1 to 65535, not "
                        "'70000'\n"
                        "  n1 port=70000\n"
                        "          ^"},
    {"n[3-1]\n", "hosts:1:3: the range counts down from 3 to 1\n"
                 "  n[3-1]\n"
                 "    ^"},
    {"n[1-2\n", "hosts:1:2: '[' is never closed\n"
                "  n[1-2\n"
                "   ^"},
    {"n1-2]\n", "hosts:1:5: ']' without '['\n"
                "  n1-2]\n"
                "      ^"},
    {"n[]\n", "hosts:1:3: a number is wanted here, not ']'\n"
              "  n[]\n"
              "    ^"},
    {"n[a-c]\n", "hosts:1:3: a number is wanted here, not 'a'\n"
                 "  n[a-c]\n"
                 "    ^"},
    {"n[0-65536]\n", "hosts:1:3: a range of 65537 names; at most 65536 are allowed\n"
                     "  n[0-65536]\n"
                     "    ^"},
    {"n[1-60000][1-60000]\n", "hosts:1:1: more than 1048576 names in one word\n"
                              "  n[1-60000][1-60000]\n"
                              "  ^"},
    {"n[0-65535][0-9]\nm[0-65535][0-9]\n", "hosts:2:1: more than 1048576 hosts in all\n"
                                           "  m[0-65535][0-9]\n"
                                           "  ^"},
    {"n1\nn2 /* open\nn3\n", "hosts:2:4: this comment is never closed\n"
                             "  n2 /* open\n"
                             "     ^"},
    {"n1 binding=x\n", "hosts:1:4: unknown setting 'binding'; slots, max_slots, port and "
                       "username are known\n"
                       "  n1 binding=x\n"
                       "     ^"},
};

LOOP_TEST(malformed_hostfiles_show_the_place, ARRAY_LEN(bad))
{
    struct ddp_err err = {""};
    struct alloc *a = parse(bad[_i].text, strlen(bad[_i].text), &err);
    ck_assert_ptr_null(a);
    ck_assert_str_eq(err.text, bad[_i].error);
}

TEST(a_nul_byte_is_rejected)
{
    struct ddp_err err = {""};
    static const char text[] = "n1\nn\0002\n";
    ck_assert_ptr_null(parse(text, sizeof text - 1, &err));
    ck_assert_str_eq(err.text, "hosts:2:2: a NUL byte: not a text file\n"
                               "  n 2\n"
                               "   ^");
}

TEST(utf_16_is_rejected)
{
    struct ddp_err err = {""};
    static const char text[] = "\xff\xfen\0001\0\n";
    ck_assert_ptr_null(parse(text, sizeof text, &err));
    ck_assert_str_eq(err.text,
                     "the hostfile 'hosts' is text in UTF-16; save it as UTF-8");
}

TEST(a_long_line_is_cut_around_the_caret)
{
    struct ddp_err err = {""};
    char text[5000];
    memset(text, ' ', sizeof text);
    memcpy(text, "n1", 2);
    memcpy(text + 3000, "slots=x and", 11);
    memset(text + 3200, 'y', 1000);
    ck_assert_ptr_null(parse(text, sizeof text, &err));
    ck_assert_uint_lt(strlen(err.text), sizeof err.text - 1);
    const char *line = strchr(err.text, '\n') + 1, *caret = strchr(line, '\n') + 1;
    ck_assert_int_eq(strncmp(err.text, "hosts:1:3007: ", 14), 0);
    ck_assert_int_eq(strncmp(line, "  ...", 5), 0);
    /* the caret is below the offending byte, and ends the text */
    ck_assert_uint_eq(strcspn(caret, "^") + 1, strlen(caret));
    ck_assert_int_eq(line[strcspn(caret, "^")], 'x');
}

TEST(a_million_lines_are_read)
{
    enum { N = 1000000 };
    char *text = xcalloc(N, 24), *p = text;
    struct ddp_err err = {""};
    for (int i = 0; i < N; i++)
        p += sprintf(p, "node%d slots=4\n", i);
    struct alloc *a = parse(text, (size_t)(p - text), &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    ck_assert_uint_eq(a->nnodes, N);
    ck_assert_str_eq(a->nodes[N - 1].name, "node999999");
    ck_assert_str_eq(a->nodes[N - 1].slots_from, "hosts:1000000: slots=4");
    alloc_destroy(a);
    free(text);
}

static struct alloc *read_path(const char *path, struct ddp_err *err)
{
    const struct opts opts = {.hostfile = path, .start_timeout_ms = 10000};
    return alloc_read(&opts, err);
}

TEST(files_that_cannot_be_read_are_named)
{
    struct ddp_err err = {""};
    ck_assert_ptr_null(read_path("/", &err));
    ck_assert_str_eq(err.text, "the hostfile '/' is a directory");
    ck_assert_ptr_null(read_path("/no/such", &err));
    ck_assert_str_eq(err.text,
                     "cannot open the hostfile '/no/such': No such file or directory");
    char *path = temp_file("hosts", "n1\n");
    chmod(path, 0);
    if (geteuid() != 0) {
        ck_assert_ptr_null(read_path(path, &err));
        ck_assert_ptr_nonnull(strstr(err.text, "Permission denied"));
    }
    free(path);
}

/* A pipe's writer may be late, or never come. */
TEST(a_pipe_is_read_with_a_deadline)
{
    struct ddp_err err = {""};
    char *dir = temp_dir(), *path = xasprintf("%s/pipe", dir);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    const struct opts opts = {.hostfile = path, .start_timeout_ms = 300};
    ck_assert_ptr_null(alloc_read(&opts, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "pipe' in 0.3 s"));
    pid_t writer = fork();
    if (writer == 0) {
        int fd = open(path, O_WRONLY);
        bool sent = write(fd, "n1\n", 3) == 3;
        poll(NULL, 0, 50);
        _exit(!(sent && write(fd, "n2\n", 3) == 3));
    }
    struct alloc *a = read_path(path, &err);
    ck_assert_msg(a && a->nnodes == 2, "%s", err.text);
    alloc_destroy(a);
    ck_assert_int_eq(waitpid(writer, NULL, 0), writer);
    free(path);
    free(dir);
}

static const struct {
    const char *hosts, *nodes, *error;
} filters[] = {
    {"n2", "n2 4", NULL},
    {"n3,n1", "n3; n1 2", NULL},
    {"n2:3", "n2 3", NULL},
    {"^n1", "n2 4; n3", NULL},
    {"n[1-3],^n2", "n1 2; n3", NULL},
    {"n1.cluster", "n1 2", NULL},
    {"n9", NULL, "'n9' is not in the hostfile"},
    {"^n9", NULL, "'n9' is not in the hostfile"},
    {"n2:5", NULL, "'n2' has 4 slots in the hostfile; --oversubscribe allows more"},
    {"n2,n2", NULL, "'n2' is picked twice"},
    {"^n[1-3]", NULL, "no host is left"},
};

LOOP_TEST(a_list_selects_from_the_file, ARRAY_LEN(filters))
{
    char *path = temp_file("hosts", "n1 slots=2\nn2 slots=4\nn3\n");
    const struct opts opts = {.hostfile = path, .hosts = filters[_i].hosts};
    if (filters[_i].error)
        check_refused(&opts, filters[_i].error);
    else
        check_alloc(&opts, "hostfile", filters[_i].nodes);
    free(path);
}

TEST(a_zone_is_the_name_of_an_interface)
{
    static const char *const zones[] = {"e`x", "", "a_very_long_interface", "\xff",
                                        "a%b"};
    for (size_t i = 0; i < ARRAY_LEN(zones); i++) {
        struct ddp_err err = {""};
        char *text = xasprintf("fe80::1%%%s", zones[i]);
        ck_assert_msg(!parse(text, strlen(text), &err), "accepted: %s", text);
        ck_assert_ptr_nonnull(strstr(err.text, "^"));
        free(text);
    }
}
