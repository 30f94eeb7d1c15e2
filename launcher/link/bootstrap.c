/* launcher/link/bootstrap.c - see bootstrap.h */
#include "launcher/link/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/hostlist.h"
#include "common/limit.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/sock.h"
#include "launcher/link/handshake.h"
#include "launcher/link/message.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* node lists are compressed, but names without numbers are written in full */
enum { BOOTSTRAP_MAX = 4 << 20 };

/* limit for one address, so that the others are tried, too */
enum { TRY_MS = 4000, PARENT_TRY_MS = 1000 };

/* --- node assignments --------------------------------------------------------------- */

void bootstrap_add_node(struct bootstrap *s, unsigned node, const char *name)
{
    if ((s->nnodes & (s->nnodes - 1)) == 0) /* a power of two: the array is full */
        s->nodes = xrealloc(s->nodes, s->nnodes * 2 + 1, sizeof *s->nodes);
    s->nodes[s->nnodes++] = (struct bootstrap_node){node, xstrdup(name)};
}

/* Consecutive nodes make one line, with their names as one list. */
static void write_nodes(FILE *f, const struct bootstrap_node *nodes, size_t n)
{
    for (size_t i = 0; i < n;) {
        SCOPED(strv_finish) struct strv names = {0};
        unsigned first = nodes[i].node;
        for (; i < n && nodes[i].node == first + names.n; i++)
            strv_push(&names, nodes[i].name);
        OWNED char *list = hostlist_compress(names.v, names.n);
        fprintf(f, "nodes %u %s\n", first, list);
    }
}

bool bootstrap_is_host(const char *name, const char *own)
{
    size_t n = strcspn(own, ".");
    return strcasecmp(name, own) == 0 ||
           (n == strcspn(name, ".") && strncasecmp(name, own, n) == 0 &&
            (!name[n] || !own[n]));
}

bool bootstrap_take_node(struct bootstrap *s, const char *name)
{
    for (size_t i = 0; i < s->nnodes; i++) {
        if (!bootstrap_is_host(s->nodes[i].name, name))
            continue;
        free(s->name);
        s->name = xstrdup(s->nodes[i].name);
        s->node = s->nodes[i].node;
        bootstrap_set_tree(s, &s->key, s->width, s->nodes, s->nnodes, i);
        return true;
    }
    return s->nnodes == 0;
}

/* --- the tree ----------------------------------------------------------------------- */

/* Below the range of ephemeral ports. Nodes of a job have different ones, as several may
 * be on one machine in tests. */
static int tree_port(const struct secret *job, unsigned node)
{
    struct secret hash;
    secret_derive(job, "ddprun port", NULL, 0, NULL, 0, &hash);
    unsigned random = (unsigned)(hash.bytes[0] << 8 | hash.bytes[1]);
    return (int)(20000 + (random + node) % 3000 * BOOTSTRAP_PORTS);
}

long bootstrap_parent_place(unsigned width, size_t place)
{
    return width == 0 ? -1 : (long)(place / width) - 1;
}

void bootstrap_set_tree(struct bootstrap *s, const struct secret *job, unsigned width,
                        const struct bootstrap_node *row, size_t n, size_t place)
{
    long at = bootstrap_parent_place(width, place);
    bool below = width > 0 && n > (place + 1) * width;
    s->listen = below ? tree_port(job, row[place].node) : 0;
    free(s->parent.name);
    s->parent.name = NULL;
    if (at < 0)
        return;
    struct secret key;
    handshake_node_key(job, row[at].node, &key);
    handshake_node_key(&key, row[place].node, &s->parent.key);
    secret_wipe(&key, sizeof key);
    s->parent.port = tree_port(job, row[at].node);
    s->parent.name = xstrdup(row[at].name);
}

/* --- text --------------------------------------------------------------------------- */

char *bootstrap_write(const struct bootstrap *s)
{
    char hex[SECRET_SIZE * 2 + 1], *text = NULL;
    size_t size;
    secret_to_hex(&s->key, hex);
    FILE *f = xmemstream(&text, &size);
    fprintf(f, "ddprun-agent %d\nkey %s\n", LINK_PROTOCOL, hex);
    if (s->nnodes > 0)
        write_nodes(f, s->nodes, s->nnodes);
    else
        fprintf(f, "node %u\nname %s\n", s->node, s->name);
    if (s->log_level)
        fprintf(f, "log %s\n", s->log_level);
    for (size_t i = 0; i < s->calls.n; i++)
        fprintf(f, "call %s\n", s->calls.v[i]);
    if (s->detached)
        fputs("detached yes\n", f);
    if (s->stdio)
        fputs("stdio yes\n", f);
    if (s->nnodes > 0 && s->width > 0)
        fprintf(f, "tree %u\n", s->width);
    if (s->listen)
        fprintf(f, "listen %d\n", s->listen);
    if (s->parent.name) {
        secret_to_hex(&s->parent.key, hex);
        fprintf(f, "parent %d %s %s\n", s->parent.port, hex, s->parent.name);
    }
    fputs("end\n", f);
    xmemclose(f);
    secret_wipe(hex, sizeof hex);
    return text;
}

/* "N HOSTS" */
static int parse_nodes(const char *rest, struct bootstrap *s, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    char *end;
    unsigned long first = strtoul(rest, &end, 10);
    if (end == rest || *end != ' ' || first > NODES_MAX)
        return err_set(err, "'%s' is no node assignment", rest);
    TRY(hostlist_expand(end + 1, &names, err));
    if (names.n > NODES_MAX - first || s->nnodes + names.n > NODES_MAX)
        return err_set(err, "'%s' has too many nodes", rest);
    for (size_t i = 0; i < names.n; i++)
        bootstrap_add_node(s, (unsigned)(first + i), names.v[i]);
    return 0;
}

/* "PORT HEX NAME" */
static int parse_parent(const char *rest, struct bootstrap_parent *p, struct ddp_err *err)
{
    char hex[SECRET_SIZE * 2 + 1], name[256];
    int n = 0;
    if (sscanf(rest, "%d %64[0-9a-f] %255s%n", &p->port, hex, name, &n) != 3 ||
        rest[n] != '\0' || p->port < 1 || p->port > UINT16_MAX - BOOTSTRAP_PORTS)
        return err_set(err, "'%s' is no parent", rest);
    free(p->name);
    p->name = xstrdup(name);
    int rc = secret_from_hex(hex, &p->key, err);
    secret_wipe(hex, sizeof hex);
    return rc;
}

/* Parse one line, split into its keyword and the rest. */
static int parse_line(struct bootstrap *s, const char *word, const char *rest,
                      bool *has_key, struct ddp_err *err)
{
    int n;
    if (strcmp(word, "ddprun-agent") == 0) {
        if (!number_whole(rest, 0, INT_MAX, &n) || n != LINK_PROTOCOL)
            return err_set(err, "versions differ: it speaks protocol '%s', this one %d",
                           rest, LINK_PROTOCOL);
    } else if (strcmp(word, "key") == 0) {
        *has_key = true;
        return secret_from_hex(rest, &s->key, err);
    } else if (strcmp(word, "node") == 0) {
        if (!number_whole(rest, 0, NODES_MAX, &n))
            return err_set(err, "'%s' is not the number of a node", rest);
        s->node = (unsigned)n;
    } else if (strcmp(word, "name") == 0) {
        free(s->name);
        s->name = xstrdup(rest);
    } else if (strcmp(word, "log") == 0) {
        free(s->log_level);
        s->log_level = xstrdup(rest);
    } else if (strcmp(word, "nodes") == 0) {
        return parse_nodes(rest, s, err);
    } else if (strcmp(word, "detached") == 0) {
        s->detached = true;
    } else if (strcmp(word, "stdio") == 0) {
        s->stdio = true;
    } else if (strcmp(word, "tree") == 0) {
        if (!number_whole(rest, 0, NODES_MAX, &n))
            return err_set(err, "'%s' is no width of a tree", rest);
        s->width = (unsigned)n;
    } else if (strcmp(word, "listen") == 0) {
        if (!number_whole(rest, 0, UINT16_MAX - BOOTSTRAP_PORTS, &n))
            return err_set(err, "'%s' is no port", rest);
        s->listen = n;
    } else if (strcmp(word, "parent") == 0) {
        return parse_parent(rest, &s->parent, err);
    } else if (strcmp(word, "call") == 0) {
        strv_push(&s->calls, rest);
    } else {
        return err_set(err, "unknown bootstrap line '%s'", word);
    }
    return 0;
}

int bootstrap_parse(const char *text, struct bootstrap *s, struct ddp_err *err)
{
    char *copy = xstrdup(text), *save = NULL;
    bool has_key = false, first = true;
    int rc = 0;
    for (char *line = strtok_r(copy, "\n", &save); line && rc == 0;
         line = strtok_r(NULL, "\n", &save)) {
        if (strcmp(line, "end") == 0)
            break;
        char *rest = strchr(line, ' ');
        if (!rest || (first && strncmp(line, "ddprun-agent ", 13) != 0)) {
            rc = err_set(err, "this is not the bootstrap of a launcher");
            break;
        }
        *rest++ = '\0';
        first = false;
        rc = parse_line(s, line, rest, &has_key, err);
    }
    if (rc == 0 && (!has_key || (!s->name && s->nnodes == 0) || s->calls.n == 0))
        rc = err_set(err, "no key, no name or no address to call");
    secret_wipe(copy, strlen(text));
    free(copy);
    return rc;
}

/* realloc() would leave a copy of the key in freed memory. */
static char *longer(char *text, size_t *room)
{
    char *more = xcalloc(2, *room);
    memcpy(more, text, *room);
    secret_wipe(text, *room);
    free(text);
    *room *= 2;
    return more;
}

/* Byte by byte, as what follows the last line is another reader's. NULL: the last line
 * has not come. `*room` bytes are to be wiped. */
static char *read_lines(int fd, int64_t deadline_ms, size_t *room, struct ddp_err *err)
{
    static const char end[] = "\nend\n";
    size_t n = 0, last = sizeof end - 1;
    *room = 1 << 12;
    char *text = xcalloc(1, *room);
    while (n < last || memcmp(text + n - last, end, last) != 0) {
        if (n == *room - 1)
            text = longer(text, room);
        int rc = sock_await(fd, POLLIN, deadline_ms);
        if (rc == 0 && n < BOOTSTRAP_MAX && read(fd, text + n, 1) == 1) {
            n++;
            continue;
        }
        err_set(err, "%s: this program is started by ddprun",
                rc < 0 ? "no bootstrap lines" : "incomplete bootstrap");
        secret_wipe(text, *room);
        free(text);
        return NULL;
    }
    return text;
}

int bootstrap_read(int fd, int64_t deadline_ms, struct bootstrap *s, struct ddp_err *err)
{
    size_t room;
    OWNED char *text = read_lines(fd, deadline_ms, &room, err);
    s->missing = !text;
    if (!text)
        return -1;
    int rc = bootstrap_parse(text, s, err);
    secret_wipe(text, room);
    return rc;
}

/* --- connecting --------------------------------------------------------------------- */

int bootstrap_answer(const struct secret *key, unsigned node, int in, int out,
                     int64_t deadline_ms, struct handshake *h, struct ddp_err *err)
{
    unsigned char offer[HANDSHAKE_OFFER], bytes[HANDSHAKE_ANSWER];
    if (sock_read_all(in, offer, sizeof offer, deadline_ms) < 0)
        return err_errno(err, "no handshake received");
    if (handshake_answer(h, key, node, offer, bytes, err) < 0) {
        errno = EPROTO;
        return -1;
    }
    if (sock_write_all(out, bytes, sizeof bytes, deadline_ms) < 0)
        return err_errno(err, "the handshake was not completed");
    return 0;
}

int bootstrap_confirm(struct handshake *h, int in, int64_t deadline_ms,
                      struct link_keys *keys, struct ddp_err *err)
{
    unsigned char proof[HANDSHAKE_PROOF];
    if (sock_read_all(in, proof, sizeof proof, deadline_ms) < 0)
        return err_errno(err, "the handshake was not completed");
    if (handshake_confirm(h, proof, keys, err) < 0) {
        errno = EPROTO;
        return -1;
    }
    return 0;
}

int bootstrap_call(const char *addrs, int64_t deadline_ms, struct ddp_err *err)
{
    char addr[256];
    int port;
    if (sscanf(addrs, "%255s %d", addr, &port) != 2)
        return err_set(err, "'%s' is no address and port", addrs);
    return sock_connect(addr, port, deadline_ms, false, err);
}

/* Who has made an offer by TRY_MS is a launcher: its proof may be later. */
static int connect_one(const struct bootstrap *s, const char *addrs, int64_t *left_ms,
                       struct link_keys *keys, struct ddp_err *err)
{
    struct handshake h;
    int64_t began_ms = now_ms(), asked_ms = TRY_MS < *left_ms ? TRY_MS : *left_ms;
    int fd = bootstrap_call(addrs, began_ms + asked_ms, err);
    bool ok = fd >= 0 && bootstrap_answer(&s->key, s->node, fd, fd, began_ms + asked_ms,
                                          &h, err) == 0;
    if (ok) {
        asked_ms = *left_ms;
        ok = bootstrap_confirm(&h, fd, began_ms + asked_ms, keys, err) == 0;
    }
    *left_ms -= limit_count_ms(now_ms() - began_ms, asked_ms);
    if (fd >= 0 && !ok) {
        close(fd);
        fd = err_prefix(err, "'%s'", addrs);
    }
    secret_wipe(&h, sizeof h);
    return fd;
}

int bootstrap_connect(const struct bootstrap *s, int64_t *left_ms, struct link_keys *keys,
                      struct ddp_err *err)
{
    int fd = -1;
    for (size_t i = 0; i < s->calls.n && fd < 0; i++) {
        struct ddp_err why;
        fd = connect_one(s, s->calls.v[i], left_ms, keys, &why);
        if (i == 0 && fd < 0)
            *err = why; /* of the likeliest address */
    }
    return fd;
}

/* Another program may listen on a port: each gets PARENT_TRY_MS. */
static int try_parent(const struct bootstrap *s, int64_t deadline_ms,
                      struct link_keys *keys, struct ddp_err *err)
{
    const struct bootstrap_parent *p = &s->parent;
    struct handshake h;
    int fd = -1;
    for (int i = 0; i < BOOTSTRAP_PORTS && fd < 0 && now_ms() < deadline_ms; i++) {
        int64_t until = now_ms() + PARENT_TRY_MS;
        until = until < deadline_ms ? until : deadline_ms;
        fd = sock_connect(p->name, p->port + i, until, false, err);
        if (fd < 0 && errno == ENXIO)
            break; /* no such name: nothing changes that */
        if (fd < 0)
            continue;
        if (bootstrap_answer(&p->key, s->node, fd, fd, until, &h, err) < 0 ||
            bootstrap_confirm(&h, fd, deadline_ms, keys, err) < 0) {
            close(fd);
            fd = -1;
            errno = EPROTO;
        }
        secret_wipe(&h, sizeof h);
    }
    return fd;
}

int bootstrap_connect_parent(const struct bootstrap *s, int64_t deadline_ms,
                             struct link_keys *keys, struct ddp_err *err)
{
    int64_t pause_ms = 10;
    int fd;
    while ((fd = try_parent(s, deadline_ms, keys, err)) < 0) {
        if (errno == ENXIO || now_ms() + pause_ms >= deadline_ms)
            break;
        sleep_ms(pause_ms);
        pause_ms = pause_ms < 125 ? 2 * pause_ms : 250;
    }
    return fd;
}

void bootstrap_finish(struct bootstrap *s)
{
    secret_wipe(&s->key, sizeof s->key);
    secret_wipe(&s->parent.key, sizeof s->parent.key);
    free(s->parent.name);
    free(s->name);
    free(s->log_level);
    strv_finish(&s->calls);
    for (size_t i = 0; i < s->nnodes; i++)
        free(s->nodes[i].name);
    free(s->nodes);
    *s = (struct bootstrap){0};
}
