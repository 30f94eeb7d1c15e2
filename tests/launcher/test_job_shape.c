#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/job/job_shape.h"
#include "launcher/opts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct alloc_node hosts[] = {{.name = (char[]){"n1"}}, {.name = (char[]){"n2"}}};
static int first[] = {0, 2}, second[] = {1};
static struct plan_rank ranks[] = {{0, 0, 0}, {1, 0, 1}, {0, 1, 0}};
static struct plan_node nodes[] = {{&hosts[0], 2, first}, {&hosts[1], 1, second}};

TEST(the_job_as_text)
{
    /* two hosts, whose ranks alternate */
    struct plan plan = {.ranks = ranks, .nranks = 3, .nodes = nodes, .nnodes = 2};
    struct msg_job job = {.id = xstrdup("job"), .rank_names = NAMES_ALL | NAMES_TF};
    unsigned port = 0, other = 0, third = 0;
    for (int attempt = 0; attempt < 2; attempt++) { /* made anew, and the same */
        job_shape(&job, &plan);
        ck_assert_str_eq(job.node_list, "n1,n2");
        ck_assert_str_eq(job.tasks_per_node, "2,1");
        ck_assert_int_eq(
            sscanf(job.endpoints, "n1:%u,n2:%u,n1:%u", &port, &other, &third), 3);
    }
    ck_assert_uint_ge(port, 20000);
    ck_assert_uint_lt(port, 30000);
    ck_assert_uint_eq(other, port); /* of another host */
    ck_assert_uint_eq(third, port + 1);
    ck_assert_uint_ne(job.tracker_port, 0);
    msg_job_finish(&job);
}

TEST(only_what_is_wanted_and_fits)
{
    struct plan plan = {.ranks = ranks, .nranks = 3, .nodes = nodes, .nnodes = 2};
    struct msg_job job = {.id = xstrdup("job"), .rank_names = NAMES_ALL};
    job_shape(&job, &plan);
    ck_assert_ptr_nonnull(job.node_list);
    ck_assert_ptr_null(job.endpoints);
    plan.nnodes = 1025;
    job_shape(&job, &plan);
    ck_assert_ptr_null(job.node_list);
    ck_assert_ptr_null(job.tasks_per_node);
    msg_job_finish(&job);
}
