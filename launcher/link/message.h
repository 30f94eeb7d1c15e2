/* launcher/link/message.h - the bodies of frames that carry more than a number
 *
 * Each message is a struct with a pack function, and an unpack function that fills a
 * zeroed struct or fails as a whole: on failure it has freed what it allocated. Byte
 * tables are in doc/agent.md; update it and LINK_PROTOCOL with every change here.
 */
#ifndef LAUNCHER_LINK_MESSAGE_H
#define LAUNCHER_LINK_MESSAGE_H

#include "common/secret.h"
#include "common/strv.h"
#include "launcher/link/frame.h"

#include <sys/socket.h>

/* Tests set another value: an agent of a future version. */
#ifndef LINK_PROTOCOL_IS
#define LINK_PROTOCOL_IS 1
#endif
enum { LINK_PROTOCOL = LINK_PROTOCOL_IS };

/* Bytes that an agent may send before it gets CREDIT, and the same for input. */
enum { OUTPUT_CREDIT = 512 << 10, INPUT_CREDIT = 256 << 10 };

/* An agent's first message. */
struct msg_hello {
    uint32_t protocol; /* LINK_PROTOCOL; always the first field */
    char *version;     /* owned: of the program */
    char *hostname;    /* owned: gethostname() */
    uint32_t ncpus;    /* usable by ranks on this node */
    uint32_t ngpus;
    char *addr;        /* owned: its end of the link, without port; NULL: local */
    struct strv addrs; /* all addresses of the machine */
};
void msg_hello_pack(const struct msg_hello *m, struct pack *k);
int msg_hello_unpack(const struct frame *f, struct msg_hello *m, struct ddp_err *err);
void msg_hello_finish(struct msg_hello *m);

/* The store's listening address; answered by READY or CANNOT. */
struct msg_store {
    char *addr;      /* owned: to listen on, and MASTER_ADDR; NULL: choose */
    char *interface; /* owned: use this interface's address; NULL: any */
    uint32_t port;   /* 0: any free one */
    bool open;       /* every connection is admitted */
    bool serve;      /* false: only find a free port (--store rank0) */
    char *wish;      /* owned: the user's MASTER_ADDR; NULL */
    bool alone;      /* no other node: loopback is sufficient */
};
void msg_store_pack(const struct msg_store *m, struct pack *k);
int msg_store_unpack(const struct frame *f, struct msg_store *m, struct ddp_err *err);
void msg_store_finish(struct msg_store *m);

/* What every node needs to know about the job. */
struct msg_job {
    struct strv argv;     /* the program */
    struct strv env;      /* of the launcher, with -x applied */
    struct strv user_set; /* names given by -x */
    struct strv map;      /* per node with ranks, in order: "0-3,8 HOST" */
    char *wdir;           /* owned */
    char *id;             /* owned: TORCHELASTIC_RUN_ID */
    char *master_addr;    /* owned */
    char *interface;      /* owned, or NULL */
    char *preload;        /* owned: as in struct opts; NULL: nothing */
    uint32_t master_port; /* 0: this agent binds the store itself (single node) */
    uint32_t rank0_port;  /* on its host, reserved for a server of rank 0 */
    uint32_t nranks, nnodes;
    uint32_t rank_names, store_mode, bind_to, input;
    uint32_t mpi;     /* enum mpi_serve */
    uint32_t columns; /* width of the terminal that prints output; 0: none */
    uint32_t max_restarts;
    bool report;       /* send MSG_SAVED */
    uint32_t attempt;  /* from 0; sent only from 1 on, by AGAIN */
    bool env_complete; /* env needs no local additions (local jobs); never sent */
};
void msg_job_pack(const struct msg_job *m, struct pack *k);
int msg_job_unpack(const struct frame *f, struct msg_job *m, struct ddp_err *err);
void msg_job_finish(struct msg_job *m);

/* One node's part of the job. */
struct msg_share {
    char *host;         /* owned: the node's name in the allocation */
    uint32_t node_rank; /* its index among the nodes that have ranks */
    uint32_t nlocal;
    struct share_rank {
        uint32_t rank, cross_rank, cross_size;
    } * ranks; /* owned, by local rank */
};
void msg_share_pack(const struct msg_share *m, struct pack *k);
int msg_share_unpack(const struct frame *f, struct msg_share *m, struct ddp_err *err);
void msg_share_finish(struct msg_share *m);

/* The end of a rank. */
struct msg_exit {
    uint32_t rank;
    int32_t status;    /* wait status */
    int64_t at_ns;     /* on the clock of its node */
    uint64_t peak_kib; /* maximum resident size */
    bool told;         /* it had been asked to end before */
};
void msg_exit_pack(const struct msg_exit *m, struct pack *k);
int msg_exit_unpack(const struct frame *f, struct msg_exit *m, struct ddp_err *err);

/* A rank (or the store: rank ~0) cannot be started. */
struct msg_cannot {
    uint32_t rank;
    uint32_t code; /* our exit code: 125, 126, 127 */
    char *text;    /* owned: the error line */
};
void msg_cannot_pack(const struct msg_cannot *m, struct pack *k);
int msg_cannot_unpack(const struct frame *f, struct msg_cannot *m, struct ddp_err *err);
void msg_cannot_finish(struct msg_cannot *m);

/* A node is lost or unreachable. */
struct msg_node {
    uint32_t node;
    char *text; /* owned */
};
void msg_node_pack(const struct msg_node *m, struct pack *k);
int msg_node_unpack(const struct frame *f, struct msg_node *m, struct ddp_err *err);
void msg_node_finish(struct msg_node *m);

/* A connection to the store, as its server sees it: is the other end a rank? */
struct msg_vouch {
    uint32_t id;
    struct sockaddr_storage peer, local; /* AF_INET or AF_INET6 */
};
void msg_vouch_pack(const struct msg_vouch *m, struct pack *k);
int msg_vouch_unpack(const struct frame *f, struct msg_vouch *m, struct ddp_err *err);

struct msg_vouched {
    uint32_t id;
    bool yes;
    char *why; /* owned: why not */
};
void msg_vouched_pack(const struct msg_vouched *m, struct pack *k);
int msg_vouched_unpack(const struct frame *f, struct msg_vouched *m, struct ddp_err *err);
void msg_vouched_finish(struct msg_vouched *m);

/* The service of a fence or peer message: each has its own numbers and keys. */
enum msg_service { SERVICE_PMIX, SERVICE_PMI };

/* A fence: each of `nodes` contributes bytes, and when all have, each gets all
 * contributions, in one piece and in the same order. All fields before `status` identify
 * the fence. Borrowed from the frame when unpacked, except `nodes`. */
struct msg_fence {
    uint32_t service; /* enum msg_service */
    const uint8_t *key;
    uint32_t nkey;
    uint32_t nnodes; /* participants, by node rank; 0: all */
    uint32_t *nodes; /* owned, or NULL */
    int32_t status;  /* 0, or an error of a contribution; the first is kept */
    const uint8_t *data;
    size_t ndata; /* the rest of the frame */
};
void msg_fence_pack_head(const struct msg_fence *m, struct pack *k); /* up to status */
int msg_fence_unpack(const struct frame *f, struct msg_fence *m, struct ddp_err *err);
void msg_fence_finish(struct msg_fence *m);

/* From one node to another: on the way up `node` is the destination, on the way down the
 * source (node ranks). The data is borrowed when unpacked. */
struct msg_peer {
    uint32_t node;
    uint32_t service; /* enum msg_service */
    const uint8_t *data;
    size_t ndata;
};
void msg_peer_pack_head(const struct msg_peer *m, struct pack *k); /* the data follows */
int msg_peer_unpack(const struct frame *f, struct msg_peer *m, struct ddp_err *err);

/* Time and memory that a node has saved by forking its ranks. */
struct msg_saved {
    uint32_t import_ms; /* duration of the single import */
    uint32_t forks;     /* ranks forked without it, in all attempts */
    uint64_t kib;       /* memory, when last measured */
};
void msg_saved_pack(const struct msg_saved *m, struct pack *k);
int msg_saved_unpack(const struct frame *f, struct msg_saved *m, struct ddp_err *err);

/* A rank aborts the job. */
struct msg_abort {
    uint32_t rank;
    int32_t code;  /* given by the program */
    int64_t at_ns; /* on the clock of its node */
    char *text;    /* owned: "called MPI_Abort with code 3" */
};
void msg_abort_pack(const struct msg_abort *m, struct pack *k);
int msg_abort_unpack(const struct frame *f, struct msg_abort *m, struct ddp_err *err);
void msg_abort_finish(struct msg_abort *m);

/* What a node's PMIx server needs to know. */
struct msg_serve {
    char *nspace;    /* owned: its PMIx namespace */
    char *host;      /* owned: this node's name in the map */
    char *uri;       /* owned: as given to the ranks */
    char *tmpdir;    /* owned: parent of its own directory */
    uint32_t node;   /* this node's rank */
    uint32_t nranks; /* of the job */
    struct strv map; /* as in msg_job */
};
void msg_serve_pack(const struct msg_serve *m, struct pack *k);
int msg_serve_unpack(const struct frame *f, struct msg_serve *m, struct ddp_err *err);
void msg_serve_finish(struct msg_serve *m);

/* The state of a rank in its PMIx server. Down it is a query, answered with the same rank
 * and MEMBER_ASKED after all earlier events. An agent tells the launcher of its first
 * rank that enters MPI by any service (JOINED), that none is in MPI any more (LEFT), and
 * of one that exited with 0 without entering it (ABSENT). */
enum member_state { MEMBER_JOINED, MEMBER_LEFT, MEMBER_ASKED, MEMBER_ABSENT };
struct msg_member {
    uint32_t rank, state;
};
void msg_member_pack(const struct msg_member *m, struct pack *k);
int msg_member_unpack(const struct frame *f, struct msg_member *m, struct ddp_err *err);

/* The hosts of the job and how to start agents there. */
struct msg_hosts {
    uint32_t width;      /* of the tree */
    uint32_t window;     /* concurrent ssh */
    uint32_t timeout_ms; /* for the whole start */
    char *agent, *ssh;   /* owned */
    uint32_t nhosts;
    struct host {
        char *name, *user; /* owned; user may be NULL */
        uint32_t port;     /* 0: ssh's choice */
        bool started;      /* started otherwise, not by the tree */
    } * hosts;             /* owned; the index is the node number */
};
void msg_hosts_pack(const struct msg_hosts *m, struct pack *k);
int msg_hosts_unpack(const struct frame *f, struct msg_hosts *m, struct ddp_err *err);
void msg_hosts_finish(struct msg_hosts *m);

/* Preflight checks of a node. Sent twice: for the node itself, then for the network to
 * its neighbour. */
struct msg_probe {
    uint32_t phase;      /* enum probe_phase of preflight/check.h */
    struct strv argv;    /* the program; may be empty */
    struct strv env;     /* as in msg_job */
    char *wdir;          /* owned */
    struct strv names;   /* all hosts by node number; "": not in the job */
    char *interface;     /* owned, or NULL */
    uint32_t store_port; /* must be free on node `master`; 0: any port */
    uint32_t master;
    char *peer, *addr; /* owned: the neighbour and where it listens; or NULL */
    uint32_t port;
};
void msg_probe_pack(const struct msg_probe *m, struct pack *k);
int msg_probe_unpack(const struct frame *f, struct msg_probe *m, struct ddp_err *err);
void msg_probe_finish(struct msg_probe *m);

/* One result of a check. */
struct msg_found {
    uint32_t check; /* row of the table of checks; FOUND_END: phase complete */
    bool remark;    /* `problem` is a warning, not a failure */
    int64_t number; /* for rows that compare numbers */
    char *item;     /* owned: one of several, such as a library; or NULL */
    char *value;    /* owned: for display; or NULL */
    char *key;      /* owned: equal on identical hosts; or NULL */
    char *problem;  /* owned: what is wrong, and what to try; or NULL */
};
enum { FOUND_END = 0xffff };
void msg_found_pack(const struct msg_found *m, struct pack *k);
int msg_found_unpack(const struct frame *f, struct msg_found *m, struct ddp_err *err);
void msg_found_finish(struct msg_found *m);

#endif
