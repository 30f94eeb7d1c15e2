#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/transport/diagnose.h"
#include "launcher/transport/transport.h"
#include "launcher/transport/tree.h"

#include <stdlib.h>
#include <string.h>

static char agent[] = "/opt/ddprun-agent";
static struct host host_n1 = {.name = (char[]){"n1"}};

/* Recorded from OpenSSH 9.2. */
static const struct {
    const char *said;
    int code; /* exit status; negative: signal */
    const char *text;
    bool again;
} said[] = {
    {"ssh: Could not resolve hostname n1: Name or service not known\r\n", 255,
     "n1: the name cannot be resolved; look for a misspelling, or in /etc/hosts and DNS",
     false},
    {"ssh: connect to host n1 port 22: Connection refused\r\n", 255,
     "n1: connection refused; is sshd running there, on that port?", false},
    {"ssh: connect to host n1 port 22: No route to host\r\n", 255,
     "n1: no route to it; is it up, and in this network?", false},
    {"Connection timed out during banner exchange\r\n"
     "Connection to 10.0.0.1 port 22 timed out\r\n",
     255, "n1: its sshd does not answer in time; is it overloaded, or does it hang?",
     true},
    {"ssh: connect to host n1 port 22: Connection timed out\r\n", 255,
     "n1: no answer; is it up, and does a firewall let ssh through?", false},
    {"ssh: connect to host n1 port 22: Network is unreachable\r\n", 255,
     "n1: its network is unreachable; is it in this network?", false},
    {"alice@n1: Permission denied (publickey,password).\r\n", 255,
     "n1: permission denied (publickey,password); 'ssh n1 true' has to work without a "
     "password: ssh-copy-id, ssh-add",
     false},
    {"No ED25519 host key is known for n1 and you have requested strict checking.\r\n"
     "Host key verification failed.\r\n",
     255,
     "n1: its host key is not known here; 'ssh n1' once by hand, to look at it and accept "
     "it",
     false},
    {"@@@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
     "Host key verification failed.\r\n",
     255,
     "n1: its host key has changed; if that is right, 'ssh-keygen -R n1' and then 'ssh "
     "n1' once",
     false},
    {"kex_exchange_identification: read: Connection reset by peer\r\n"
     "Connection reset by 10.77.0.2 port 22\r\n",
     255,
     "n1: sshd there has closed the connection before login; is it overloaded "
     "(MaxStartups), or are we not welcome (AllowUsers)?",
     true},
    {"bash: line 1: /opt/ddprun-agent: No such file or directory\n", 127,
     "n1: the agent '/opt/ddprun-agent' is not there; install ddprun in the same place, "
     "or name its agent by --agent",
     false},
    {"/opt/ddprun-agent: Command not found.\n", 1,
     "n1: the agent '/opt/ddprun-agent' is not there; install ddprun in the same place, "
     "or name its agent by --agent",
     false},
    {"sh: 1: exec: /opt/ddprun-agent: Permission denied\n", 126,
     "n1: the agent '/opt/ddprun-agent' cannot be run there; install ddprun in the same "
     "place, or name its agent by --agent",
     false},
    {"motd\nddprun-agent: cannot call back: cannot connect to '10.0.0.1' port 9: No route "
     "to host\n",
     125,
     "n1: ddprun-agent: cannot call back: cannot connect to '10.0.0.1' port 9: No route "
     "to host",
     false},
    {"ddprun-agent: incomplete bootstrap: this program is started by ddprun\n", 125,
     "n1: ddprun-agent: incomplete bootstrap: this program is started by ddprun; try 'ssh n1 true': a "
     "start-up file of the shell there may exit, or read its input",
     false},
    {"Cannot execute command-line and remote command.\r\n", 255,
     "n1: ssh has a RemoteCommand for it; --ssh 'ssh -oRemoteCommand=none' leaves that out",
     false},
    {"something new\n\n", 255, "n1: something new", false},
    {"", 255, "n1: ssh ended with status 255 and no word", false},
    {"", 3,
     "n1: ssh ended with status 3 and no word; try 'ssh n1 true': a start-up file of the shell there may "
     "exit, or read its input",
     false},
    {"", -9, "n1: ssh died of SIGKILL", false},
};

LOOP_TEST(output_of_ssh_becomes_one_line, ARRAY_LEN(said))
{
    struct diagnosis d;
    int code = said[_i].code;
    const struct msg_hosts hosts = {.agent = agent, .ssh = (char[]){"ssh -v"}};
    transport_ssh.diagnose(&hosts, &host_n1, said[_i].said, code < 0 ? -code : code << 8,
                           &d);
    ck_assert_str_eq(d.text, said[_i].text);
    ck_assert_int_eq(d.again, said[_i].again);
    ck_assert_ptr_null(strchr(d.text, '\n'));
}

TEST(the_advice_names_user_and_port)
{
    struct host host = {.name = (char[]){"n1"}, .user = (char[]){"bob"}, .port = 2222};
    struct diagnosis d;
    const struct msg_hosts hosts = {.agent = agent, .ssh = (char[]){"ssh"}};
    transport_ssh.diagnose(&hosts, &host, "bob@n1: Permission denied (publickey).\r\n",
                           255 << 8, &d);
    ck_assert_ptr_nonnull(strstr(d.text, "'ssh -p 2222 bob@n1 true' has to work"));
}

TEST(a_command_of_the_user_is_named)
{
    struct diagnosis d;
    struct msg_hosts hosts = {.agent = agent, .ssh = (char[]){"/bin/false -q"}};
    transport_ssh.diagnose(&hosts, &host_n1, "", 1 << 8, &d);
    ck_assert_str_eq(d.text, "n1: /bin/false ended with status 1 and no word; does this "
                             "--ssh command run its arguments there?");
    hosts.ssh = (char[]){"/usr/bin/ssh"};
    transport_ssh.diagnose(&hosts, &host_n1, "", 1 << 8, &d);
    ck_assert_str_eq(
        d.text,
        "n1: /usr/bin/ssh ended with status 1 and no word; try 'ssh n1 true': a start-up file of the shell there may exit, or read its input");
}

static const struct {
    struct host host;
    const char *ssh, *agent, *command;
} commands[] = {
    {{.name = (char[]){"n1"}},
     "ssh",
     "/opt/agent",
     "ssh -T -x -oBatchMode=yes -oConnectTimeout=10 -- n1 'exec /opt/agent'"},
    {{.name = (char[]){"fd00::1"}, .user = (char[]){"bob"}, .port = 2222},
     "ssh  -F cfg",
     "/my dir/agent",
     "ssh -F cfg -T -x -oBatchMode=yes -oConnectTimeout=10 -p 2222 -l bob -- fd00::1 "
     "'exec '\\''/my dir/agent'\\'''"},
};

LOOP_TEST(the_command_names_host_user_and_port, ARRAY_LEN(commands))
{
    struct strv argv = {0};
    const unsigned node = 0;
    struct host host = commands[_i].host;
    const struct msg_hosts to = {.hosts = &host,
                                 .nhosts = 1,
                                 .ssh = (char *)(uintptr_t)commands[_i].ssh,
                                 .agent = (char *)(uintptr_t)commands[_i].agent};
    transport_ssh.command(&to, &node, 1, &argv);
    char *text = shell_join(argv.v);
    ck_assert_str_eq(text, commands[_i].command);
    free(text);
    strv_finish(&argv);
}

/* --- the tree ----------------------------------------------------------------------- */

static int times[64];

static void count_below(const struct tree_row *t, unsigned width, unsigned node)
{
    size_t first, n = tree_row_below(t, width, node, &first);
    ck_assert_uint_le(n, width);
    for (size_t i = 0; i < n; i++)
        times[t->nodes[first + i].node]++;
}

/* Every width and size, with every third host started by other means: each other host is
 * started exactly once, by an earlier one, and none starts more than k. */
LOOP_TEST(every_host_is_started_once, 6)
{
    unsigned width = (unsigned)_i + 1;
    struct host hosts[64] = {0};
    for (unsigned n = 0; n <= 40; n++) {
        struct msg_hosts h = {.nhosts = n, .hosts = hosts};
        struct tree_row row;
        memset(times, 0, sizeof times);
        for (unsigned i = 0; i < n; i++)
            hosts[i].started = i % 3 == 1;
        tree_row_init(&row, &h);
        count_below(&row, width, TREE_ROOT);
        for (unsigned i = 0; i < n; i++) {
            if (hosts[i].started)
                continue;
            ck_assert_msg(times[i] == 1, "width %u: host %u of %u", width, i, n);
            count_below(&row, width, i);
        }
        tree_row_finish(&row);
        for (unsigned i = 0; i < n; i++)
            ck_assert_int_eq(times[i], !hosts[i].started);
    }
}
