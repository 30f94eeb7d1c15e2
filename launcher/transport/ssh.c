/* launcher/transport/ssh.c - agents by ssh, one for each host
 *
 * The user's own ssh is run: it has the user's configuration, agent, jump hosts and
 * Kerberos. It never prompts (BatchMode), and the time to connect is limited.
 *
 * ssh has one exit code for all failures; the reason is in its messages: OpenSSH's are
 * looked up in a table. A message that is not in the table is shown as it is.
 */
#include "launcher/transport/transport.h"

#include "common/helper.h"
#include "common/installed.h"
#include "common/mem.h"
#include "launcher/transport/diagnose.h"
#include "launcher/transport/package.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECT_TIMEOUT_S = 10, VERSION_MS = 5000, SSH_FAILED = 255 };

/* "OpenSSH_9.2p1 ...": 9; 0 for anything else. Run once, and not for a wrapper. */
static int ssh_version(void)
{
    static int version = -1;
    if (version >= 0)
        return version;
    version = 0;
    struct helper h = {.argv = (const char *[]){"ssh", "-V", NULL},
                       .err_too = true,
                       .answer_ms = VERSION_MS,
                       .most = 64};
    OWNED char *output = NULL;
    size_t n;
    int status;
    if (helper_ask(&h, &output, &n, &status) == 0)
        sscanf(output, "OpenSSH_%d", &version);
    return version;
}

/* The user's and the site's configuration, then a cheap key exchange: see ssh_config,
 * which is installed beside the agent. */
static void push_config(const char *ssh, const char *agent, struct strv *argv)
{
    const char *slash = strrchr(agent, '/');
    if (strcmp(ssh, "ssh") != 0)
        return;
    OWNED char *path = slash ? xasprintf("%.*s/ssh_config", (int)(slash - agent), agent)
                             : installed_file(INSTALLED_PROGRAM, "ssh_config", R_OK);
    if (path && access(path, R_OK) == 0 && ssh_version() == 9) {
        strv_push(argv, "-F");
        strv_push(argv, path);
    }
}

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    const struct host *host = &hosts->hosts[nodes[0]];
    const char *agent = hosts->agent;
    OWNED char *copy = xstrdup(hosts->ssh);
    char *save = NULL;
    for (char *w = strtok_r(copy, " \t", &save); w; w = strtok_r(NULL, " \t", &save))
        strv_push(argv, w);
    push_config(hosts->ssh, agent, argv);
    strv_push(argv, "-T"); /* no terminal */
    strv_push(argv, "-x"); /* no X11 */
    strv_push(argv, "-oBatchMode=yes");
    strv_pushf(argv, "-oConnectTimeout=%d", CONNECT_TIMEOUT_S);
    if (host->port > 0) {
        strv_push(argv, "-p");
        strv_pushf(argv, "%u", host->port);
    }
    if (host->user) {
        strv_push(argv, "-l");
        strv_push(argv, host->user);
    }
    strv_push(argv, "--");
    strv_push(argv, host->name);
    /* the remote shell reads this; exec replaces the shell */
    struct ddp_err err;
    const struct package *pushed = agent_is_pushed(agent) ? package_get(&err) : NULL;
    OWNED char *quoted = shell_quote(agent);
    OWNED char *words = pushed ? package_command(pushed) : xasprintf("exec %s", quoted);
    strv_push(argv, words);
}

static const struct start_failure reasons[] = {
    {"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed",
     "if that is right, 'ssh-keygen -R HOST' and then 'ssh LOGIN' once", false},
    {"Host key verification failed", "its host key is not known here",
     "'ssh LOGIN' once by hand, to look at it and accept it", false},
    {"Could not resolve hostname", "the name cannot be resolved",
     "look for a misspelling, or in /etc/hosts and DNS", false},
    {"Permission denied", "permission denied",
     "'ssh LOGIN true' has to work without a password: ssh-copy-id, ssh-add", false},
    {"Too many authentication failures", "too many authentication failures",
     "name the right key in ~/.ssh/config (IdentitiesOnly)", false},
    {"Connection refused", "connection refused", "is sshd running there, on that port?",
     false},
    {"No route to host", "no route to it", "is it up, and in this network?", false},
    {"Network is unreachable", "its network is unreachable", "is it in this network?",
     false},
    {"timed out during banner exchange", "its sshd does not answer in time",
     "is it overloaded, or does it hang?", true},
    {"timed out", "no answer", "is it up, and does a firewall let ssh through?", false},
    {"Connection reset by peer", "sshd there has closed the connection before login",
     "is it overloaded (MaxStartups), or are we not welcome (AllowUsers)?", true},
    {"Connection closed by", "sshd there has closed the connection before login",
     "is it overloaded (MaxStartups), or are we not welcome (AllowUsers)?", true},
    {"Cannot execute command-line and remote command", "ssh has a RemoteCommand for it",
     "--ssh 'ssh -oRemoteCommand=none' leaves that out", false},
    {"kex_exchange_identification", "sshd there has closed the connection before login",
     "is it overloaded (MaxStartups), or are we not welcome (AllowUsers)?", true},
    {NULL}};

/* "permission denied (publickey,password)": the attempted methods follow. */
static void add_methods(const char *output, char *out, size_t size)
{
    const char *p = strstr(output, "Permission denied (");
    size_t n = p ? strcspn(p, ")") : 0;
    size_t have = strlen(out);
    if (p && p[n] == ')')
        snprintf(out + have, size - have, " %.*s",
                 (int)(n + 1 - strlen("Permission denied ")),
                 p + strlen("Permission denied "));
}

/* The ssh arguments that reach `host` as command() does. */
static char *login_of(const struct host *host)
{
    OWNED char *port = host->port ? xasprintf("-p %u ", host->port) : xstrdup("");
    return xasprintf("%s%s%s%s", port, host->user ? host->user : "",
                     host->user ? "@" : "", host->name);
}

/* `advice` with the host's name for HOST, and its user and port for LOGIN. */
static void add_advice(const char *advice, const struct host *host, char *out,
                       size_t size)
{
    OWNED char *login = login_of(host);
    size_t n = strlen(out);
    n += (size_t)snprintf(out + n, size - n, "; ");
    for (const char *p = advice; *p && n + 1 < size;) {
        bool is_host = strncmp(p, "HOST", 4) == 0, is_login = strncmp(p, "LOGIN", 5) == 0;
        if (is_host || is_login) {
            n += (size_t)snprintf(out + n, size - n, "%s", is_host ? host->name : login);
            p += is_host ? 4 : 5;
        } else {
            out[n++] = *p++;
            out[n] = '\0';
        }
    }
}

static bool diagnose(const struct msg_hosts *hosts, const struct host *host,
                     const char *output, int status, struct diagnosis *d)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    const struct start_failure *r =
        code == SSH_FAILED ? diagnose_failure(reasons, output) : NULL;
    *d = (struct diagnosis){.again = r && r->again};
    if (r) {
        snprintf(d->text, sizeof d->text, "%s: %s", host->name, r->cause);
        if (strcmp(r->words, "Permission denied") == 0)
            add_methods(output, d->text, sizeof d->text);
        add_advice(r->advice, host, d->text, sizeof d->text);
        return true;
    }
    char last[300];
    last_output_line(output, host->name, last, sizeof last);
    OWNED char *program = xstrndup(hosts->ssh, strcspn(hosts->ssh, " \t"));
    bool own = strcmp(basename(program), "ssh") != 0; /* of the user */
    diagnose_otherwise(host, hosts->agent, program, output, status, d);
    if ((!last[0] || strstr(last, "bootstrap")) && WIFEXITED(status) &&
        code != SSH_FAILED && code != EXIT_NOT_FOUND && code != EXIT_NOT_EXECUTABLE)
        add_advice(
            own ? "does this --ssh command run its arguments there?"
                : "try 'ssh LOGIN true': a start-up file of the shell there may exit, or read its input",
            host, d->text, sizeof d->text);
    return true;
}

const struct transport transport_ssh = {.name = "ssh",
                                        .tree = true,
                                        .talks = true,
                                        .lifeline = true,
                                        .command = command,
                                        .diagnose = diagnose};
