/* launcher/link/message.c - see message.h
 *
 * Pack and unpack of a message are adjacent and list the fields in the same order, which
 * is the format. Those of MPI programs are in message_mpi.c.
 */
#include "launcher/link/message_impl.h"

#include "common/err.h"
#include "common/mem.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

void msg_hello_pack(const struct msg_hello *m, struct pack *k)
{
    pack_u32(k, m->protocol);
    pack_str(k, m->version);
    pack_str(k, m->hostname);
    pack_u32(k, m->ncpus);
    pack_u32(k, m->ngpus);
    pack_str(k, m->addr);
    pack_strs(k, m->addrs.v, m->addrs.n);
}

int msg_hello_unpack(const struct frame *f, struct msg_hello *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->protocol = unpack_u32(&u);
    m->version = unpack_str(&u);
    if (!u.bad && m->protocol != LINK_PROTOCOL) {
        err_set(err, "its version %s speaks protocol %u, this one %d",
                m->version ? m->version : "?", m->protocol, LINK_PROTOCOL);
        msg_hello_finish(m);
        return -1;
    }
    m->hostname = unpack_str(&u);
    m->ncpus = unpack_u32(&u);
    m->ngpus = unpack_u32(&u);
    m->addr = unpack_str(&u);
    unpack_strs(&u, &m->addrs);
    u.bad |= !m->version || !m->hostname;
    UNPACK_END(u, f, m, msg_hello_finish, err);
}

void msg_hello_finish(struct msg_hello *m)
{
    free(m->version);
    free(m->hostname);
    free(m->addr);
    strv_finish(&m->addrs);
    *m = (struct msg_hello){0};
}

void msg_store_pack(const struct msg_store *m, struct pack *k)
{
    pack_str(k, m->addr);
    pack_str(k, m->interface);
    pack_u32(k, m->port);
    pack_u8(k, m->open);
    pack_u8(k, m->serve);
    pack_str(k, m->wish);
    pack_u8(k, m->alone);
}

int msg_store_unpack(const struct frame *f, struct msg_store *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->addr = unpack_str(&u);
    m->interface = unpack_str(&u);
    m->port = unpack_u32(&u);
    m->open = unpack_u8(&u) != 0;
    m->serve = unpack_u8(&u) != 0;
    m->wish = unpack_str(&u);
    m->alone = unpack_u8(&u) != 0;
    UNPACK_END(u, f, m, msg_store_finish, err);
}

void msg_store_finish(struct msg_store *m)
{
    free(m->addr);
    free(m->interface);
    free(m->wish);
    *m = (struct msg_store){0};
}

void msg_job_pack(const struct msg_job *m, struct pack *k)
{
    pack_strs(k, m->argv.v, m->argv.n);
    pack_strs(k, m->env.v, m->env.n);
    pack_strs(k, m->user_set.v, m->user_set.n);
    pack_str(k, m->wdir);
    pack_str(k, m->id);
    pack_str(k, m->master_addr);
    pack_str(k, m->interface);
    pack_u32(k, m->master_port);
    pack_u32(k, m->rank0_port);
    pack_u32(k, m->nranks);
    pack_u32(k, m->nnodes);
    pack_u32(k, m->rank_names);
    pack_u32(k, m->store_mode);
    pack_u32(k, m->bind_to);
    pack_u32(k, m->input);
    pack_u32(k, m->columns);
    pack_str(k, m->preload);
    pack_u32(k, m->mpi);
    pack_strs(k, m->map.v, m->map.n);
    pack_u32(k, m->max_restarts);
    pack_u8(k, m->report);
}

int msg_job_unpack(const struct frame *f, struct msg_job *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    unpack_strs(&u, &m->argv);
    unpack_strs(&u, &m->env);
    unpack_strs(&u, &m->user_set);
    m->wdir = unpack_str(&u);
    m->id = unpack_str(&u);
    m->master_addr = unpack_str(&u);
    m->interface = unpack_str(&u);
    m->master_port = unpack_u32(&u);
    m->rank0_port = unpack_u32(&u);
    m->nranks = unpack_u32(&u);
    m->nnodes = unpack_u32(&u);
    m->rank_names = unpack_u32(&u);
    m->store_mode = unpack_u32(&u);
    m->bind_to = unpack_u32(&u);
    m->input = unpack_u32(&u);
    m->columns = unpack_u32(&u);
    m->preload = unpack_str(&u);
    m->mpi = unpack_u32(&u);
    unpack_strs(&u, &m->map);
    m->max_restarts = unpack_u32(&u);
    m->report = unpack_u8(&u) != 0;
    u.bad |= m->argv.n == 0 || !m->wdir || !m->id || !m->master_addr;
    UNPACK_END(u, f, m, msg_job_finish, err);
}

void msg_job_finish(struct msg_job *m)
{
    strv_finish(&m->argv);
    strv_finish(&m->env);
    strv_finish(&m->user_set);
    strv_finish(&m->map);
    free(m->wdir);
    free(m->id);
    free(m->master_addr);
    free(m->interface);
    free(m->preload);
    *m = (struct msg_job){0};
}

void msg_share_pack(const struct msg_share *m, struct pack *k)
{
    pack_str(k, m->host);
    pack_u32(k, m->node_rank);
    pack_u32(k, m->nlocal);
    for (uint32_t i = 0; i < m->nlocal; i++) {
        pack_u32(k, m->ranks[i].rank);
        pack_u32(k, m->ranks[i].cross_rank);
        pack_u32(k, m->ranks[i].cross_size);
    }
}

int msg_share_unpack(const struct frame *f, struct msg_share *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->host = unpack_str(&u);
    m->node_rank = unpack_u32(&u);
    m->nlocal = unpack_u32(&u);
    u.bad |= !m->host || m->nlocal == 0 || u.n / 12 != m->nlocal || u.n % 12 != 0;
    if (u.bad)
        m->nlocal = 0;
    m->ranks = xcalloc(m->nlocal, sizeof *m->ranks);
    for (uint32_t i = 0; i < m->nlocal; i++) {
        m->ranks[i].rank = unpack_u32(&u);
        m->ranks[i].cross_rank = unpack_u32(&u);
        m->ranks[i].cross_size = unpack_u32(&u);
    }
    UNPACK_END(u, f, m, msg_share_finish, err);
}

void msg_share_finish(struct msg_share *m)
{
    free(m->host);
    free(m->ranks);
    *m = (struct msg_share){0};
}

void msg_exit_pack(const struct msg_exit *m, struct pack *k)
{
    pack_u32(k, m->rank);
    pack_u32(k, (uint32_t)m->status);
    pack_u64(k, (uint64_t)m->at_ns);
    pack_u64(k, m->peak_kib);
    pack_u8(k, m->told);
}

int msg_exit_unpack(const struct frame *f, struct msg_exit *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->rank = unpack_u32(&u);
    m->status = (int32_t)unpack_u32(&u);
    m->at_ns = (int64_t)unpack_u64(&u);
    m->peak_kib = unpack_u64(&u);
    m->told = unpack_u8(&u) != 0;
    return unpack_end(&u, f->type, err);
}

void msg_cannot_pack(const struct msg_cannot *m, struct pack *k)
{
    pack_u32(k, m->rank);
    pack_u32(k, m->code);
    pack_str(k, m->text);
}

int msg_cannot_unpack(const struct frame *f, struct msg_cannot *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->rank = unpack_u32(&u);
    m->code = unpack_u32(&u);
    m->text = unpack_str(&u);
    u.bad |= !m->text;
    UNPACK_END(u, f, m, msg_cannot_finish, err);
}

void msg_cannot_finish(struct msg_cannot *m)
{
    free(m->text);
    *m = (struct msg_cannot){0};
}

void msg_node_pack(const struct msg_node *m, struct pack *k)
{
    pack_u32(k, m->node);
    pack_str(k, m->text);
}

int msg_node_unpack(const struct frame *f, struct msg_node *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->node = unpack_u32(&u);
    m->text = unpack_str(&u);
    u.bad |= !m->text;
    UNPACK_END(u, f, m, msg_node_finish, err);
}

void msg_node_finish(struct msg_node *m)
{
    free(m->text);
    *m = (struct msg_node){0};
}

/* An address: family (4 or 6), port, then 4 or 16 bytes. */
static void pack_sockaddr(struct pack *k, const struct sockaddr_storage *ss)
{
    if (ss->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)ss;
        pack_u8(k, 4);
        pack_u16(k, ntohs(in->sin_port));
        pack_bytes(k, &in->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *in6 = (const void *)ss;
        pack_u8(k, 6);
        pack_u16(k, ntohs(in6->sin6_port));
        pack_bytes(k, &in6->sin6_addr, 16);
    }
}

static void unpack_sockaddr(struct unpack *u, struct sockaddr_storage *ss)
{
    *ss = (struct sockaddr_storage){0};
    unsigned family = unpack_u8(u), port = unpack_u16(u);
    const uint8_t *addr = unpack_bytes(u, family == 4 ? 4 : 16);
    u->bad |= family != 4 && family != 6;
    if (u->bad)
        return;
    if (family == 4) {
        struct sockaddr_in *in = (void *)ss;
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        memcpy(&in->sin_addr, addr, 4);
    } else {
        struct sockaddr_in6 *in6 = (void *)ss;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons((uint16_t)port);
        memcpy(&in6->sin6_addr, addr, 16);
    }
}

void msg_vouch_pack(const struct msg_vouch *m, struct pack *k)
{
    pack_u32(k, m->id);
    pack_sockaddr(k, &m->peer);
    pack_sockaddr(k, &m->local);
}

int msg_vouch_unpack(const struct frame *f, struct msg_vouch *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->id = unpack_u32(&u);
    unpack_sockaddr(&u, &m->peer);
    unpack_sockaddr(&u, &m->local);
    return unpack_end(&u, f->type, err);
}

void msg_vouched_pack(const struct msg_vouched *m, struct pack *k)
{
    pack_u32(k, m->id);
    pack_u8(k, m->yes);
    pack_str(k, m->why);
}

int msg_vouched_unpack(const struct frame *f, struct msg_vouched *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->id = unpack_u32(&u);
    m->yes = unpack_u8(&u) != 0;
    m->why = unpack_str(&u);
    UNPACK_END(u, f, m, msg_vouched_finish, err);
}

void msg_vouched_finish(struct msg_vouched *m)
{
    free(m->why);
    *m = (struct msg_vouched){0};
}

void msg_hosts_pack(const struct msg_hosts *m, struct pack *k)
{
    pack_u32(k, m->width);
    pack_u32(k, m->window);
    pack_u32(k, m->timeout_ms);
    pack_str(k, m->agent);
    pack_str(k, m->ssh);
    pack_u32(k, m->nhosts);
    for (uint32_t i = 0; i < m->nhosts; i++) {
        pack_str(k, m->hosts[i].name);
        pack_str(k, m->hosts[i].user);
        pack_u32(k, m->hosts[i].port);
        pack_u8(k, m->hosts[i].started);
    }
}

int msg_hosts_unpack(const struct frame *f, struct msg_hosts *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->width = unpack_u32(&u);
    m->window = unpack_u32(&u);
    m->timeout_ms = unpack_u32(&u);
    m->agent = unpack_str(&u);
    m->ssh = unpack_str(&u);
    uint32_t n = unpack_u32(&u);
    u.bad |= !m->agent || !m->ssh || m->width == 0 || n > NODES_MAX || n > u.n / 13;
    if (!u.bad) {
        m->hosts = xcalloc(n, sizeof *m->hosts);
        m->nhosts = n;
    }
    for (uint32_t i = 0; i < m->nhosts; i++) {
        m->hosts[i].name = unpack_str(&u);
        m->hosts[i].user = unpack_str(&u);
        m->hosts[i].port = unpack_u32(&u);
        m->hosts[i].started = unpack_u8(&u) != 0;
        u.bad |= !m->hosts[i].name;
    }
    UNPACK_END(u, f, m, msg_hosts_finish, err);
}

void msg_hosts_finish(struct msg_hosts *m)
{
    for (uint32_t i = 0; i < m->nhosts; i++) {
        free(m->hosts[i].name);
        free(m->hosts[i].user);
    }
    free(m->hosts);
    free(m->agent);
    free(m->ssh);
    *m = (struct msg_hosts){0};
}

void msg_probe_pack(const struct msg_probe *m, struct pack *k)
{
    pack_u32(k, m->phase);
    pack_strs(k, m->argv.v, m->argv.n);
    pack_strs(k, m->env.v, m->env.n);
    pack_str(k, m->wdir);
    pack_strs(k, m->names.v, m->names.n);
    pack_str(k, m->interface);
    pack_u32(k, m->store_port);
    pack_u32(k, m->master);
    pack_str(k, m->peer);
    pack_str(k, m->addr);
    pack_u32(k, m->port);
}

int msg_probe_unpack(const struct frame *f, struct msg_probe *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->phase = unpack_u32(&u);
    unpack_strs(&u, &m->argv);
    unpack_strs(&u, &m->env);
    m->wdir = unpack_str(&u);
    unpack_strs(&u, &m->names);
    m->interface = unpack_str(&u);
    m->store_port = unpack_u32(&u);
    m->master = unpack_u32(&u);
    m->peer = unpack_str(&u);
    m->addr = unpack_str(&u);
    m->port = unpack_u32(&u);
    u.bad |= !m->wdir || !m->peer != !m->addr || m->port > UINT16_MAX ||
             m->store_port > UINT16_MAX;
    UNPACK_END(u, f, m, msg_probe_finish, err);
}

void msg_probe_finish(struct msg_probe *m)
{
    strv_finish(&m->argv);
    strv_finish(&m->env);
    strv_finish(&m->names);
    free(m->wdir);
    free(m->interface);
    free(m->peer);
    free(m->addr);
    *m = (struct msg_probe){0};
}

void msg_found_pack(const struct msg_found *m, struct pack *k)
{
    pack_u32(k, m->check);
    pack_u8(k, m->remark);
    pack_u64(k, (uint64_t)m->number);
    pack_str(k, m->item);
    pack_str(k, m->value);
    pack_str(k, m->key);
    pack_str(k, m->problem);
}

int msg_found_unpack(const struct frame *f, struct msg_found *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->check = unpack_u32(&u);
    m->remark = unpack_u8(&u) != 0;
    m->number = (int64_t)unpack_u64(&u);
    m->item = unpack_str(&u);
    m->value = unpack_str(&u);
    m->key = unpack_str(&u);
    m->problem = unpack_str(&u);
    UNPACK_END(u, f, m, msg_found_finish, err);
}

void msg_found_finish(struct msg_found *m)
{
    free(m->item);
    free(m->value);
    free(m->key);
    free(m->problem);
    *m = (struct msg_found){0};
}

void msg_saved_pack(const struct msg_saved *m, struct pack *k)
{
    pack_u32(k, m->import_ms);
    pack_u32(k, m->forks);
    pack_u64(k, m->kib);
}

int msg_saved_unpack(const struct frame *f, struct msg_saved *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->import_ms = unpack_u32(&u);
    m->forks = unpack_u32(&u);
    m->kib = unpack_u64(&u);
    return unpack_end(&u, f->type, err);
}
