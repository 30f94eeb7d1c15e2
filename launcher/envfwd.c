/* launcher/envfwd.c - see envfwd.h
 *
 * The default is to forward everything, as Hydra, srun and horovodrun do: a variable that
 * is missing on some hosts is hard to find, a superfluous one costs a few bytes.
 */
#include "launcher/envfwd.h"

#include "common/mem.h"

#include <string.h>

/* '*' at the end of a name matches any rest. */
static const struct {
    const char *name;
    const char *why;
} stays[] = {
    {"HOSTNAME", "the name of the machine ddprun runs on"},
    {"HOST", "the same, as zsh and csh call it"},
    {"SSH_*", "sockets, terminal and client of the login session"},
    {"DISPLAY", "an X server that other hosts cannot reach by this name"},
    {"WAYLAND_DISPLAY", "a socket of this machine"},
    {"XAUTHORITY", "a file of the login session"},
    {"XDG_RUNTIME_DIR", "a directory that exists while one is logged in here"},
    {"XDG_SESSION_*", "the login session"},
    {"XDG_SEAT", "the login session"},
    {"XDG_VTNR", "the login session"},
    {"DBUS_SESSION_BUS_ADDRESS", "a socket of this machine"},
    {"DBUS_STARTER_*", "a socket of this machine"},
    {"GPG_AGENT_INFO", "a socket of this machine"},
    {"GPG_TTY", "the terminal of this login"},
    {"KRB5CCNAME", "a credential cache of this login; ssh makes its own there"},
    {"TMUX", "a socket of this machine"},
    {"TMUX_PANE", "the terminal of this login"},
    {"STY", "a socket of this machine (screen)"},
    {"WINDOWID", "the terminal of this login"},
    {"SESSION_MANAGER", "a socket of this machine"},
    {"INVOCATION_ID", "the systemd unit that runs here"},
    {"JOURNAL_STREAM", "a socket of this machine"},
    {"NOTIFY_SOCKET", "a socket of this machine"},
    {"LISTEN_*", "descriptors of this process (systemd)"},
    {"PWD", "set to the directory each rank starts in"},
    {"OLDPWD", "where the shell was before"},
    {"SHLVL", "how deep the shell is"},
    {"_", "the shell's last command"},
    {"MAIL", "a file of this machine"},
    {"TMPDIR", "batch systems make one for the job on each host, with its own name"},
    {"TMP", "like TMPDIR"},
    {"TEMP", "like TMPDIR"},
    {"TTY", "the terminal of this login"},
    {"CUDA_VISIBLE_DEVICES", "devices of this machine; other hosts have their own"},
    {"ROCR_VISIBLE_DEVICES", "likewise"},
    {"SLURM_TOPOLOGY_ADDR*", "the place of this node in the network"},
    {"SLURMD_NODENAME", "the name of this node"},
    {"FLUX_URI", "a socket of this machine"},
    {"FLUX_START_URI", "a socket of this machine"},
    {"FLUX_JOB_TMPDIR", "a directory of this node"},
    {"PBS_NODENUM", "the number of this node in its job"},
    {"PBS_TASKNUM", "what MOM counts on this node"},
    {"PBS_MOMPORT", "the MOM of this node"},
    {"NCPUS", "the CPUs that PBS gives to a job on this node"},
};

static size_t name_len(const char *entry)
{
    return strcspn(entry, "=");
}

static const char *why_stays(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(stays); i++) {
        if (strv_env_match(stays[i].name, name, len))
            return stays[i].why;
    }
    return NULL;
}

const char *envfwd_stays(const char *name)
{
    return why_stays(name, strlen(name));
}

void envfwd_print(FILE *out)
{
    for (size_t i = 0; i < ARRAY_LEN(stays); i++)
        fprintf(out, "  %-32s %s\n", stays[i].name, stays[i].why);
}

static const char *value_in(char *const *env, const char *name, size_t len)
{
    for (; *env; env++) {
        if (name_len(*env) == len && memcmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    }
    return NULL;
}

bool envfwd_of_chunk(char *const *env, const char *threads)
{
    const char *chunk = value_in(env, "PBS_JOBID", strlen("PBS_JOBID"))
                            ? value_in(env, "NCPUS", strlen("NCPUS"))
                            : NULL;
    return chunk && threads && strcmp(chunk, threads) == 0;
}

/* Apply one -x: "NAME=value", or "NAME" with the value of the environment. */
static void export_one(const char *what, char *const *environ_, struct strv *env,
                       struct strv *user_set, struct strv *missing)
{
    size_t len = name_len(what);
    OWNED char *name = xstrndup(what, len);
    const char *value = what[len] == '=' ? what + len + 1 : value_in(environ_, what, len);
    struct strv *list = value ? user_set : missing;
    if (value)
        strv_env_set(env, name, value);
    if (list)
        strv_push(list, name);
}

void envfwd_collect(char *const *environ_, const struct strv *export_env, bool travels,
                    struct strv *env, struct strv *user_set, struct strv *missing)
{
    static const char threads[] = "OMP_NUM_THREADS";
    for (char *const *e = environ_; *e; e++) {
        if ((*e)[name_len(*e)] == '=' && !(travels && why_stays(*e, name_len(*e))))
            strv_push(env, *e);
    }
    if (travels &&
        envfwd_of_chunk(environ_, value_in(environ_, threads, strlen(threads))))
        strv_env_set(env, threads, NULL);
    for (size_t i = 0; i < export_env->n; i++)
        export_one(export_env->v[i], environ_, env, user_set, missing);
}
