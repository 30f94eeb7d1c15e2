/* tests/soak/recover_rank.c - a rank that looks for traces of earlier attempts
 *
 *     recover_rank ROUNDS MS FLAGS
 *
 * ROUNDS times over MS milliseconds the ranks of an attempt meet in each way that ddprun
 * has: the store, a process group, PMI, and sockets of their own. What each says names
 * its attempt and WORLD_SIZE; a rank that gets another attempt's prints "WRONG ..." and
 * exits with 99. Letters of FLAGS: p use PMI-1; x use PMIx; e exit with 3 when a peer is
 * gone (else wait to be stopped); t ignore SIGTERM; l leave a process in another session
 * that ignores signals and goes on writing to the store, to PMI, to the peers and to
 * stdout.
 */
#include "include/ddprun/group.h"
#include "include/ddprun/store.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_PMIX
#include <pmix.h>
#endif

enum { TIMEOUT_MS = 60000, WRONG = 99, GONE = 3, LATE_MS = 5 };

/* What a rank says of itself, everywhere. */
struct me {
    int attempt, size, rank;
};

static struct me me;
static const char *flags;

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

/* One write: lines of a late process do not mix with ours. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    n = n < (int)sizeof line - 1 ? n : (int)sizeof line - 2;
    line[n] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)n + 1) < 0)
        _exit(GONE);
}

/* A peer is gone, or we are asked to end. */
static _Noreturn void gone(const char *where, const char *why)
{
    say("gone %d %s: %.300s", me.attempt, where, why);
    if (strchr(flags, 'e'))
        _exit(GONE);
    for (;;)
        pause();
}

static void expect(const char *where, int rank, struct me other)
{
    if (other.attempt == me.attempt && other.size == me.size && other.rank == rank)
        return;
    say("WRONG %s: attempt %d, rank %d of %d, received attempt %d, rank %d of %d in place "
        "of rank %d",
        where, me.attempt, me.rank, me.size, other.attempt, other.rank, other.size, rank);
    _exit(WRONG);
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* --- the store ---------------------------------------------------------------------- */

static struct ddp_store *store;

static void store_meet(const char *name, const void *data, size_t size,
                       struct ddp_value *values)
{
    struct ddp_err err;
    if (ddp_store_fence(store, name, me.rank, me.size, data, size, values, &err) < 0)
        gone("store", err.text);
}

static void store_round(int round)
{
    char name[40];
    int64_t n;
    struct ddp_err err;
    struct ddp_value *values = calloc((size_t)me.size, sizeof *values);
    snprintf(name, sizeof name, "round%d", round); /* the same in all attempts */
    store_meet(name, &me, sizeof me, values);
    for (int i = 0; i < me.size; i++)
        expect("store", i, *(struct me *)values[i].data);
    ddp_values_free(values, (size_t)me.size);
    free(values);
    snprintf(name, sizeof name, "count%d", round);
    if (ddp_store_add(store, name, 1, &n, &err) < 0)
        gone("store", err.text);
    if (n > me.size) {
        say("WRONG store: %lld of %d ranks have counted", (long long)n, me.size);
        _exit(WRONG);
    }
}

/* --- PMI-1 and PMIx ----------------------------------------------------------------- */

static FILE *pmi;

/* A command, and its answer in `text`. */
static void pmi_ask(char *text, size_t size, const char *command)
{
    if (fputs(command, pmi) < 0 || fflush(pmi) != 0 || !fgets(text, (int)size, pmi))
        gone("PMI", "no answer");
}

static void pmi_round(int round)
{
    char text[400], command[200];
    snprintf(command, sizeof command, "cmd=put kvsname=k key=r%d-%d value=%d/%d/%d\n",
             round, me.rank, me.attempt, me.size, me.rank);
    pmi_ask(text, sizeof text, command);
    pmi_ask(text, sizeof text, "cmd=barrier_in\n");
    for (int i = 0; i < me.size; i++) {
        struct me other = {-1, -1, -1};
        snprintf(command, sizeof command, "cmd=get kvsname=k key=r%d-%d\n", round, i);
        pmi_ask(text, sizeof text, command);
        const char *value = strstr(text, "value=");
        if (value)
            sscanf(value, "value=%d/%d/%d", &other.attempt, &other.size, &other.rank);
        expect("PMI", i, other);
    }
}

static void pmi_close(void)
{
    char text[400];
    pmi_ask(text, sizeof text, "cmd=finalize\n");
}

static void pmi_open(void)
{
    char text[400];
    int fd = number("PMI_FD");
    if (fd < 0 || !(pmi = fdopen(fd, "r+"))) {
        say("WRONG PMI: PMI_FD is not set");
        _exit(WRONG);
    }
    pmi_ask(text, sizeof text, "cmd=init pmi_version=1 pmi_subversion=1\n");
}

#ifdef HAVE_PMIX
static void pmix_check(pmix_status_t rc, const char *what)
{
    if (rc != PMIX_SUCCESS)
        gone(what, PMIx_Error_string(rc));
}

static void pmix_round(int round)
{
    char key[40], text[60];
    pmix_proc_t who;
    pmix_value_t value, *other;
    snprintf(key, sizeof key, "r%d", round);
    snprintf(text, sizeof text, "%d/%d/%d", me.attempt, me.size, me.rank);
    PMIX_VALUE_LOAD(&value, text, PMIX_STRING);
    pmix_check(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx put");
    PMIX_VALUE_DESTRUCT(&value);
    pmix_check(PMIx_Commit(), "PMIx commit");
    bool all = true;
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &all, PMIX_BOOL);
    pmix_check(PMIx_Fence(NULL, 0, &info, 1), "PMIx fence");
    PMIX_INFO_DESTRUCT(&info);
    for (int i = 0; i < me.size; i++) {
        struct me told = {-1, -1, -1};
        PMIX_LOAD_PROCID(&who, getenv("PMIX_NAMESPACE"), (pmix_rank_t)i);
        pmix_check(PMIx_Get(&who, key, NULL, 0, &other), "PMIx get");
        sscanf(other->data.string, "%d/%d/%d", &told.attempt, &told.size, &told.rank);
        PMIX_VALUE_RELEASE(other);
        expect("PMIx", i, told);
    }
}

static void pmix_close(void)
{
    pmix_check(PMIx_Finalize(NULL, 0), "PMIx finalize");
}

static void pmix_open(void)
{
    pmix_proc_t self;
    pmix_check(PMIx_Init(&self, NULL, 0), "PMIx init");
    if ((int)self.rank != me.rank) {
        say("WRONG PMIx: rank %d is %u", me.rank, self.rank);
        _exit(WRONG);
    }
}
#else
static void pmix_open(void) {}
static void pmix_close(void) {}
static void pmix_round(int round) {}
#endif

/* --- sockets in a ring: to the next rank, from the one before -------------------------
 */

static int to_next = -1, from_last = -1;
static struct sockaddr_in next;

static void ring_open(void)
{
    struct sockaddr_in mine = {.sin_family = AF_INET};
    socklen_t n = sizeof mine;
    struct ddp_value addr, *all = calloc((size_t)me.size, sizeof *all);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char host[64] = "";
    if (bind(fd, (struct sockaddr *)&mine, sizeof mine) < 0 || listen(fd, 16) < 0 ||
        getsockname(fd, (struct sockaddr *)&mine, &n) < 0)
        _exit(2);
    gethostname(host, sizeof host - 1); /* node007 has 10.77.0.7 */
    int number = strncmp(host, "node", 4) == 0 ? atoi(host + 4) : 0;
    mine.sin_addr.s_addr =
        htonl(number ? 0x0a4d0000u + (unsigned)number : INADDR_LOOPBACK);
    store_meet("ring", &mine, sizeof mine, all);
    addr = all[(me.rank + 1) % me.size];
    memcpy(&next, addr.data, sizeof next);
    ddp_values_free(all, (size_t)me.size);
    free(all);
    to_next = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(to_next, (struct sockaddr *)&next, sizeof next) < 0)
        gone("ring", "cannot connect");
    from_last = accept(fd, NULL, NULL);
}

static void ring_round(void)
{
    struct me other;
    if (send(to_next, &me, sizeof me, MSG_NOSIGNAL) != sizeof me ||
        recv(from_last, &other, sizeof other, MSG_WAITALL) != sizeof other)
        gone("ring", "a neighbour is gone");
    expect("ring", (me.rank + me.size - 1) % me.size, other);
}

/* --- the group ---------------------------------------------------------------------- */

static struct ddp_group *group;

static void group_round(int round)
{
    struct ddp_err err;
    int32_t sums[3] = {me.attempt, me.rank, round};
    if (ddp_all_reduce(group, sums, 3, DDP_I32, DDP_SUM, &err) < 0)
        gone("group", err.text);
    if (sums[0] == me.attempt * me.size && sums[1] == me.size * (me.size - 1) / 2 &&
        sums[2] == round * me.size)
        return;
    say("WRONG group: sums %d %d %d in attempt %d, round %d, of %d", sums[0], sums[1],
        sums[2], me.attempt, round, me.size);
    _exit(WRONG);
}

/* --- a process that stays behind ------------------------------------------------------
 */

/* What our rank would say in other rounds: a rank of this attempt may read it. */
static void late_store(int rounds)
{
    struct ddp_err err;
    struct ddp_store *s = ddp_store_connect(NULL, 0, 300, &err);
    char name[40];
    for (int i = 0; s && i <= rounds; i++) {
        snprintf(name, sizeof name, "round%d/%d", i, me.rank);
        if (ddp_store_set(s, name, &me, sizeof me, &err) < 0)
            break;
        pause_ms(LATE_MS);
    }
    ddp_store_close(s);
}

static void late_pmi(int rounds)
{
    char text[100];
    for (int i = 1; i <= rounds; i++) {
        int n =
            snprintf(text, sizeof text, "cmd=put kvsname=k key=r%d-%d value=%d/%d/%d\n",
                     i, me.rank, me.attempt, me.size, me.rank);
        if (send(fileno(pmi), text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return;
    }
}

static void late(int rounds)
{
    for (int sig = 1; sig < 32; sig++)
        signal(sig, SIG_IGN);
    setsid();
    if (fork() != 0)
        _exit(0);
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&next, sizeof next) == 0)
            (void)!send(fd, &me, sizeof me, MSG_NOSIGNAL);
        if (pmi)
            late_pmi(rounds);
        say("late %d", me.attempt);
        late_store(rounds);
        close(fd);
    }
}

/* It begins when its rank has ended. */
static void leave_one(int rounds)
{
    pid_t rank = getpid();
    if (fork() != 0)
        return;
    while (kill(rank, 0) == 0 && getppid() == rank)
        pause_ms(LATE_MS);
    late(rounds);
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    if (argc < 4)
        return 2;
    int rounds = atoi(argv[1]), ms = atoi(argv[2]);
    flags = argv[3];
    me = (struct me){number("TORCHELASTIC_RESTART_COUNT"), number("WORLD_SIZE"),
                     number("RANK")};
    if (strchr(flags, 't'))
        signal(SIGTERM, SIG_IGN);
    say("up %d %d %d", me.attempt, me.size, me.rank);
    if (!(store = ddp_store_connect(NULL, 0, TIMEOUT_MS, &err)))
        gone("store", err.text);
    store_round(0);
    ring_open();
    if (strchr(flags, 'p'))
        pmi_open();
    if (strchr(flags, 'x'))
        pmix_open();
    struct ddp_group_options o = {.rank = -1, .timeout_ms = TIMEOUT_MS};
    if (!(group = ddp_group_init(&o, &err)))
        gone("group", err.text);
    if (strchr(flags, 'l'))
        leave_one(rounds);
    for (int i = 1; i <= rounds; i++) {
        store_round(i);
        group_round(i);
        ring_round();
        if (pmi)
            pmi_round(i);
        if (strchr(flags, 'x'))
            pmix_round(i);
        pause_ms(ms / rounds);
    }
    store_round(rounds + 1);
    if (pmi)
        pmi_close();
    if (strchr(flags, 'x'))
        pmix_close();
    say("done %d %d %d", me.attempt, me.size, me.rank);
    return 0;
}
