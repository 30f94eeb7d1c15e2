/* rendezvous/main.c - ddpstored: the store as a program of its own */
#define LOG_SUBSYS "store"

#include "common/duration.h"
#include "common/err.h"
#include "common/hostlist.h"
#include "common/hostset.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/output_path.h"
#include "common/refusals.h"
#include "common/size.h"
#include "common/sock.h"
#include "common/sockdiag.h"
#include "common/stdout.h"
#include "common/text_file.h"
#include "rendezvous/server/server.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_CANNOT_START = 125 };

struct opts {
    struct server_options server;
    const char *port_file, *log_levels;
    struct strv allow; /* owned: hosts that may connect besides this one */
    bool open;
    int64_t grace_ms;
};

/* -- options ------------------------------------------------------------------------ */

enum {
    OPT_MAX_KEY = 256,
    OPT_MAX_VALUE,
    OPT_MAX_LIST,
    OPT_MAX_MEMORY,
    OPT_MAX_CONNECTIONS,
    OPT_PORT_FILE,
    OPT_DIALECT,
    OPT_LOG_LEVEL,
    OPT_GRACE,
    OPT_ALLOW,
    OPT_OPEN,
};

static const struct argp_option options[] = {
    {"host", 'H', "ADDR", 0,
     "listen on this address only (default: loopback; with --allow or --open every "
     "interface)",
     1},
    {"allow", OPT_ALLOW, "HOSTS", 0,
     "also admit clients on these hosts, as 'n[01-16],10.0.0.7' (default: only those of "
     "the same user on this machine)",
     1},
    {"open", OPT_OPEN, NULL, 0, "admit every client that reaches the port", 1},
    {"port", 'p', "PORT", 0, "port (default 29500; 0: any free one)", 1},
    {"port-file", OPT_PORT_FILE, "FILE", 0,
     "write the port there once it is open, instead of printing it", 1},
    {"dialect", OPT_DIALECT, "NAME", 0,
     "how clients speak that do not begin as PyTorch >= 2.2 does: auto (default), d0 "
     "(up to 2.0), d2 (2.1), d3 (close them)",
     1},
    {"max-connections", OPT_MAX_CONNECTIONS, "N", 0,
     "refuse more (default: what 'ulimit -n' allows)", 2},
    {"max-key", OPT_MAX_KEY, "BYTES", 0, "longest key (default 8k)", 2},
    {"max-value", OPT_MAX_VALUE, "BYTES", 0, "longest value in a request (default 8m)",
     2},
    {"max-list", OPT_MAX_LIST, "N", 0, "most keys in a request (default 128k)", 2},
    {"max-memory", OPT_MAX_MEMORY, "BYTES", 0, "keys and values in all (default 8g)", 2},
    {"grace", OPT_GRACE, "TIME", 0,
     "how long SIGTERM lets clients finish (default 5s); a second one ends at once", 3},
    {"log-level", OPT_LOG_LEVEL, "LEVEL", 0, "error, warn (default), info, debug", 3},
    {0}};

static size_t parse_size(const struct argp_state *state, const char *name,
                         const char *text)
{
    struct ddp_err err;
    int64_t bytes;
    if (size_parse(text, &bytes, &err) < 0)
        argp_error(state, "--%s: %s", name, err.text);
    else if (bytes == 0)
        argp_error(state, "--%s: '%s' is too small", name, text);
    return (size_t)bytes;
}

static int parse_port(const struct argp_state *state, const char *text)
{
    int port = 0;
    if (!number_whole(text, 0, 65535, &port))
        argp_error(state, "--port: '%s' is not a port (0 to 65535)", text);
    return port;
}

static enum dialect_rule parse_dialect(const struct argp_state *state, const char *text)
{
    static const char *const names[] = {[DIALECT_AUTO] = "auto",
                                        [DIALECT_D0] = "d0",
                                        [DIALECT_D2] = "d2",
                                        [DIALECT_D3] = "d3"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i], text) == 0)
            return (enum dialect_rule)i;
    }
    argp_error(state, "--dialect: '%s' is not one of auto, d0, d2, d3", text);
    return DIALECT_AUTO;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct opts *o = state->input;
    size_t before = o->allow.n;
    struct ddp_err err;
    switch (key) {
    case 'H':
        o->server.addr = arg;
        return 0;
    case 'p':
        o->server.port = parse_port(state, arg);
        return 0;
    case OPT_PORT_FILE:
        o->port_file = arg;
        return 0;
    case OPT_DIALECT:
        o->server.dialect = parse_dialect(state, arg);
        return 0;
    case OPT_MAX_CONNECTIONS:
        o->server.max_connections = parse_size(state, "max-connections", arg);
        return 0;
    case OPT_MAX_KEY:
        o->server.max_key = parse_size(state, "max-key", arg);
        return 0;
    case OPT_MAX_VALUE:
        o->server.max_value = parse_size(state, "max-value", arg);
        return 0;
    case OPT_MAX_LIST:
        o->server.max_list = parse_size(state, "max-list", arg);
        return 0;
    case OPT_MAX_MEMORY:
        o->server.max_memory = parse_size(state, "max-memory", arg);
        return 0;
    case OPT_GRACE:
        if (duration_parse(arg, &o->grace_ms, &err) < 0)
            argp_error(state, "--grace: %s", err.text);
        return 0;
    case OPT_ALLOW:
        if (hostlist_expand(arg, &o->allow, &err) < 0)
            argp_error(state, "--allow: %s", err.text);
        if (o->allow.n == before)
            argp_error(state, "--allow: '%s' names no host", arg);
        return 0;
    case OPT_OPEN:
        o->open = true;
        return 0;
    case OPT_LOG_LEVEL:
        o->log_levels = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one word too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    options,
    parse_option,
    NULL,
    "The rendezvous store: a table of keys and values where the ranks of a job meet. It "
    "speaks PyTorch's TCPStore protocol, old and new, on one port, and prints that port "
    "once it is open.",
    NULL,
    NULL,
    NULL};

/* -- the program -------------------------------------------------------------------- */

struct program {
    struct loop *loop;
    struct server *server;
    struct event *term, *intr; /* owned */
    struct hostset *allow;     /* owned */
    int netlink;               /* owned; -1: none */
    struct refusals refusals;
    int64_t grace_ms;
    bool draining;
};

static void on_notice(const char *line, void *arg)
{
    log_warn("%s", line);
}

static bool is_own_address(const struct sockaddr *addr)
{
    char text[INET6_ADDRSTRLEN], own[INET6_ADDRSTRLEN];
    sock_addr(addr, text, sizeof text);
    enum sock_own is = sock_own_addr(text, now_ms(), own, sizeof own);
    return is == SOCK_OWN || is == SOCK_LOOPBACK;
}

/* On this machine the kernel knows the user of the other end; of other machines only the
 * address is known. A client here that has closed its socket already cannot be
 * identified: the kernel reports user 0, or no socket after a reset. */
static void on_connection(struct server_ticket *ticket, const struct sockaddr *peer,
                          const struct sockaddr *local, void *arg)
{
    struct program *p = arg;
    struct sock_owner owner;
    char why[160] = "it comes from another machine, which --allow does not name";
    bool yes = false, found = sockdiag_find(p->netlink, peer, local, &owner, NULL) == 0;
    if (found ? owner.inode == 0 : is_own_address(peer)) {
        snprintf(why, sizeof why, "its socket has been closed already");
    } else if (found) {
        yes = owner.uid == geteuid() || owner.uid == 0;
        snprintf(why, sizeof why,
                 "its user is %u, ddpstored's is %u; --open admits every client",
                 (unsigned)owner.uid, (unsigned)geteuid());
    } else {
        yes = hostset_has(p->allow, peer);
        OWNED char *lost = yes ? NULL : hostset_unresolved(p->allow);
        if (lost)
            snprintf(why, sizeof why,
                     "it comes from another machine, and '%.60s' of --allow cannot be "
                     "resolved",
                     lost);
    }
    server_admit(ticket, yes, 0, why);
}

static void on_refused(const struct sockaddr *peer, const char *why, void *arg)
{
    struct program *p = arg;
    OWNED char *line = refusals_line(&p->refusals, peer, "the store", why);
    if (line)
        log_warn("%s", line);
}

static void on_drained(size_t closed, void *arg)
{
    struct program *p = arg;
    if (closed > 0)
        log_warn("%zu connection%s still open at the end of the grace time", closed,
                 closed == 1 ? " was" : "s were");
    loop_stop(p->loop, 0);
}

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
    struct program *p = arg;
    if (p->draining) {
        loop_stop(p->loop, 0);
        return;
    }
    p->draining = true;
    struct server_stats st = server_stats(p->server);
    log_info("%s: %zu connections, %zu waiters, %zu keys, %zu bytes, %" PRIu64
             " requests served",
             strsignal(signo), st.connections, st.waiters, st.keys, st.bytes,
             st.requests);
    server_drain(p->server, p->grace_ms, on_drained, p);
}

/* A misspelt name would show only when a client is refused. */
static void warn_of_unresolved(struct hostset *allow)
{
    hostset_resolve(allow);
    OWNED char *names = hostset_unresolved(allow);
    if (names)
        log_warn("--allow: cannot resolve '%s'; until that succeeds clients there are "
                 "refused",
                 names);
}

/* Raise the limit of descriptors: each client needs one. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int announce(const char *path, int port, struct ddp_err *err)
{
    if (!path) {
        if (printf("%d\n", port) >= 0 && fflush(stdout) == 0)
            return 0;
        clearerr(stdout); /* or stdout_must_arrive() reports it, too */
        return err_errno(err, "cannot print the port");
    }
    const char *why = output_path_check(path, OUTPUT_PATH_REPLACED);
    if (why)
        return err_set(err, "cannot write the port to '%s': %s", path, why);
    char text[16];
    int n = snprintf(text, sizeof text, "%d\n", port);
    return text_file_replace(path, text, (size_t)n, 0666) < 0
               ? err_errno(err, "cannot write the port to '%s'", path)
               : 0;
}

/* Advice for common errors; `error` is errno. */
static void advise_on_port(int error, const struct opts *o, struct ddp_err *err)
{
    const struct ddp_err was = *err;
    if (error == EADDRINUSE)
        err_set(err,
                "%s; 'ss -ltnp sport = :%d' shows its owner, --port 0 takes a free one "
                "and prints it",
                was.text, o->server.port);
}

static void program_finish(struct program *p)
{
    loop_free(p->term);
    loop_free(p->intr);
    server_destroy(p->server);
    if (p->loop)
        loop_destroy(p->loop);
    hostset_destroy(p->allow);
    close_fd(&p->netlink);
}

static int program_run(const struct opts *o, struct ddp_err *err)
{
    SCOPED(program_finish)
    struct program p = {.grace_ms = o->grace_ms,
                        .netlink = sockdiag_open(),
                        .allow = hostset_create(&o->allow)};
    struct server_options so = o->server;
    p.loop = loop_create(err);
    if (!p.loop)
        return -1;
    so.notice = on_notice;
    so.refused = on_refused;
    so.notice_arg = so.ask_arg = &p;
    so.ask = o->open ? NULL : on_connection;
    so.local_only = !o->open && !so.addr && o->allow.n == 0;
    p.server = server_create(p.loop, &so, err);
    if (!p.server) {
        advise_on_port(errno, o, err);
        return -1;
    }
    p.term = loop_watch(p.loop, SIGTERM, EV_SIGNAL | EV_PERSIST, on_signal, &p);
    p.intr = loop_watch(p.loop, SIGINT, EV_SIGNAL | EV_PERSIST, on_signal, &p);
    log_info("listening on %s port %d",
             so.addr         ? so.addr
             : so.local_only ? "loopback,"
                             : "every interface,",
             server_port(p.server));
    TRY(announce(o->port_file, server_port(p.server), err));
    warn_of_unresolved(p.allow);
    return loop_run(p.loop);
}

int main(int argc, char **argv)
{
    struct opts o = {.server = {.port = 29500}, .grace_ms = 5000};
    struct ddp_err err;
    stdout_must_arrive("ddpstored");
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = "ddpstored " DDPSTORED_VERSION;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (log_setup("ddpstored", NULL, o.log_levels, &err) < 0) {
        log_error("%s", err.text);
        return EXIT_USAGE;
    }
    raise_descriptor_limit();
    if (program_run(&o, &err) < 0) {
        log_error("%s", err.text);
        return EXIT_CANNOT_START;
    }
    return EXIT_SUCCESS;
}
