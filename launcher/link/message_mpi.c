/* launcher/link/message_mpi.c - see message.h: messages of MPI programs and PMIx servers
 */
#include "launcher/link/message_impl.h"

#include "common/mem.h"

#include <stdlib.h>

void msg_fence_pack_head(const struct msg_fence *m, struct pack *k)
{
    pack_u32(k, m->service);
    pack_u32(k, m->nkey);
    pack_bytes(k, m->key, m->nkey);
    pack_u32(k, m->nnodes);
    for (uint32_t i = 0; i < m->nnodes; i++)
        pack_u32(k, m->nodes[i]);
    pack_u32(k, (uint32_t)m->status);
}

int msg_fence_unpack(const struct frame *f, struct msg_fence *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->service = unpack_u32(&u);
    m->nkey = unpack_u32(&u);
    m->key = unpack_bytes(&u, m->nkey);
    m->nnodes = unpack_u32(&u);
    u.bad |= m->nnodes > u.n / 4;
    if (!u.bad && m->nnodes > 0)
        m->nodes = xcalloc(m->nnodes, sizeof *m->nodes);
    for (uint32_t i = 0; !u.bad && i < m->nnodes; i++)
        m->nodes[i] = unpack_u32(&u);
    m->status = (int32_t)unpack_u32(&u);
    m->data = u.p;
    m->ndata = u.bad ? 0 : u.n;
    u.n = 0;
    UNPACK_END(u, f, m, msg_fence_finish, err);
}

void msg_fence_finish(struct msg_fence *m)
{
    free(m->nodes);
    *m = (struct msg_fence){0};
}

void msg_peer_pack_head(const struct msg_peer *m, struct pack *k)
{
    pack_u32(k, m->node);
    pack_u32(k, m->service);
}

int msg_peer_unpack(const struct frame *f, struct msg_peer *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->node = unpack_u32(&u);
    m->service = unpack_u32(&u);
    m->data = u.p;
    m->ndata = u.bad ? 0 : u.n;
    u.n = 0;
    return unpack_end(&u, f->type, err);
}

/* fits a frame of 4 KiB */
enum { ABORT_TEXT_MAX = 4000 };

void msg_abort_pack(const struct msg_abort *m, struct pack *k)
{
    pack_u32(k, m->rank);
    pack_u32(k, (uint32_t)m->code);
    pack_u64(k, (uint64_t)m->at_ns);
    pack_text(k, m->text, ABORT_TEXT_MAX); /* the program's own text */
}

int msg_abort_unpack(const struct frame *f, struct msg_abort *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->rank = unpack_u32(&u);
    m->code = (int32_t)unpack_u32(&u);
    m->at_ns = (int64_t)unpack_u64(&u);
    m->text = unpack_str(&u);
    u.bad |= !m->text;
    UNPACK_END(u, f, m, msg_abort_finish, err);
}

void msg_abort_finish(struct msg_abort *m)
{
    free(m->text);
    *m = (struct msg_abort){0};
}

void msg_serve_pack(const struct msg_serve *m, struct pack *k)
{
    pack_str(k, m->nspace);
    pack_str(k, m->host);
    pack_str(k, m->uri);
    pack_str(k, m->tmpdir);
    pack_u32(k, m->node);
    pack_u32(k, m->nranks);
    pack_strs(k, m->map.v, m->map.n);
}

int msg_serve_unpack(const struct frame *f, struct msg_serve *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->nspace = unpack_str(&u);
    m->host = unpack_str(&u);
    m->uri = unpack_str(&u);
    m->tmpdir = unpack_str(&u);
    m->node = unpack_u32(&u);
    m->nranks = unpack_u32(&u);
    unpack_strs(&u, &m->map);
    u.bad |= !m->nspace || !m->host || !m->uri || !m->tmpdir || m->node >= m->map.n;
    UNPACK_END(u, f, m, msg_serve_finish, err);
}

void msg_serve_finish(struct msg_serve *m)
{
    free(m->nspace);
    free(m->host);
    free(m->uri);
    free(m->tmpdir);
    strv_finish(&m->map);
    *m = (struct msg_serve){0};
}

void msg_member_pack(const struct msg_member *m, struct pack *k)
{
    pack_u32(k, m->rank);
    pack_u32(k, m->state);
}

int msg_member_unpack(const struct frame *f, struct msg_member *m, struct ddp_err *err)
{
    struct unpack u = body_of(f);
    m->rank = unpack_u32(&u);
    m->state = unpack_u32(&u);
    return unpack_end(&u, f->type, err);
}
