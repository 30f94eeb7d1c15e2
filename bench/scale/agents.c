/* bench/scale/agents.c - one process that simulates the agents of a whole cluster
 *
 * ddprun starts it as its "srun" (scale.py puts it on PATH under that name), with the
 * bootstrap lines of all nodes on stdin. It opens the links to the launcher, one per node
 * at the top of the tree, and uses the real protocol over them: handshake, sealed
 * records, and all messages of an agent whose ranks start, pass two fences, are idle for
 * a while and exit. Links between agents are function calls here, and ranks are numbers.
 *
 * A phase ends when every node is through with it. What the launcher has used by then
 * goes to SCALE_REPORT as JSON, with the frames of each type that it sent (down) and
 * received (up). SCALE_SECONDS is the duration of the quiet phase, SCALE_BYTES what each
 * rank contributes to the second fence, SCALE_LINE the length of a line that it prints.
 *
 * With SCALE_NETNS the first node is a real one: its agent, SCALE_AGENT, serves the job's
 * store. The others are in that network namespace, each with an address of its own, and
 * SCALE_LOAD simulates their ranks, which join the store in the only phase after the
 * launch. The simulated agents vouch for all of them.
 */
#include "bench/scale/sim.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* connections under way at once; seconds until a stuck launch is given up */
enum { WINDOW = 256, LIMIT_S = 500 };

/* after the last message of a phase that this process waits for */
enum { SETTLE_MS = 20 };

/* master's port, of a store without clients */
enum { STORE_PORT = 29500 };

static const char *const phase_names[PHASES] = {"start", "launch", "barrier", "exchange",
                                                "quiet", "join",   "end"};

/* of a simulated store, and with a real one */
static const bool has_phase[2][PHASES] = {{true, true, true, true, true, false, true},
                                          {[LAUNCH] = true, [JOIN] = true, [END] = true}};

_Noreturn void give_up(const char *why)
{
    fprintf(stderr, "agents: %s\n", why);
    exit(1);
}

/* 10.99.0.1 is that of node 0; the others follow */
#define FIRST_ADDRESS 0x0a630001

struct in_addr node_address(unsigned number)
{
    return (struct in_addr){htonl(FIRST_ADDRESS + number)};
}

/* --- phases ------------------------------------------------------------------------- */

static void sample(struct sim *s, struct sample *into)
{
    *into = s->closed;
    sample_process(s->launcher, into);
    for (unsigned i = 0; i < s->n; i++) {
        if (s->nodes[i].up)
            sample_socket(s->nodes[i].fd, into);
    }
}

static void send_up(const struct frame *f, void *arg)
{
    struct node *top = arg;
    struct traffic *t = &top->sim->up[top->sim->phase][f->type];
    t->frames++;
    t->bytes += f->size;
    link_send(top->up, f->type, f->node, f->body, f->size, NULL, 0);
}

/* node_send(n, MSG(...)) */
static void node_send(struct node *n, enum msg_type type, const void *m)
{
    struct pack k = {0};
    msg_pack(type, m, &k);
    struct frame f = {.type = type, .node = n->number, .body = k.p, .size = k.n};
    if (n->top->merge)
        merge_up(n->top->merge, &f);
    else
        send_up(&f, n->top);
    pack_finish(&k);
}

static void send_fence(struct node *n, size_t nbytes)
{
    uint8_t *data = xcalloc(1, nbytes + 1);
    const char *key = phase_names[n->sim->phase];
    node_send(n, MSG(fence, .service = SERVICE_PMI, .key = (const uint8_t *)key,
                     .nkey = (uint32_t)strlen(key), .data = data,
                     .ndata = (uint32_t)nbytes));
    free(data);
}

/* What an agent reports of a rank that prints a line and exits. */
static void send_exits(struct node *n)
{
    for (uint32_t i = 0; i < n->share.nlocal; i++) {
        uint32_t rank = n->share.ranks[i].rank;
        if (n->sim->nline > 0)
            node_send(n, MSG(output, rank, 0, n->sim->line, n->sim->nline));
        for (unsigned stream = 0; stream < 2; stream++)
            node_send(n, MSG(output, rank, stream));
        node_send(n, MSG(exit, .rank = rank, .at_ns = now_ns(), .peak_kib = 1000));
    }
}

/* The first node serves the store. */
static void send_ready(struct node *n)
{
    node_send(n, MSG(store_ready, (char[]){"10.0.0.1"}, STORE_PORT, STORE_PORT + 1));
}

static void phase_begin(struct sim *s)
{
    if (s->phase == LAUNCH)
        send_ready(&s->nodes[0]);
    if (s->phase == JOIN)
        real_clients_start(s);
    if (s->phase == QUIET) {
        s->done_ns = now_ns() + s->seconds * INT64_C(1000000000);
        event_add(s->timer, &(struct timeval){s->seconds, 0});
    }
    for (unsigned i = 0; i < s->n; i++) {
        struct node *n = &s->nodes[i];
        if (s->phase == BARRIER)
            send_fence(n, 0);
        else if (s->phase == EXCHANGE)
            send_fence(n, (size_t)n->share.nlocal * s->nbytes);
        else if (s->phase == END)
            send_exits(n);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct sim *s = arg;
    struct sample *now = &s->samples[s->phase + 1];
    sample(s, now);
    now->at_ns = s->done_ns;
    s->done = 0;
    if (s->phase == END) {
        loop_stop(s->loop, 0);
        return;
    }
    do
        s->phase++;
    while (!has_phase[s->agent > 0][s->phase]);
    phase_begin(s);
}

void phase_end(struct sim *s)
{
    s->done_ns = now_ns();
    event_add(s->timer, &(struct timeval){0, SETTLE_MS * 1000});
}

static void phase_count(struct sim *s)
{
    if (++s->done == s->n)
        phase_end(s);
}

/* --- messages ----------------------------------------------------------------------- */

static void send_hello(struct node *n)
{
    char addr[INET_ADDRSTRLEN];
    struct in_addr in = node_address(n->number);
    inet_ntop(AF_INET, &in, addr, sizeof addr);
    struct msg_hello m = {.protocol = LINK_PROTOCOL,
                          .version = xstrdup("simulated"),
                          .at_ns = now_ns(),
                          .hostname = xasprintf("node%u", n->number),
                          .ncpus = 64,
                          .ngpus = 8,
                          .addr = xstrdup(addr)};
    strv_push(&m.addrs, addr);
    node_send(n, MSG_HELLO, &m);
    msg_hello_finish(&m);
}

static void on_ping(struct node *n, const struct frame *f)
{
    struct msg_ping m;
    struct ddp_err err;
    if (msg_ping_unpack(f, &m, &err) < 0)
        give_up(err.text);
    if (f->node == NODE_ALL)
        node_send(n, MSG(alive, m.sent_ns));
    else
        node_send(n, MSG(pong, m.sent_ns, now_ns()));
}

static void on_share(struct node *n, const struct frame *f)
{
    struct ddp_err err;
    if (msg_share_unpack(f, &n->share, &err) < 0)
        give_up(err.text);
    n->sim->first_ns = n->sim->first_ns ? n->sim->first_ns : now_ns();
    node_send(n, MSG(spawned));
    phase_count(n->sim);
}

static void on_job(struct sim *s, const struct frame *f)
{
    struct msg_job m;
    struct ddp_err err;
    if (s->master)
        return;
    if (msg_job_unpack(f, &m, &err) < 0)
        give_up(err.text);
    s->master = msg_take(&m.master_addr);
    s->master_port = m.master_port;
    s->credit = m.credit;
    msg_job_finish(&m);
}

static void on_vouch(struct node *n, const struct frame *f)
{
    struct msg_vouch m;
    struct verdict verdicts[VOUCH_MAX];
    struct ddp_err err;
    if (msg_vouch_unpack(f, &m, &err) < 0)
        give_up(err.text);
    for (uint32_t i = 0; i < m.n; i++)
        verdicts[i] = (struct verdict){m.list[i].id, true, NULL};
    node_send(n, MSG(vouched, verdicts, m.n));
    msg_vouch_finish(&m);
}

static void on_leave(struct node *n)
{
    struct sim *s = n->sim;
    if (n->up) {
        merge_destroy(n->merge);
        n->merge = NULL;
        sample_socket(n->fd, &s->closed);
        link_close(n->up);
        n->up = NULL;
    }
    phase_count(s);
}

/* A frame has arrived at its node. */
static void handle(struct node *n, const struct frame *f)
{
    if (f->type == MSG_STORE)
        phase_end(n->sim); /* the launcher has heard of every node */
    else if (f->type == MSG_SHARE)
        on_share(n, f);
    else if (f->type == MSG_JOB)
        on_job(n->sim, f);
    else if (f->type == MSG_VOUCH)
        on_vouch(n, f);
    else if (f->type == MSG_PING)
        on_ping(n, f);
    else if (f->type == MSG_FENCE)
        phase_count(n->sim);
    else if (f->type == MSG_TERMINATE)
        node_send(n, MSG(terminated));
    else if (f->type == MSG_SHUTDOWN)
        on_leave(n);
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct node *n = arg;
    struct sim *s = n->sim;
    struct traffic *t = &s->down[s->phase][f->type];
    t->frames++;
    t->bytes += f->size;
    unsigned at = f->node - s->nodes[0].number;
    if (at < s->n)
        handle(&s->nodes[at], f);
    for (unsigned i = 0; f->node == NODE_ALL && i < s->n; i++) {
        if (s->nodes[i].top == n)
            handle(&s->nodes[i], f);
    }
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    give_up(why ? why : "the launcher has closed a link");
}

/* --- connections -------------------------------------------------------------------- */

static void connect_more(struct sim *s);

static void node_link(struct node *n)
{
    static const struct link_events events = {on_frame, on_closed};
    struct link_keys keys;
    struct ddp_err err;
    if (handshake_confirm(&n->shake, n->bytes, &keys, &err) < 0)
        give_up(err.text);
    event_free(n->ready);
    n->up = link_create(n->sim->loop, n->fd, FRAME_DOWN, &keys, &events, n);
    n->sim->connecting--;
    for (unsigned i = 0; i < n->sim->n; i++) {
        if (n->sim->nodes[i].top == n)
            send_hello(&n->sim->nodes[i]);
    }
    connect_more(n->sim);
}

static void node_answer(struct node *n)
{
    unsigned char answer[HANDSHAKE_ANSWER];
    struct secret key;
    struct ddp_err err;
    handshake_node_key(&n->sim->boot.key, n->number, &key);
    if (handshake_answer(&n->shake, &key, n->number, n->bytes, answer, &err) < 0)
        give_up(err.text);
    if (write(n->fd, answer, sizeof answer) != (ssize_t)sizeof answer)
        give_up("cannot answer the launcher");
    n->have = 0;
    n->want = HANDSHAKE_PROOF;
}

/* The launcher speaks first: the offer, then the proof. */
static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct node *n = arg;
    ssize_t got = read(fd, n->bytes + n->have, n->want - n->have);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        give_up(got ? strerror(errno) : "refused by the launcher");
    n->have += (size_t)got;
    if (n->have < n->want)
        return;
    if (n->want == HANDSHAKE_OFFER)
        node_answer(n);
    else
        node_link(n);
}

static void node_connect(struct node *n)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(n->sim->port)};
    inet_pton(AF_INET, n->sim->host, &to.sin_addr);
    n->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    n->want = HANDSHAKE_OFFER;
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr = node_address(n->number)};
    if (n->sim->agent && bind(n->fd, (struct sockaddr *)&from, sizeof from) < 0)
        give_up(strerror(errno));
    if (n->fd < 0 ||
        (connect(n->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS))
        give_up(strerror(errno));
    sock_set_nodelay(n->fd);
    n->ready =
        event_new(loop_base(n->sim->loop), n->fd, EV_READ | EV_PERSIST, on_readable, n);
    event_add(n->ready, NULL);
}

static void connect_more(struct sim *s)
{
    for (; s->connecting < WINDOW && s->next < s->links; s->connecting++)
        node_connect(&s->nodes[s->next++]);
}

/* --- the report --------------------------------------------------------------------- */

static void report_traffic(FILE *f, const char *name, const struct traffic *t)
{
    const char *comma = "";
    fprintf(f, ", \"%s\": {", name);
    for (int i = 0; i < MSG_TYPES; i++) {
        if (t[i].frames == 0)
            continue;
        fprintf(f, "%s\"%s\": [%" PRIu64 ", %" PRIu64 "]", comma,
                msg_name((enum msg_type)i), t[i].frames, t[i].bytes);
        comma = ", ";
    }
    fprintf(f, "}");
}

static void report(const struct sim *s)
{
    FILE *f = s->report;
    fprintf(f, "{\"links\": %u, \"credit\": %u, \"first_ns\": %" PRId64 ", \"phases\": [",
            s->links, s->credit, s->first_ns);
    for (int i = 0; i <= PHASES; i++) {
        const struct sample *a = &s->samples[i];
        if (i && !has_phase[s->agent > 0][i - 1])
            continue;
        fprintf(f,
                "%s{\"phase\": \"%s\", \"at_ns\": %" PRId64 ", \"cpu_ns\": %" PRId64
                ", \"rss_kib\": %ld, \"peak_kib\": %ld, \"fds\": %ld, \"up\": %" PRIu64
                ", \"down\": %" PRIu64,
                i ? ",\n" : "", i ? phase_names[i - 1] : "", a->at_ns, a->cpu_ns,
                a->rss_kib, a->peak_kib, a->fds, a->up, a->down);
        if (i) {
            report_traffic(f, "frames_up", s->up[i - 1]);
            report_traffic(f, "frames_down", s->down[i - 1]);
        }
        fprintf(f, "}");
    }
    fprintf(f, "]}\n");
    if (fclose(f) != 0)
        give_up("cannot write the report");
}

/* --- main --------------------------------------------------------------------------- */

static unsigned number(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static void more_files(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static void sim_open(struct sim *s)
{
    struct ddp_err err;
    const char *path = getenv("SCALE_REPORT");
    if (!path || !(s->report = fopen(path, "we")))
        give_up("SCALE_REPORT must name a file to write");
    if (bootstrap_read(STDIN_FILENO, now_ms() + 30000, &s->boot, &err) < 0)
        give_up(err.text);
    /* the first address is for other hosts, the last one the loopback */
    const char *netns = getenv("SCALE_NETNS");
    size_t call = netns ? 0 : s->boot.calls.n - 1;
    if (sscanf(s->boot.calls.v[call], "%63s %d", s->host, &s->port) != 2 ||
        !(s->loop = loop_create(&err)))
        give_up("no address to call");
    if (netns)
        real_agent_start(s, netns);
    unsigned real = s->agent > 0;
    s->n = (unsigned)s->boot.nnodes - real;
    s->nodes = xcalloc(s->n, sizeof *s->nodes);
    s->links = s->boot.width && s->boot.width < s->n ? s->boot.width : s->n;
    for (unsigned i = 0; i < s->n; i++) {
        struct node *n = &s->nodes[i];
        long parent = bootstrap_parent_place(s->boot.width, i);
        n->sim = s;
        n->number = i + real;
        n->top = parent < 0 ? n : s->nodes[parent].top;
        n->top->below += n->top != n;
        n->fd = -1;
    }
    for (unsigned i = 0; i < s->links; i++) {
        struct node *n = &s->nodes[i];
        if (n->below > 0)
            n->merge = merge_create(s->loop, n->number, send_up, n);
        if (n->merge)
            merge_expect(n->merge, 1 + n->below);
    }
    s->launcher = getppid();
    s->seconds = number("SCALE_SECONDS", 3);
    s->nbytes = number("SCALE_BYTES", 64);
    s->nline = number("SCALE_LINE", 0);
    s->nline = s->nline < sizeof s->line ? s->nline : sizeof s->line;
    memset(s->line, 'x', s->nline);
    if (s->nline > 0)
        s->line[s->nline - 1] = '\n';
    s->timer = evtimer_new(loop_base(s->loop), on_timer, s);
}

int main(void)
{
    static struct sim s;
    alarm(LIMIT_S);
    more_files();
    sim_open(&s);
    sample(&s, &s.samples[0]);
    connect_more(&s);
    int code = loop_run(s.loop);
    report(&s);
    for (unsigned i = 0; i < s.n; i++)
        msg_share_finish(&s.nodes[i].share);
    free(s.nodes);
    event_free(s.timer);
    if (s.ended)
        event_free(s.ended);
    free(s.master);
    bootstrap_finish(&s.boot);
    loop_destroy(s.loop);
    return code;
}
