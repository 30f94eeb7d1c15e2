#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/transport/bootstrap_file.h"
#include "launcher/transport/diagnose.h"
#include "launcher/transport/transport.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- selection ---------------------------------------------------------------------- */

static void put_program(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    put_file(path, "#!/bin/sh\n");
    ck_assert_int_eq(chmod(path, 0755), 0);
    free(path);
}

static const struct {
    enum start_by asked;
    const char *source, *there, *name, *why;
} choices[] = {
    {BY_DEFAULT, "slurm", "srun", "srun",
     "the default in a job of slurm; --start ssh uses ssh"},
    {BY_DEFAULT, "slurm", "ls", "ssh",
     "the hosts are those of slurm, but its 'srun' is not in PATH"},
    {BY_DEFAULT, "sge", "qrsh", "qrsh",
     "the default in a job of sge; --start ssh uses ssh"},
    {BY_DEFAULT, "lsf", "blaunch", "blaunch",
     "the default in a job of lsf; --start ssh uses ssh"},
    {BY_DEFAULT, "pbs", "pbs_tmrsh", "tmrsh",
     "the default in a job of pbs; --start ssh uses ssh"},
    {BY_DEFAULT, "flux", "flux", "flux",
     "the default in a job of flux; --start ssh uses ssh"},
    {BY_DEFAULT, "-H", "srun", "ssh", "hosts from -H"},
    {BY_SSH, "slurm", "srun", "ssh", "--start ssh"},
    {BY_SRUN, "slurm", "ls", "srun", "--start srun"},
};

LOOP_TEST(the_schedulers_transport_comes_first, ARRAY_LEN(choices))
{
    struct ddp_err err;
    char why[200], *dir = temp_dir(), *path = xstrdup(getenv("PATH"));
    put_program(dir, choices[_i].there);
    setenv("PATH", dir, 1);
    const struct transport *t =
        transport_choose(choices[_i].asked, choices[_i].source, why, sizeof why, &err);
    setenv("PATH", path, 1);
    ck_assert_ptr_nonnull(t);
    ck_assert_str_eq(t->name, choices[_i].name);
    ck_assert_str_eq(why, choices[_i].why);
    free(path);
    free(dir);
}

TEST(a_transport_starts_only_on_its_schedulers_hosts)
{
    struct ddp_err err;
    char why[200];
    ck_assert_ptr_null(transport_choose(BY_QRSH, "slurm", why, sizeof why, &err));
    ck_assert_str_eq(err.text,
                     "--start qrsh starts on the hosts of a job of its scheduler "
                     "only, and these come from 'slurm'");
}

/* --- commands ----------------------------------------------------------------------- */

static struct host three[] = {{.name = (char[]){"n1"}, .port = 2222},
                              {.name = (char[]){"n2"}, .user = (char[]){"bob"}},
                              {.name = (char[]){"n3"}}};
static const struct msg_hosts hosts = {.agent = (char[]){"/opt/it's/ddprun-agent"},
                                       .ssh = (char[]){"ssh -p 2222"},
                                       .nhosts = 3,
                                       .hosts = three};

static const struct {
    const struct transport *transport;
    const char *env; /* NAME=value ... */
    size_t n;
    const char *command;
} commands[] = {
    {&transport_ssh, "", 1,
     "ssh -p 2222 -T -x -oBatchMode=yes -oConnectTimeout=10 -p 2222 -- n1 "
     "exec '/opt/it'\\''s/ddprun-agent'"},
    {&transport_srun, "", 3,
     "srun -N3 -n3 --ntasks-per-node=1 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent"},
    {&transport_srun, "SLURM_NTASKS=9 SLURM_JOB_NUM_NODES=3", 3,
     "srun -N3 -n3 --ntasks-per-node=1 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent"},
    /* a step has the GPUs of its tasks: as many as the job has */
    {&transport_srun, "SLURM_GPUS_PER_TASK=1 SLURM_NTASKS=9 SLURM_JOB_NUM_NODES=3", 3,
     "srun -N3 -n9 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent --once-per-node"},
    {&transport_srun, "SLURM_GPUS_PER_TASK=1 SLURM_NTASKS=9 SLURM_JOB_NUM_NODES=4", 3,
     "srun -N3 -n3 --ntasks-per-node=1 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent"},
    {&transport_srun,
     "SLURM_TRES_PER_TASK=cpu=2,gres/gpu:h100=1 SLURM_NTASKS=9 SLURM_JOB_NUM_NODES=3", 3,
     "srun -N3 -n9 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent --once-per-node"},
    {&transport_srun, "SLURM_TRES_PER_TASK=cpu=2 SLURM_NTASKS=9 SLURM_JOB_NUM_NODES=3", 3,
     "srun -N3 -n3 --ntasks-per-node=1 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent"},
    /* such a step would not have --no-kill */
    {&transport_srun, "OMPI_MCA_plm_slurm_args=--external-launcher", 3,
     "srun -N3 -n3 --ntasks-per-node=1 --nodelist=n[1-3] --no-kill /opt/it's/ddprun-agent"},
    {&transport_srun, "SLURM_HET_SIZE=2 SLURM_JOB_NODELIST_HET_GROUP_1=n[1-2]", 2,
     "srun -N2 -n2 --ntasks-per-node=1 --nodelist=n[1-2] --no-kill --het-group=1 "
     "/opt/it's/ddprun-agent"},
    {&transport_qrsh, "", 1, "qrsh -inherit -v PWD n1 exec '/opt/it'\\''s/ddprun-agent'"},
    {&transport_blaunch, "", 1, "blaunch n1 '/opt/it'\\''s/ddprun-agent'"},
    {&transport_tmrsh, "", 1, "pbs_tmrsh n1 /opt/it's/ddprun-agent"},
    {&transport_flux, "", 1,
     "flux env sh -c r=$(flux overlay lookup \"$0\") && exec flux exec -q -d / -r \"$r\" sh -c "
     "'unset CUDA_VISIBLE_DEVICES; v=$(tr \"\\0\" \"\\n\" </proc/$PPID/environ | grep "
     "^CUDA_VISIBLE_DEVICES=) && export \"$v\"; exec \"$0\"' \"$1\" n1 "
     "/opt/it's/ddprun-agent"},
};

static void put_env(const char *text)
{
    char *copy = xstrdup(text), *save = NULL;
    clearenv();
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '=');
        *eq = '\0';
        setenv(w, eq + 1, 1);
    }
    free(copy);
}

static char *joined(const struct strv *words)
{
    char *text = xstrdup(words->v[0]);
    for (size_t i = 1; i < words->n; i++) {
        char *longer = xasprintf("%s %s", text, words->v[i]);
        free(text);
        text = longer;
    }
    return text;
}

LOOP_TEST(the_command_of_each_transport, ARRAY_LEN(commands))
{
    static const unsigned nodes[] = {0, 1, 2};
    struct strv argv = {0};
    put_env(commands[_i].env);
    commands[_i].transport->command(&hosts, nodes, commands[_i].n, &argv);
    char *text = joined(&argv);
    ck_assert_str_eq(text, commands[_i].command);
    free(text);
    strv_finish(&argv);
}

/* Text after the number is listed only from 23.11 on. */
TEST(names_that_end_in_letters_are_not_compressed)
{
    struct host ib[] = {{.name = (char[]){"n1-ib"}}, {.name = (char[]){"n2-ib"}}};
    const struct msg_hosts two = {.agent = (char[]){"/agent"}, .nhosts = 2, .hosts = ib};
    static const unsigned nodes[] = {0, 1};
    struct strv argv = {0};
    clearenv();
    transport_srun.command(&two, nodes, 2, &argv);
    char *text = joined(&argv);
    ck_assert_str_eq(
        text, "srun -N2 -n2 --ntasks-per-node=1 --nodelist=n1-ib,n2-ib --no-kill /agent");
    free(text);
    strv_finish(&argv);
}

TEST(srun_gets_no_unintended_options)
{
    static const char *const gone[] = {
        "SLURM_NTASKS",        "SLURM_GPUS_PER_TASK",  "SLURM_CPUS_PER_TASK",
        "SLURM_STEP_ID",       "SRUN_CPUS_PER_TASK",   "SLURM_EXACT",
        "SLURM_TRES_PER_TASK", "CUDA_VISIBLE_DEVICES", "SLURM_HINT"};
    static const char *const stay[] = {"PATH",       "SLURM_JOB_ID",
                                       "SLURM_CONF", "SLURM_SPANK_X",
                                       "SLURMX",     "LD_LIBRARY_PATH"};
    struct strv ours = {0}, env = {0};
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        strv_pushf(&ours, "%s=1", gone[i]);
    for (size_t i = 0; i < ARRAY_LEN(stay); i++)
        strv_pushf(&ours, "%s=1", stay[i]);
    strv_push(&ours, "SLURM_CPU_BIND=cores");
    transport_srun.environment(ours.v, &env);
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        ck_assert_msg(!strv_env_get(&env, gone[i]), "%s", gone[i]);
    for (size_t i = 0; i < ARRAY_LEN(stay); i++)
        ck_assert_msg(strv_env_get(&env, stay[i]) != NULL, "%s", stay[i]);
    ck_assert_str_eq(strv_env_get(&env, "SLURM_CPU_BIND"), "none");
    ck_assert_str_eq(strv_env_get(&env, "SLURM_OVERLAP"), "1");
    clearenv();
    setenv("SLURM_OVERLAP", "1", 1);
    setenv("SLURM_JOB_ID", "1", 1);
    srun_unset_settings(); /* settings of srun are not passed to ranks */
    ck_assert_ptr_null(getenv("SLURM_OVERLAP"));
    ck_assert_ptr_nonnull(getenv("SLURM_JOB_ID"));
    strv_finish(&ours);
    strv_finish(&env);
}

/* --- diagnosis ---------------------------------------------------------------------- */

/* Recorded from Slurm 22.05. */
static const struct {
    const char *line, *hosts, *text; /* hosts NULL: no host is named */
    bool sure, follows;
} lines[] = {
    {"srun: error: node[002-003]: tasks 1-2: Exited with exit code 2", "node[002-003]",
     "the agent '/agent' is not there; install ddprun in the same place, or name its agent "
     "by --agent",
     false},
    {"srun: error: node002: task 1: Exited with exit code 13", "node002",
     "the agent '/agent' cannot be run there; install ddprun in the same place, or name "
     "its agent by --agent",
     false},
    {"srun: error: node003: task 2: Killed", "node003",
     "its agent has ended early: 'Killed'", false, true},
    {"srun: error: node[001,003]: tasks 0,2: Exited with exit code 120", "node[001,003]",
     "its agent got no input: srun waits until all nodes have connected to it", false,
     true},
    {"srun: error: Node failure on node002", "node002",
     "Slurm reports that the node has failed", true},
    {"srun: error: Task launch for StepId=2.0 failed on node node002: Communication "
     "connection failure",
     "node002", "Slurm cannot start a task there: Communication connection failure",
     true},
    {"ddprun-agent: node002: cannot call back: no route", "node002",
     "cannot call back: no route", true},
    {"ddprun-agent: these are not the words of a launcher", NULL, NULL, false},
    {"srun: error: Unable to create step for job 3: Invalid generic resource (gres) "
     "specification",
     NULL, NULL, false},
    {"srun: Job 3 step creation temporarily disabled, retrying", NULL, NULL, false},
};

LOOP_TEST(messages_of_srun_about_a_host, ARRAY_LEN(lines))
{
    struct blame b = {0};
    bool some = transport_srun.blame(lines[_i].line, "/agent", &b);
    ck_assert_int_eq(some, lines[_i].hosts != NULL);
    if (some) {
        ck_assert_str_eq(b.hosts, lines[_i].hosts);
        ck_assert_str_eq(b.text, lines[_i].text);
        ck_assert_int_eq(b.sure, lines[_i].sure);
        ck_assert_int_eq(b.follows, lines[_i].follows);
        ck_assert_int_eq(b.gone, strstr(lines[_i].line, "Node failure on") != NULL);
    }
    free(b.hosts);
}

static const struct {
    const struct transport *transport;
    const char *said;
    int status; /* as waitpid() has it */
    const char *text;
} ends[] = {
    {&transport_srun,
     "srun: error: Unable to create step for job 3: Invalid partition\nsrun: error: x\n",
     1 << 8, "n3: srun: error: x"},
    {&transport_srun, "", 9, "n3: srun died of SIGKILL"},
    {&transport_qrsh,
     "error: executing task of job 3 failed: failed sending task to execd@n3: can't find "
     "connection\n",
     1 << 8, "n3: its execution daemon does not answer; is the host up?"},
    {&transport_qrsh,
     "error: executing task of job 2 failed: execution daemon on host \"n3\" didn't accept "
     "task\n",
     1 << 8,
     "n3: Grid Engine starts no task of this job there: has its parallel environment "
     "'control_slaves TRUE'? --start ssh does without"},
    {&transport_qrsh, "error: commlib error: got pipe error\n", 1 << 8,
     "n3: error: commlib error: got pipe error"},
    {&transport_tmrsh, "pbs_tmrsh: host \"n3\" is not a node in job <7>\n", 255 << 8,
     "n3: PBS reports that it is not a node of this job"},
    {&transport_tmrsh, "", 125 << 8,
     "n3: the agent there has failed; see the job's error file"},
    {&transport_tmrsh, "", 120 << 8, /* its bootstrap file is incomplete */
     "n3: the agent there has failed; see the job's error file"},
    {&transport_tmrsh, "", 254 << 8, /* MOM's, when exec has failed */
     "n3: the agent '/agent' is not there; install ddprun in the same place, or name its "
     "agent by --agent"},
    {&transport_tmrsh, "", 127 << 8,
     "n3: the agent '/agent' is not there; install ddprun in the same place, or name its "
     "agent by --agent"},
    {&transport_flux, "flux-overlay: host n3 not found in host map\n", 1 << 8,
     "n3: this Flux job has no broker of that name; try --start ssh"},
    {&transport_flux, "n3: 1: exec: /agent: not found\n", 127 << 8,
     "n3: the agent '/agent' is not there; install ddprun in the same place, or name its "
     "agent by --agent"},
    {&transport_blaunch, "Host n3 is not in the allocation\n", 255 << 8,
     "n3: Host n3 is not in the allocation"},
    {&transport_blaunch, "ddprun-agent: n3: cannot call back: no route\n", 125 << 8,
     "n3: cannot call back: no route"},
};

LOOP_TEST(early_exits_are_diagnosed, ARRAY_LEN(ends))
{
    struct diagnosis d;
    const struct msg_hosts job = {.agent = (char[]){"/agent"}, .ssh = (char[]){"ssh"}};
    transport_diagnose(ends[_i].transport, &job, &three[2], ends[_i].said,
                       ends[_i].status, &d);
    ck_assert_str_eq(d.text, ends[_i].text);
    ck_assert(!d.again);
}

/* --- bootstrap file ----------------------------------------------------------------- */

TEST(a_bootstrap_file_is_private)
{
    struct bootstrap s = {.node = 3, .name = xstrdup("n3")}, t = {0};
    struct ddp_err err;
    struct stat st;
    char *home = temp_dir();
    setenv("HOME", home, 1);
    memset(s.key.bytes, 0xa5, sizeof s.key.bytes);
    strv_push(&s.calls, "10.0.0.1 4711");
    char *words = bootstrap_write(&s), *path = bootstrap_file_write(words, &err);
    ck_assert_msg(path != NULL, "%s", err.text);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(bootstrap_file_read(path, &t, &err), -1);
    ck_assert_ptr_nonnull(
        strstr(err.text, "must be a file of this user that others cannot read"));
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_ok(bootstrap_file_read(path, &t, &err), err);
    ck_assert(secret_equal(&s.key, &t.key));
    ck_assert_str_eq(t.name, "n3");
    ck_assert_int_eq(bootstrap_file_read(path, &t, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "is the home directory not shared?"));
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* nobody writes to it */
    ck_assert_int_eq(bootstrap_file_read(path, &t, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "must be a file of this user"));
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    path = bootstrap_file_write(words, &err);
    ck_assert_int_eq(truncate(path, 20), 0);
    ck_assert_int_eq(bootstrap_file_read(path, &t, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "': incomplete bootstrap: this program"));
    ck_assert_ptr_nonnull(strstr(err.text, path));
    bootstrap_file_remove(path);
    setenv("HOME", "/nonesuch", 1);
    ck_assert_ptr_null(bootstrap_file_write(words, &err));
    /* without a home: an absolute path */
    unsetenv("HOME");
    ck_assert_int_eq(chdir(home), 0);
    path = bootstrap_file_write(words, &err);
    ck_assert_msg(path != NULL, "%s", err.text);
    ck_assert_int_eq(path[0], '/');
    ck_assert_int_eq(chdir("/"), 0);
    ck_ok(bootstrap_file_read(path, &t, &err), err);
    free(words);
    free(path);
    free(home);
    bootstrap_finish(&s);
    bootstrap_finish(&t);
}

/* A directory that answers when it is no longer `held`; what was made in it then. */
static atomic_bool held;
static char *_Atomic late;
enum { ENOUGH_MS = 30000 };

static void rest(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

int mkostemp64(char *path, int flags)
{
    bool waits = held;
    while (held)
        rest();
    int (*of_libc)(char *, int) = (__typeof__(of_libc))dlsym(RTLD_NEXT, "mkostemp64");
    int fd = of_libc(path, flags);
    if (waits)
        late = xstrdup(path);
    return fd;
}

TEST(a_bootstrap_file_that_is_written_too_late_is_removed)
{
    struct ddp_err err;
    char *home = temp_dir();
    setenv("HOME", home, 1);
    held = true;
    ck_assert_ptr_null(bootstrap_file_write("x\n", &err));
    ck_assert_int_eq(errno, ETIMEDOUT);
    held = false;
    for (int ms = 0; (!late || access(late, F_OK) == 0) && ms < ENOUGH_MS; ms++)
        rest();
    ck_assert(late && access(late, F_OK) < 0);
    free(late);
    free(home);
}

/* --bootstrap may name any file; only files of bootstrap_file_write() are removed. */
TEST(another_file_is_not_removed)
{
    struct bootstrap s = {.node = 3, .name = xstrdup("n3")}, t = {0};
    struct ddp_err err;
    char *home = temp_dir(), *precious = xasprintf("%s/precious", home),
         *other = xasprintf("%s/.ddprun-other", home);
    setenv("HOME", home, 1);
    strv_push(&s.calls, "10.0.0.1 4711");
    char *words = bootstrap_write(&s), *path = bootstrap_file_write(words, &err);
    ck_assert_msg(path != NULL, "%s", err.text);
    ck_assert_int_eq(rename(path, precious), 0);
    ck_ok(bootstrap_file_read(precious, &t, &err), err);
    ck_assert_int_eq(access(precious, F_OK), 0);
    put_file(other, "a private key\nend\n");
    ck_assert_int_eq(chmod(other, 0600), 0);
    ck_assert_int_eq(bootstrap_file_read(other, &t, &err), -1);
    ck_assert_int_eq(access(other, F_OK), 0);
    free(words);
    free(path);
    free(precious);
    free(other);
    free(home);
    bootstrap_finish(&s);
    bootstrap_finish(&t);
}
