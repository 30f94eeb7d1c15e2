/* Hosts on the command line, and which of them are this machine. */
#include "tests/launcher/alloc_text.h"
#include "tests/support/names.h"
#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/alloc/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static struct alloc *read_hosts(const char *hosts, struct ddp_err *err)
{
    const struct opts opts = {.hosts = hosts};
    return alloc_read(&opts, err);
}

static const struct {
    const char *hosts, *nodes, *error;
} dash_h[] = {
    {"n1,n2", "n1; n2", NULL},
    {"n1:4,n2:2", "n1 4; n2 2", NULL},
    {"n1, n2 ,", "n1; n2", NULL},
    {"n1,n1", "n1 2", NULL},
    {"n1:2,n1:3", "n1 5", NULL},
    {"n1:2,n1", "n1 3", NULL},
    {"bob@n[1-2,5]:4,[::7]:2", "bob@n1 4; bob@n2 4; bob@n5 4; ::7 2", NULL},
    {"", NULL, "-H: column 1: a host name is missing here\n  \n  ^"},
    {",", NULL, "-H: column 1: a host name is missing here\n  ,\n  ^"},
    {"n1,,n2", NULL, "-H: column 4: a host name is missing here\n  n1,,n2\n     ^"},
    {"n1 n2", NULL,
     "-H: column 3: a blank inside a host; separate hosts by commas\n  n1 n2\n    ^"},
    {"n1:0", NULL,
     "-H: column 4: ':N' is the number of ranks, at least 1; -x CUDA_VISIBLE_DEVICES=LIST "
     "chooses GPUs\n  n1:0\n     ^"},
    {"^n1", NULL,
     "-H: column 1: '^' leaves a host out of a hostfile; there is none\n  ^n1\n  ^"},
    {"4", NULL, "-H: column 1: '4' is neither a name nor an address\n  4\n  ^"},
};

LOOP_TEST(hosts_on_the_command_line, ARRAY_LEN(dash_h))
{
    struct ddp_err err = {""};
    struct alloc *a = read_hosts(dash_h[_i].hosts, &err);
    if (dash_h[_i].error) {
        ck_assert_ptr_null(a);
        ck_assert_str_eq(err.text, dash_h[_i].error);
        return;
    }
    ck_assert_msg(a != NULL, "%s", err.text);
    char *text = alloc_text(a);
    ck_assert_str_eq(text, dash_h[_i].nodes);
    ck_assert_str_eq(a->source, "-H");
    free(text);
    alloc_destroy(a);
}

TEST(this_machine_is_recognised)
{
    struct ddp_err err = {""};
    char own[256] = "", list[600];
    gethostname(own, sizeof own - 1);
    snprintf(list, sizeof list, "localhost,127.0.0.1,::1,%s,127.0.0.2,elsewhere.invalid",
             own);
    struct alloc *a = read_hosts(list, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    /* names of this machine are one node; without IPv6 there is no ::1 */
    ck_assert(a->nnodes == 3 || (a->nnodes == 4 && strcmp(a->nodes[1].name, "::1") == 0));
    ck_assert(a->nodes[0].local);
    ck_assert_int_eq(a->nodes[0].slots, a->nnodes == 3 ? 4 : 3);
    ck_assert_str_eq(a->nodes[a->nnodes - 2].name, "127.0.0.2");
    ck_assert(!a->nodes[a->nnodes - 2].local && !a->nodes[a->nnodes - 1].local);
    alloc_destroy(a);
}

const struct test_name test_names[] = {
    {"vm.zone-a", {"127.0.0.1"}},
    {"vm.zone-b", {"192.0.2.7"}},
    {"vm.zone-c", {"192.0.2.8"}},
};
const size_t test_nnames = ARRAY_LEN(test_names);
static const char *own_name; /* NULL: the real one */

int gethostname(char *name, size_t size)
{
    struct utsname u;
    if (uname(&u) < 0)
        return -1;
    snprintf(name, size, "%s", own_name ? own_name : u.nodename);
    return 0;
}

static const struct {
    const char *own, *hosts, *local; /* the node that is this machine, with its slots */
    size_t nnodes;
} namesakes[] = {
    {"vm", "vm.zone-a:2", "vm.zone-a 2", 1},
    {"vm", "vm.zone-b:2", "", 1},
    {"vm", "vm.x.invalid:2", "vm.x.invalid 2", 1}, /* one name may be ours */
    {"vm", "vm.zone-a:2,vm.zone-b:2", "vm.zone-a 2", 2},
    {"vm", "vm.zone-b:2,vm.zone-a:2", "vm.zone-a 2", 2},
    {"vm", "vm.zone-b:2,vm.zone-c:2", "", 2},
    {"vm", "vm.x.invalid:2,vm.y.invalid:2", "", 2},
    {"vm", "localhost:2,vm.zone-b:2", "localhost 2", 2},
    {"vm", "localhost:2,vm.zone-a:2", "localhost 4", 1},
    {"vm", "vm:2,VM.zone-b:2", "vm 4", 1}, /* the user says that they are one */
    {"vm.zone-a", "vm.zone-a:2,vm.zone-b:2", "vm.zone-a 2", 2},
    {"vm", "localhost,localhost.localdomain,ip6-localhost:2,n1", "localhost 4", 2},
};

LOOP_TEST(namesakes_of_this_machine_are_not_this_machine, ARRAY_LEN(namesakes))
{
    struct ddp_err err = {""};
    char local[300] = "";
    own_name = namesakes[_i].own;
    struct alloc *a = read_hosts(namesakes[_i].hosts, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    for (size_t i = 0; i < a->nnodes; i++) {
        if (a->nodes[i].local)
            snprintf(local, sizeof local, "%s %d", a->nodes[i].name, a->nodes[i].slots);
    }
    ck_assert_str_eq(local, namesakes[_i].local);
    ck_assert_uint_eq(a->nnodes, namesakes[_i].nnodes);
    alloc_destroy(a);
}

TEST(slots_default_to_gpus)
{
    struct ddp_err err = {""};
    struct alloc *a = read_hosts("n1,n2,n3:7", &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    alloc_resolve(a, 0, 8);
    alloc_resolve(a, 1, 0);
    alloc_resolve(a, 2, 8);
    ck_assert_int_eq(a->nodes[0].slots, 8);
    ck_assert_str_eq(a->nodes[0].slots_from, "8 GPUs");
    ck_assert_int_eq(a->nodes[1].slots, 1);
    ck_assert_int_eq(a->nodes[2].slots, 7);
    ck_assert_str_eq(a->nodes[2].slots_from, "-H: slots=7");
    alloc_destroy(a);

    a = read_hosts(NULL, &err);
    ck_assert_str_eq(a->source, "local");
    alloc_resolve(a, 0, 0);
    ck_assert_int_eq(a->nodes[0].slots, 0);
    alloc_resolve(a, 0, 2);
    ck_assert_int_eq(a->nodes[0].slots, 2);
    alloc_destroy(a);
}

TEST(a_caret_after_many_blanks_is_shown)
{
    struct ddp_err err = {""};
    char blanks[300];
    memset(blanks, ' ', sizeof blanks - 1);
    blanks[sizeof blanks - 1] = '\0';
    struct opts opts = {.hosts = blanks};
    ck_assert_ptr_null(alloc_read(&opts, &err));
    size_t len = strlen(err.text);
    const char *caret_line = strrchr(err.text, '\n');
    ck_assert_int_eq(err.text[len - 1], '^');
    ck_assert_uint_lt(strlen(caret_line), 120);
}
