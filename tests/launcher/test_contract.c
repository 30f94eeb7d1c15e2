#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/contract.h"
#include "launcher/envfwd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct rank_facts facts = {
    .rank = 5,
    .size = 8,
    .local_rank = 1,
    .local_size = 4,
    .node_rank = 1,
    .nnodes = 2,
    .cross_rank = 1,
    .cross_size = 2,
    .hostname = "n2",
    .master_addr = "10.0.0.1",
    .master_port = 4711,
    .rank0_port = 4712,
    .job_id = "job",
    .ncpus = 12,
    .rank_names = NAMES_ALL,
    .node_list = "n1,n2",
    .tasks_per_node = "4,4",
    .tf_config = "{}",
    .tracker_port = 12345,
};

static char noted[2000];

static void on_note(const struct env_note *n, void *arg)
{
    static const char *const what[] = {"set", "replaced", "kept", "removed"};
    size_t used = strlen(noted);
    snprintf(noted + used, sizeof noted - used, "%s %s%s; ", n->name, what[n->origin],
             n->user ? " (user)" : "");
}

/* Apply to a base written "A=1 B=2"; `user` names what was given with -x. */
static struct strv apply(const struct rank_facts *f, const char *base_text,
                         const char *user_text)
{
    struct strv base = {0}, user = {0}, env = {0};
    char *copy = xstrdup(base_text), *save;
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        strv_push(&base, w);
    free(copy);
    copy = xstrdup(user_text);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        strv_push(&user, w);
    free(copy);
    noted[0] = '\0';
    struct contract_base looked_up;
    contract_base_init(&looked_up, &base, &user);
    contract_apply(f, &looked_up, &env, on_note, NULL);
    contract_base_finish(&looked_up);
    strv_finish(&base);
    strv_finish(&user);
    return env;
}

static const struct {
    const char *name, *value; /* NULL: not there */
} plain[] = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"NODE_RANK", "1"},
    {"GROUP_RANK", "1"},
    {"GROUP_WORLD_SIZE", "2"},
    {"ROLE_RANK", "5"},
    {"ROLE_WORLD_SIZE", "8"},
    {"ROLE_NAME", "default"},
    {"MASTER_ADDR", "10.0.0.1"},
    {"MASTER_PORT", "4711"},
    {"TORCHELASTIC_RUN_ID", "job"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_MAX_RESTARTS", "0"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_ERROR_FILE", NULL},
    {"OMP_NUM_THREADS", "12"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
    {"GLOO_ENABLE_STORE_V2_API", NULL}, /* 8 ranks are few */
    {"PYTHONUNBUFFERED", "1"},
    {"CUDA_VISIBLE_DEVICES", NULL},
    {"GLOO_SOCKET_IFNAME", NULL},
    {"NCCL_SOCKET_IFNAME", NULL},
    {"HOROVOD_RANK", "5"},
    {"HOROVOD_SIZE", "8"},
    {"HOROVOD_LOCAL_RANK", "1"},
    {"HOROVOD_LOCAL_SIZE", "4"},
    {"HOROVOD_CROSS_RANK", "1"},
    {"HOROVOD_CROSS_SIZE", "2"},
    {"HOROVOD_HOSTNAME", "n2"},
    {"HOROVOD_CONTROLLER", "gloo"},
    {"HOROVOD_CPU_OPERATIONS", "gloo"},
    {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
    {"HOROVOD_GLOO_RENDEZVOUS_PORT", "4711"},
    {"HOROVOD_GLOO_IFACE", NULL}, /* on several hosts */
    {"JAX_COORDINATOR_ADDRESS", "10.0.0.1:4712"},
    {"JAX_LOCAL_DEVICE_IDS", NULL},
    {"OMPI_VERSION", "4.1.4"},
    {"OMPI_MCA_orte_hnp_uri", "0.0;tcp://10.0.0.1:4712"},
    {"OMPI_COMM_WORLD_RANK", "5"},
    {"OMPI_COMM_WORLD_SIZE", "8"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
    {"SLURM_PROCID", "5"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NTASKS", "8"},
    {"SLURM_NNODES", "2"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_NUM_TASKS", "8"},
    {"SLURM_STEP_NODELIST", "n1,n2"},
    {"SLURM_STEP_TASKS_PER_NODE", "4,4"},
    {"TF_CONFIG", NULL}, /* only with --rank-names tf, dmlc */
    {"DMLC_TRACKER_PORT", NULL},
    {"PMI_RANK", "5"},
    {"PMI_SIZE", "8"},
    {"MPI_LOCALRANKID", "1"},
};

/* MPICH 5 fails if both services exist and the variable does not select one. */
static const struct {
    int pmi_fd;
    const char *pmix_nspace, *base, *version;
} services[] = {
    {63, "world", "", "1"},
    {63, NULL, "", "1"},
    {0, "world", "", "x"},
    {0, NULL, "", NULL},
    {63, "world", "MPIR_CVAR_PMI_VERSION=x", "x"},
};

LOOP_TEST(mpich_gets_the_service_to_use, ARRAY_LEN(services))
{
    struct rank_facts f = facts;
    f.pmi_fd = services[_i].pmi_fd;
    f.pmix_nspace = services[_i].pmix_nspace;
    struct strv env = apply(&f, services[_i].base, "");
    const char *version = strv_env_get(&env, "MPIR_CVAR_PMI_VERSION");
    ck_assert_pstr_eq(version, services[_i].version);
    f.rank_names = NAMES_ALL & ~(unsigned)NAMES_PMI;
    strv_finish(&env);
    env = apply(&f, "", "");
    ck_assert_ptr_null(strv_env_get(&env, "MPIR_CVAR_PMI_VERSION"));
    strv_finish(&env);
}

TEST(a_rank_finds_what_it_needs)
{
    struct strv env = apply(&facts, "PATH=/bin", "");
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        ck_assert_msg(
            (plain[i].value == NULL) == (strv_env_get(&env, plain[i].name) == NULL) &&
                (!plain[i].value ||
                 strcmp(plain[i].value, strv_env_get(&env, plain[i].name)) == 0),
            "%s is '%s'", plain[i].name, strv_env_get(&env, plain[i].name));
    ck_assert_str_eq(strv_env_get(&env, "PATH"), "/bin");
    ck_assert_str_eq(noted, "");
    strv_finish(&env);
}

/* Inherited variables and ours. */
static const struct {
    const char *base, *user, *name, *value, *note;
} meetings[] = {
    {"RANK=0", "", "RANK", "5", "RANK replaced; "},
    {"RANK=0", "RANK", "RANK", "5", "RANK replaced (user); "},
    {"RANK=5", "", "RANK", "5", ""},
    {"SLURM_PROCID=0", "", "SLURM_PROCID", "5", "SLURM_PROCID replaced; "},
    {"MASTER_ADDR=x", "", "MASTER_ADDR", "10.0.0.1", "MASTER_ADDR replaced; "},
    {"OMP_NUM_THREADS=3", "", "OMP_NUM_THREADS", "3", "OMP_NUM_THREADS kept; "},
    {"OMP_NUM_THREADS=3", "OMP_NUM_THREADS", "OMP_NUM_THREADS", "3",
     "OMP_NUM_THREADS kept (user); "},
    {"OMP_NUM_THREADS=12", "", "OMP_NUM_THREADS", "12", ""},
    /* PBS: the CPUs of all ranks of a node, if more than one rank's */
    {"PBS_JOBID=1 NCPUS=48 OMP_NUM_THREADS=48", "", "OMP_NUM_THREADS", "12",
     "OMP_NUM_THREADS replaced; "},
    {"PBS_JOBID=1 NCPUS=48 OMP_NUM_THREADS=24", "", "OMP_NUM_THREADS", "24",
     "OMP_NUM_THREADS kept; "},
    {"PBS_JOBID=1 NCPUS=4 OMP_NUM_THREADS=4", "", "OMP_NUM_THREADS", "4",
     "OMP_NUM_THREADS kept; "},
    {"PBS_JOBID=1 NCPUS=48 OMP_NUM_THREADS=48", "OMP_NUM_THREADS", "OMP_NUM_THREADS",
     "48", "OMP_NUM_THREADS kept (user); "},
    {"NCPUS=48 OMP_NUM_THREADS=48", "", "OMP_NUM_THREADS", "48",
     "OMP_NUM_THREADS kept; "},
    {"PYTHONUNBUFFERED=", "", "PYTHONUNBUFFERED", "", "PYTHONUNBUFFERED kept; "},
    {"CUDA_VISIBLE_DEVICES=2,3", "", "CUDA_VISIBLE_DEVICES", "2,3", ""},
    {"NCCL_SOCKET_IFNAME=ib0", "", "NCCL_SOCKET_IFNAME", "ib0", ""},
    {"GLOO_ENABLE_STORE_V2_API=0", "", "GLOO_ENABLE_STORE_V2_API", "0", ""},
    {"PMIX_RANK=0", "", "PMIX_RANK", NULL, "PMIX_RANK removed; "},
    {"PMIX_RANK=0", "PMIX_RANK", "PMIX_RANK", "0", ""},
    {"PMI_FD=5", "", "PMI_FD", NULL, "PMI_FD removed; "},
    {"SLURM_STEP_GPUS=n1", "", "SLURM_STEP_GPUS", NULL, "SLURM_STEP_GPUS removed; "},
    {"SLURM_STEP_ID=0", "", "SLURM_STEP_ID", NULL, "SLURM_STEP_ID removed; "},
    {"SLURM_JOB_ID=7", "", "SLURM_JOB_ID", "7", ""},
    {"OMPI_MCA_ess=pmi", "", "OMPI_MCA_ess", NULL, "OMPI_MCA_ess removed; "},
    {"OMPI_MCA_btl=tcp", "", "OMPI_MCA_btl", "tcp", ""},
    {"TORCHELASTIC_ERROR_FILE=/x", "", "TORCHELASTIC_ERROR_FILE", NULL,
     "TORCHELASTIC_ERROR_FILE removed; "},
    {"TORCHELASTIC_ERROR_FILE=/x", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_ERROR_FILE",
     "/x", ""},
    {"TORCHELASTIC_RUN_ID=outer", "", "TORCHELASTIC_RUN_ID", "job",
     "TORCHELASTIC_RUN_ID replaced; "},
    {"HOROVOD_ELASTIC=1", "", "HOROVOD_ELASTIC", NULL, "HOROVOD_ELASTIC removed; "},
    {"HOROVOD_CONTROLLER=mpi", "", "HOROVOD_CONTROLLER", "mpi",
     "HOROVOD_CONTROLLER kept; "},
    {"HOROVOD_FUSION_THRESHOLD=1", "", "HOROVOD_FUSION_THRESHOLD", "1", ""},
    {"SM_HP_BATCH-SIZE=3", "", "SM_HP_BATCH-SIZE", "3", ""},
    {"RANKS=3", "", "RANKS", "3", ""},
};

LOOP_TEST(inherited_variables_are_kept_replaced_or_removed, ARRAY_LEN(meetings))
{
    struct strv env = apply(&facts, meetings[_i].base, meetings[_i].user);
    ck_assert_pstr_eq(strv_env_get(&env, meetings[_i].name), meetings[_i].value);
    ck_assert_str_eq(noted, meetings[_i].note);
    /* and once only */
    int n = 0;
    size_t len = strlen(meetings[_i].name);
    for (size_t i = 0; i < env.n; i++)
        n += strncmp(env.v[i], meetings[_i].name, len) == 0 && env.v[i][len] == '=';
    ck_assert_int_eq(n, meetings[_i].value != NULL);
    strv_finish(&env);
}

TEST(options_change_what_is_set)
{
    struct rank_facts f = facts;
    f.interface = "eth1";
    f.gpu = "3";
    f.size = 16;
    f.store = STORE_RANK0;
    f.error_file = "/tmp/e.json";
    struct strv env = apply(
        &f, "NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib1 TORCHELASTIC_ERROR_FILE=/x",
        "GLOO_SOCKET_IFNAME");
    ck_assert_str_eq(strv_env_get(&env, "NCCL_SOCKET_IFNAME"), "eth1");
    ck_assert_str_eq(strv_env_get(&env, "GLOO_SOCKET_IFNAME"), "ib1"); /* -x wins */
    ck_assert_str_eq(strv_env_get(&env, "CUDA_VISIBLE_DEVICES"), "3");
    ck_assert_str_eq(strv_env_get(&env, "LOCAL_RANK"), "0");
    ck_assert_str_eq(strv_env_get(&env, "SLURM_LOCALID"), "1");
    ck_assert_str_eq(strv_env_get(&env, "GLOO_ENABLE_STORE_V2_API"), "1");
    ck_assert_str_eq(strv_env_get(&env, "TORCHELASTIC_USE_AGENT_STORE"), "False");
    ck_assert_str_eq(strv_env_get(&env, "TORCHELASTIC_ERROR_FILE"), "/tmp/e.json");
    ck_assert_str_eq(noted,
                     "NCCL_SOCKET_IFNAME replaced; GLOO_SOCKET_IFNAME kept (user); "
                     "TORCHELASTIC_ERROR_FILE replaced; ");
    strv_finish(&env);
}

TEST(each_paddle_rank_has_its_endpoint)
{
    struct rank_facts f = facts;
    f.rank_names = NAMES_PADDLE;
    f.endpoints = "n1:1,n1:2,n1:3,n1:4,n2:1,n2:2,n2:3,n2:4";
    struct strv env = apply(&f, "FLAGS_selected_gpus=7", "");
    ck_assert_str_eq(strv_env_get(&env, "PADDLE_TRAINER_ID"), "5");
    ck_assert_str_eq(strv_env_get(&env, "PADDLE_TRAINER_ENDPOINTS"), f.endpoints);
    ck_assert_str_eq(strv_env_get(&env, "PADDLE_CURRENT_ENDPOINT"), "n2:2");
    ck_assert_str_eq(strv_env_get(&env, "FLAGS_selected_gpus"), "7");
    strv_finish(&env);
}

/* Names that are not requested are not set, and those of an outer launcher are removed.
 */
TEST(rank_names_narrow_the_set)
{
    static const char *const first[] = {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
                                        "PMI_RANK"};
    for (unsigned names = 0; names <= NAMES_ALL; names++) {
        struct rank_facts f = facts;
        f.rank_names = names;
        struct strv env =
            apply(&f, "OMPI_COMM_WORLD_RANK=0 SLURM_PROCID=0 PMI_RANK=0", "");
        for (unsigned i = 0; i < 3; i++)
            ck_assert_pstr_eq(strv_env_get(&env, first[i]), names >> i & 1 ? "5" : NULL);
        ck_assert_str_eq(strv_env_get(&env, "RANK"), "5");
        strv_finish(&env);
    }
}

/* The table has all variables that are ever set. */
TEST(the_printed_table_is_complete)
{
    struct rank_facts f = facts;
    f.interface = "eth1";
    f.gpu = "3";
    f.size = 16;
    f.error_file = "/e";
    f.kept_memory = "/m";
    struct strv env = apply(&f, "", "");
    char *table = NULL;
    size_t size;
    FILE *out = open_memstream(&table, &size);
    contract_print(out);
    fclose(out);
    for (size_t i = 0; i < env.n; i++) {
        char *name = xstrndup(env.v[i], strcspn(env.v[i], "="));
        char *wanted = xasprintf("\n  %s ", name);
        ck_assert_msg(strstr(table, wanted) != NULL, "%s is not in the table", name);
        free(wanted);
        free(name);
    }
    ck_assert_uint_gt(env.n, 40);
    strv_finish(&env);
    free(table);
}

/* --- forwarding --------------------------------------------------------------------- */

static char *here[] = {(char[]){"PATH=/bin"},
                       (char[]){"HOSTNAME=me"},
                       (char[]){"SSH_AUTH_SOCK=/s"},
                       (char[]){"TMPDIR=/job"},
                       (char[]){"SM_HP_BATCH-SIZE=3"},
                       (char[]){"BASH_FUNC_f%%=() { :\n}"},
                       (char[]){"EMPTY="},
                       (char[]){"CUDA_VISIBLE_DEVICES=1"},
                       (char[]){"not an entry"},
                       NULL};

TEST(machine_bound_names_stay)
{
    struct strv none = {0}, env = {0};
    envfwd_collect(here, &none, true, &env, NULL, NULL);
    ck_assert_uint_eq(env.n, 4);
    ck_assert_str_eq(strv_env_get(&env, "PATH"), "/bin");
    ck_assert_str_eq(strv_env_get(&env, "SM_HP_BATCH-SIZE"), "3");
    ck_assert_str_eq(strv_env_get(&env, "BASH_FUNC_f%%"), "() { :\n}");
    ck_assert_str_eq(strv_env_get(&env, "EMPTY"), "");
    strv_finish(&env);

    envfwd_collect(here, &none, false, &env, NULL,
                   NULL); /* nothing leaves this machine */
    ck_assert_uint_eq(env.n, 8);
    strv_finish(&env);
    ck_assert_ptr_nonnull(envfwd_stays("SSH_CONNECTION"));
    ck_assert_ptr_null(envfwd_stays("LD_LIBRARY_PATH"));
    ck_assert_ptr_null(envfwd_stays("HOSTNAMES"));
}

/* Variables that PBS sets on each node. */
TEST(the_chunk_of_a_pbs_job_stays)
{
    char *const chunk[] = {(char[]){"PBS_JOBID=7.head"}, (char[]){"NCPUS=8"},
                           (char[]){"OMP_NUM_THREADS=8"}, (char[]){"PBS_NODENUM=0"},
                           NULL};
    char *const asked[] = {(char[]){"PBS_JOBID=7.head"}, (char[]){"NCPUS=8"},
                           (char[]){"OMP_NUM_THREADS=4"}, NULL};
    struct strv none = {0}, env = {0};
    envfwd_collect(chunk, &none, true, &env, NULL, NULL);
    ck_assert_uint_eq(env.n, 1);
    strv_finish(&env);
    envfwd_collect(asked, &none, true, &env, NULL, NULL);
    ck_assert_str_eq(strv_env_get(&env, "OMP_NUM_THREADS"), "4");
    strv_finish(&env);
    envfwd_collect(chunk, &none, false, &env, NULL, NULL);
    ck_assert_uint_eq(env.n, 4);
    strv_finish(&env);
}

TEST(exported_names_are_always_forwarded)
{
    struct strv x = {0}, env = {0}, user = {0}, missing = {0};
    strv_push(&x, "TMPDIR");
    strv_push(&x, "PATH=/mine:/bin");
    strv_push(&x, "EQ=a=b");
    strv_push(&x, "NOT_HERE");
    strv_push(&x, "BLANK=");
    envfwd_collect(here, &x, true, &env, &user, &missing);
    ck_assert_str_eq(strv_env_get(&env, "TMPDIR"), "/job");
    ck_assert_str_eq(strv_env_get(&env, "PATH"), "/mine:/bin");
    ck_assert_str_eq(strv_env_get(&env, "EQ"), "a=b");
    ck_assert_str_eq(strv_env_get(&env, "BLANK"), "");
    ck_assert_ptr_null(strv_env_get(&env, "NOT_HERE"));
    ck_assert_uint_eq(user.n, 4);
    ck_assert_uint_eq(missing.n, 1);
    ck_assert_str_eq(missing.v[0], "NOT_HERE");
    strv_finish(&x);
    strv_finish(&env);
    strv_finish(&user);
    strv_finish(&missing);
}
