/* Detection of the outer launcher: one instance, several, or several separate jobs. */
#include "tests/launcher/set_env.h"
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/pmi_client.h"
#include "launcher/peer/ambient_job.h"
#include "launcher/peer/join_message.h"
#include "launcher/peer/meeting_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* "srun 3/8 local 1/4 id", then the hosts, the node and the secret if known. */
static char *describe(const struct ambient_job *o)
{
    if (!o->by)
        return xstrdup("alone");
    char *text = xasprintf("%s %d/%d local %d/%d '%s'", o->by, o->rank, o->size,
                           o->local_rank, o->local_size, o->id);
    for (size_t i = 0; i < o->hosts.n; i++)
        xappendf(&text, " %s", o->hosts.v[i]);
    if (o->node)
        xappendf(&text, " at %s", o->node);
    if (o->secret)
        xappendf(&text, " with %s", o->secret);
    if (o->least != o->size)
        xappendf(&text, ", %d are enough", o->least);
    return text;
}

#define STEP \
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 "
#define OMPI                                                                      \
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 " \
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 "
#define RANK "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "

static const struct {
    const char *env;
    struct opts opts;
    const char *found; /* NULL: an error that contains `what` */
    const char *what;
} cases[] = {
    {"HOME=/", {.node_rank = -1}, "alone", NULL},
    /* a batch script's shell is not a task */
    {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=8", {.node_rank = -1}, "alone", NULL},
    {STEP "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0",
     {.node_rank = -1},
     "alone",
     NULL},
    {STEP "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 "
          "SLURM_STEP_TASKS_PER_NODE=1(x2)",
     {.node_rank = -1},
     "srun 1/2 local 0/1 'SLURM_JOB_ID=7 SLURM_STEP_ID=0 ' n1 n2",
     NULL},
    {STEP "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 "
          "SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_RESTART_COUNT=2",
     {.node_rank = -1},
     "srun 5/8 local 1/4 'SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_RESTART_COUNT=2 '",
     NULL},
    {STEP "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 "
          "SLURM_STEP_TASKS_PER_NODE=4",
     {.node_rank = -1},
     NULL,
     "SLURM_STEP_TASKS_PER_NODE='4' counts 1 nodes"},
    {STEP "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID= "
          "SLURM_STEP_TASKS_PER_NODE=1(x2)",
     {.node_rank = -1},
     NULL,
     "SLURM_NODEID is '', which is no number"},
    {STEP "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=2 "
          "SLURM_STEP_TASKS_PER_NODE=1(x2)",
     {.node_rank = -1},
     NULL,
     "SLURM_NODEID=2 of SLURM_STEP_NUM_NODES=2"},
    {STEP "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_NODEID=1",
     {.node_rank = -1},
     NULL,
     "SLURM_PROCID is 9, but SLURM_STEP_NUM_TASKS is only 8"},
    /* variables of srun's daemons around mpirun's ranks do not count */
    {OMPI STEP "PMIX_NAMESPACE=99 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 "
               "OMPI_MCA_orte_precondition_transports=1f-2e",
     {.node_rank = -1},
     "mpirun (Open MPI) 3/4 local 1/2 'PMIX_NAMESPACE=99 ' with 1f-2e",
     NULL},
    {OMPI, {.node_rank = -1}, NULL, "no variable identifies their common start"},
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=99",
     {.node_rank = -1},
     NULL,
     "OMPI_COMM_WORLD_LOCAL_RANK=2, but 2 instances are on this node"},
    {OMPI "PMIX_NAMESPACE=99",
     {.node_rank = -1, .hosts = "n1"},
     NULL,
     "has started 4 instances of ddprun (OMPI_COMM_WORLD_SIZE=4)"},
    {OMPI "PMIX_NAMESPACE=99", {.node_rank = -1, .alloc = "local"}, "alone", NULL},
    {"PMI_RANK=1 PMI_SIZE=2 PMI_FD=6 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
     {.node_rank = -1},
     "mpiexec (Hydra) 1/2 local 1/2 ''",
     NULL},
    {"PMI_RANK=1 PMI_SIZE=2", {.node_rank = -1}, NULL, "has started 2 instances"},
    {"FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 "
     "FLUX_JOB_ID=f1 FLUX_KVS_NAMESPACE=job-7 FLUX_URI=local:///x", /* a broker's */
     {.node_rank = -1},
     "flux run 3/4 local 1/2 'FLUX_JOB_ID=f1 FLUX_KVS_NAMESPACE=job-7 ' at local:///x",
     NULL},
    {"FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=3 "
     "FLUX_JOB_ID=f1",
     {.node_rank = -1},
     NULL,
     "start one per node"},
    {"PALS_RANKID=1 PALS_SIZE=2 PALS_LOCAL_RANKID=0 PALS_LOCAL_SIZE=1 PALS_APID=a",
     {.node_rank = -1},
     "mpiexec (PALS) 1/2 local 0/1 'PALS_APID=a '",
     NULL},
    /* ranks of ddprun and torchrun: all names at once */
    {RANK OMPI "TORCHELASTIC_RUN_ID=r PMIX_NAMESPACE=99",
     {.node_rank = -1},
     NULL,
     "ddprun or torchrun has started 2 instances of ddprun (WORLD_SIZE=2)"},
    {RANK OMPI "TORCHELASTIC_RUN_ID=r PMIX_NAMESPACE=99",
     {.node_rank = -1, .np = 3},
     "alone",
     NULL},
    /* exported by hand: not a launcher's */
    {RANK, {.node_rank = -1}, "alone", NULL},
    {"HOME=/",
     {.node_rank = 1, .nnodes = 4, .master_addr = "h", .master_port = 7},
     "--node-rank 1/4 local 0/1 'by hand h 7'",
     NULL},
    {"HOME=/",
     {.node_rank = 1, .nnodes = 4, .min_nnodes = 2, .master_addr = "h"},
     "--node-rank 1/4 local 0/1 'by hand h 0', 2 are enough",
     NULL},
    {"HOME=/",
     {.node_rank = 1, .nnodes = 4, .hostfile = "hosts"},
     NULL,
     "leave out --hostfile"},
    {"HOME=/", {.node_rank = 0, .nnodes = 1}, "alone", NULL},
    {"HOME=/", {.node_rank = 0}, NULL, "needs --nnodes"},
    {"HOME=/", {.node_rank = 4, .nnodes = 4}, NULL, "they count from 0"},
    {"PBS_JOBID=7.h PBS_NODEFILE=/x PBS_NODENUM=0 PBS_TASKNUM=1",
     {.node_rank = -1},
     "alone",
     NULL},
    /* pbsdsh of OpenPBS 23 on the second node, and on the first */
    {"PBS_JOBID=7.h PBS_NODEFILE=/x PBS_NODENUM=1 PBS_TASKNUM=20000001",
     {.node_rank = -1},
     NULL,
     "PBS_TASKNUM=20000001: this is not the job's first process"},
    {"PBS_JOBID=7.h PBS_NODENUM=0 PBS_TASKNUM=00000002",
     {.node_rank = -1},
     NULL,
     "--alloc local if it is the only one"},
    {"SM_HOSTS=[\"algo-10\",\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2",
     {.node_rank = -1},
     "SageMaker 1/3 local 0/1 'sagemaker algo-1 algo-2 algo-10' algo-1 algo-2 algo-10",
     NULL},
    {"SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2",
     {.node_rank = -1},
     "SageMaker 1/2 local 0/1 'sagemaker algo-1 algo-2' algo-1 algo-2",
     NULL},
    {"SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-1", {.node_rank = -1}, "alone", NULL},
    {"SM_HOSTS=[\"algo-1\",\"algo-1\"] SM_CURRENT_HOST=algo-1",
     {.node_rank = -1},
     NULL,
     "'algo-1' is in the list twice"},
    {"SM_HOSTS=[\"algo-1\",2] SM_CURRENT_HOST=algo-1",
     {.node_rank = -1},
     NULL,
     "host 1 of the list is no name"},
    {"SM_HOSTS=[\"algo-1\" SM_CURRENT_HOST=algo-1", {.node_rank = -1}, NULL, "SM_HOSTS="},
    {"SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-3",
     {.node_rank = -1},
     NULL,
     "the current host 'algo-3' is not in the list"},
};

LOOP_TEST(starts_have_different_ids, ARRAY_LEN(cases))
{
    struct ambient_job o;
    struct ddp_err err = {""};
    set_all(cases[_i].env);
    int rc = ambient_job_find(&cases[_i].opts, &o, &err);
    if (cases[_i].found) {
        char *text = describe(&o);
        ck_assert_msg(rc == 0, "%s", err.text);
        ck_assert_str_eq(text, cases[_i].found);
        free(text);
    } else {
        ck_assert_int_eq(rc, -1);
        ck_assert_msg(strstr(err.text, cases[_i].what) != NULL, "'%s'", err.text);
    }
    ambient_job_finish(&o);
}

/* Environments recorded from OpenPBS: of a job script, and of processes by pbsdsh. */
static const struct {
    const char *file, *what; /* NULL: the only instance */
} recorded[] = {
    {"job.env", NULL},
    {"pbsdsh.first.env", "PBS_TASKNUM=00000002: this is not the job's first process"},
    {"pbsdsh.second.env", "PBS_TASKNUM=40000001: this is not the job's first process"},
};

LOOP_TEST(tasks_of_a_recorded_pbs_job, ARRAY_LEN(recorded))
{
    char *path = xasprintf("%s/openpbs-23.06/%s", RECORDED_DIR, recorded[_i].file);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "'%s' is not there", path);
    char line[1024];
    clearenv();
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *eq = strchr(line, '=');
        ck_assert_ptr_nonnull(eq);
        *eq = '\0';
        setenv(line, eq + 1, 1);
    }
    fclose(f);
    free(path);
    struct opts opts = {.node_rank = -1};
    struct ambient_job o;
    struct ddp_err err = {""};
    int rc = ambient_job_find(&opts, &o, &err);
    ck_assert_int_eq(rc, recorded[_i].what ? -1 : 0);
    ck_assert_msg(!recorded[_i].what || strstr(err.text, recorded[_i].what), "'%s'",
                  err.text);
    ambient_job_finish(&o);
}

static void write_config(const char *text)
{
    char *path = temp_file("resourceconfig.json", text);
    clearenv();
    setenv("DDPRUN_RESOURCECONFIG", path, 1);
    free(path);
}

TEST(sagemakers_file_comes_before_its_variables)
{
    struct opts opts = {.node_rank = -1};
    struct ambient_job o;
    struct ddp_err err = {""};
    write_config("{\"current_host\": \"algo-12\", \"hosts\": [\"algo-1\", \"algo-10\", "
                 "\"algo-12\", \"algo-2\"], \"network_interface_name\": \"eth0\"}");
    setenv("SM_HOSTS", "[\"other\"]", 1);
    setenv("SM_CURRENT_HOST", "other", 1);
    ck_assert_msg(ambient_job_find(&opts, &o, &err) == 0, "%s", err.text);
    ck_assert_int_eq(o.rank, 3);
    ck_assert_str_eq(o.hosts.v[1], "algo-2");
    ck_assert_str_eq(o.hosts.v[2], "algo-10");
    ck_assert(o.apart);
    ambient_job_finish(&o);
    write_config("{\"current_host\": \"algo-1\", \"hosts\": [\"algo-1\",");
    ck_assert_int_eq(ambient_job_find(&opts, &o, &err), -1);
    ck_assert_msg(strstr(err.text, "resourceconfig.json:1:") != NULL, "%s", err.text);
    ambient_job_finish(&o);
}

TEST(join_messages_arrive_whole_or_not_at_all)
{
    struct seal out = {.key = {{7}}}, in = {.key = {{7}}}, other = {.key = {{8}}};
    char host[] = "n1";
    struct msg_join here = {.copies = 4, .slots = 8, .host = host}, got;
    struct msg_joined answer = {.node = 3, .nnodes = 9}, heard;
    unsigned char bytes[JOIN_SIZE];
    struct ddp_err err;
    join_message_seal(MSG_JOIN, &here, &out, bytes);
    ck_assert_int_eq(join_message_open(MSG_JOIN, bytes, &other, &got, &err), -1);
    ck_assert_int_eq(join_message_open(MSG_JOIN, bytes, &in, &got, &err), 0);
    ck_assert_uint_eq(got.copies, 4);
    ck_assert_str_eq(got.host, "n1");
    ck_assert_ptr_null(got.slots_from);
    msg_join_finish(&got);
    ck_assert_int_eq(join_message_open(MSG_JOIN, bytes, &in, &got, &err),
                     -1); /* not twice */
    in = (struct seal){.key = {{7}}};
    out = in;
    join_message_seal(MSG_JOINED, &answer, &out, bytes);
    ck_assert_int_eq(join_message_open(MSG_JOINED, bytes, &in, &heard, &err), 0);
    ck_assert_uint_eq(heard.node, 3);
    here.copies = 0;
    join_message_seal(MSG_JOIN, &here, &out, bytes);
    ck_assert_int_eq(join_message_open(MSG_JOIN, bytes, &in, &got, &err), -1);
}

/* Of two starts with one --master-addr, on two hosts with one home, say. */
TEST(a_head_that_ends_leaves_the_file_of_another_one)
{
    OWNED char *dir = temp_dir();
    char name[] = "head";
    struct ddp_err err;
    struct bootstrap mine = {.name = name}, got = {0};
    struct meeting_file *old = meeting_file_create(dir, "by hand h 7", &err);
    struct meeting_file *new = meeting_file_create(dir, "by hand h 7", &err);
    ck_assert(old && new);
    strv_push(&mine.calls, "10.0.0.1 1");
    ck_ok(meeting_file_write(old, &mine, &err), err);
    strv_push(&mine.calls, "10.0.0.1 2");
    ck_ok(meeting_file_write(new, &mine, &err), err);
    meeting_file_destroy(old);
    ck_assert_int_eq(meeting_file_read(new, &got, &err), 1);
    meeting_file_destroy(new);
    old = meeting_file_create(dir, "by hand h 7", &err);
    ck_assert_int_eq(meeting_file_read(old, &got, &err), 0);
    meeting_file_destroy(old);
    strv_finish(&mine.calls);
    bootstrap_finish(&got);
}

/* All replies of a proxy are sent at once; our requests stay in the socket. */
static const struct {
    const char *answers, *name; /* or a part of the error */
} proxies[] = {
    {"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
     "cmd=my_kvsname kvsname=kvs_12_0\ncmd=finalize_ack\n",
     "kvs_12_0"},
    {"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"
     "cmd=my_kvsname rc=0 kvsname=kvs_12_0_vm\ncmd=finalize_ack rc=0\n",
     "kvs_12_0_vm"},
    {"cmd=response_to_init rc=0\ncmd=my_kvsname rc=0\ncmd=finalize_ack\n",
     "does not name its store: 'cmd=my_kvsname rc=0'"},
    {"cmd=response_to_init rc=0\ncmd=what\n",
     "answers 'cmd=what' to 'cmd=get_my_kvsname'"},
    {"cmd=response_to_init rc=0\n", "has closed the connection"},
};

LOOP_TEST(a_proxy_names_its_start, ARRAY_LEN(proxies))
{
    int pair[2];
    char name[PMI_CLIENT_LINE];
    struct ddp_err err = {""};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    size_t n = strlen(proxies[_i].answers);
    ck_assert_int_eq(write(pair[1], proxies[_i].answers, n), (ssize_t)n);
    shutdown(pair[1], SHUT_WR);
    int64_t end = now_ms() + 10000;
    int rc = pmi_client_begin(pair[0], name, &end, &err);
    ck_assert_int_eq(rc, strncmp(proxies[_i].name, "kvs_", 4) == 0 ? 0 : -1);
    if (rc == 0)
        ck_assert_str_eq(name, proxies[_i].name);
    else
        ck_assert_msg(strstr(err.text, proxies[_i].name) != NULL, "%s", err.text);
    close(pair[0]);
    close(pair[1]);
}
