/* launcher/link/message.h - what is said in the frames that have more than a number
 * inside
 *
 * Each message is a struct with a pack function, and an unpack function that fills a
 * zeroed struct and is all or nothing: on failure what it had taken is freed already.
 * Byte tables: doc/agent.md, which a change here has to follow; so has LINK_PROTOCOL.
 */
#ifndef LAUNCHER_LINK_MESSAGE_H
#define LAUNCHER_LINK_MESSAGE_H

#include "common/secret.h"
#include "common/strv.h"
#include "launcher/link/frame.h"

#include <sys/socket.h>

/* Another one is for a test only: an agent of a version to come. */
#ifndef LINK_PROTOCOL_IS
#define LINK_PROTOCOL_IS 1
#endif
enum { LINK_PROTOCOL = LINK_PROTOCOL_IS };

/* Output that an agent may send before it hears CREDIT, and the same for input down. */
enum { OUTPUT_CREDIT = 512 << 10, INPUT_CREDIT = 256 << 10 };

/* An agent's first words. */
struct msg_hello {
    uint32_t protocol; /* LINK_PROTOCOL; stands first, for ever */
    char *version;     /* owned: of the program */
    char *hostname;    /* owned: as the machine calls itself */
    uint32_t ncpus;    /* that a rank may use there */
    uint32_t ngpus;
    char *addr;        /* owned: this end of its link, without port; NULL: local */
    struct strv addrs; /* every address of the machine */
};
void msg_hello_pack(const struct msg_hello *m, struct pack *k);
int msg_hello_unpack(const struct frame *f, struct msg_hello *m, struct ddp_err *err);
void msg_hello_finish(struct msg_hello *m);

/* Where the store shall listen; answered by READY or CANNOT. */
struct msg_store {
    char *addr;      /* owned: to listen on and to be MASTER_ADDR; NULL: choose */
    char *interface; /* owned: choose the address of this one; NULL: any */
    uint32_t port;   /* 0: any free one */
    bool open;       /* everybody is admitted */
    bool serve;      /* false: only find a port that is free (--store rank0) */
    char *wish;      /* owned: MASTER_ADDR as the user has it set; NULL */
    bool alone;      /* no other node: loopback is as good as any address */
};
void msg_store_pack(const struct msg_store *m, struct pack *k);
int msg_store_unpack(const struct frame *f, struct msg_store *m, struct ddp_err *err);
void msg_store_finish(struct msg_store *m);

/* What every node needs to know of the job. */
struct msg_job {
    struct strv argv;     /* the program */
    struct strv env;      /* of the launcher, with -x applied */
    struct strv user_set; /* names given by -x */
    struct strv map;      /* of each node that has ranks, in their order: "0-3,8 HOST" */
    char *wdir;           /* owned */
    char *id;             /* owned: TORCHELASTIC_RUN_ID */
    char *master_addr;    /* owned */
    char *interface;      /* owned, or NULL */
    char *preload;        /* owned: as in struct opts; NULL: nothing */
    uint32_t master_port; /* 0: this agent binds the store itself (one node only) */
    uint32_t nranks, nnodes;
    uint32_t rank_names, store_mode, bind_to, input;
    uint32_t mpi;     /* enum mpi_serve */
    uint32_t columns; /* of the terminal that ranks' lines end on; 0: none */
    uint32_t max_restarts;
    bool report;       /* what was saved is to be told */
    uint32_t attempt;  /* from 0; the first is not sent, others by AGAIN */
    bool env_complete; /* env is all there is (local jobs); never sent */
};
void msg_job_pack(const struct msg_job *m, struct pack *k);
int msg_job_unpack(const struct frame *f, struct msg_job *m, struct ddp_err *err);
void msg_job_finish(struct msg_job *m);

/* What one node shall do in it. */
struct msg_share {
    char *host;         /* owned: the node's name in the allocation */
    uint32_t node_rank; /* its place among the nodes that have ranks */
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
    int32_t status;    /* as waitpid() tells it */
    int64_t at_ns;     /* on the clock of its node */
    uint64_t peak_kib; /* resident at most */
    bool told;         /* it had been told to end before */
};
void msg_exit_pack(const struct msg_exit *m, struct pack *k);
int msg_exit_unpack(const struct frame *f, struct msg_exit *m, struct ddp_err *err);

/* A rank (or the store: rank ~0) that cannot be started. */
struct msg_cannot {
    uint32_t rank;
    uint32_t code; /* our exit code: 125, 126, 127 */
    char *text;    /* owned: the line */
};
void msg_cannot_pack(const struct msg_cannot *m, struct pack *k);
int msg_cannot_unpack(const struct frame *f, struct msg_cannot *m, struct ddp_err *err);
void msg_cannot_finish(struct msg_cannot *m);

/* Something about a node: that it is lost, or cannot be reached. */
struct msg_node {
    uint32_t node;
    char *text; /* owned */
};
void msg_node_pack(const struct msg_node *m, struct pack *k);
int msg_node_unpack(const struct frame *f, struct msg_node *m, struct ddp_err *err);
void msg_node_finish(struct msg_node *m);

/* A connection at the store, seen by its server: who has the other end? */
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

/* Who meets at a fence or speaks to whom: the two services have numbers and keys of their
 * own. */
enum msg_service { SERVICE_PMIX, SERVICE_PMI };

/* A fence: each of `nodes` brings bytes, and when the last one has, each gets what all
 * have brought, in one piece and in the same order. It is told from others by everything
 * that stands before `status`. Borrowed from the frame when unpacked, except `nodes`. */
struct msg_fence {
    uint32_t service; /* enum msg_service */
    const uint8_t *key;
    uint32_t nkey;
    uint32_t nnodes; /* how many meet, by node rank; 0: all */
    uint32_t *nodes; /* owned, or NULL */
    int32_t status;  /* 0, or what is wrong with what it brings; the first stays */
    const uint8_t *data;
    size_t ndata; /* the rest of the frame */
};
void msg_fence_pack_head(const struct msg_fence *m, struct pack *k); /* up to status */
int msg_fence_unpack(const struct frame *f, struct msg_fence *m, struct ddp_err *err);
void msg_fence_finish(struct msg_fence *m);

/* From one node to another: on the way up `node` is the one it goes to, on the way down
 * the one it comes from (node ranks). The data is borrowed when unpacked. */
struct msg_peer {
    uint32_t node;
    uint32_t service; /* enum msg_service */
    const uint8_t *data;
    size_t ndata;
};
void msg_peer_pack_head(const struct msg_peer *m, struct pack *k); /* the data follows */
int msg_peer_unpack(const struct frame *f, struct msg_peer *m, struct ddp_err *err);

/* What a node has saved by forking its ranks. */
struct msg_saved {
    uint32_t import_ms; /* how long the one import took */
    uint32_t forks;     /* ranks that did without, of all attempts */
    uint64_t kib;       /* of memory, at the last look */
};
void msg_saved_pack(const struct msg_saved *m, struct pack *k);
int msg_saved_unpack(const struct frame *f, struct msg_saved *m, struct ddp_err *err);

/* A rank ends the job. */
struct msg_abort {
    uint32_t rank;
    int32_t code;  /* as the program gave it */
    int64_t at_ns; /* on the clock of its node */
    char *text;    /* owned: what it has done, "called MPI_Abort with code 3" */
};
void msg_abort_pack(const struct msg_abort *m, struct pack *k);
int msg_abort_unpack(const struct frame *f, struct msg_abort *m, struct ddp_err *err);
void msg_abort_finish(struct msg_abort *m);

/* What a node's PMIx server has to know. */
struct msg_serve {
    char *nspace;    /* owned: the name of the world that it serves */
    char *host;      /* owned: this node's name in the map */
    char *uri;       /* owned: as the ranks have been told */
    char *tmpdir;    /* owned: where it makes a directory of its own */
    uint32_t node;   /* this node's rank */
    uint32_t nranks; /* in all */
    struct strv map; /* as in msg_job */
};
void msg_serve_pack(const struct msg_serve *m, struct pack *k);
int msg_serve_unpack(const struct frame *f, struct msg_serve *m, struct ddp_err *err);
void msg_serve_finish(struct msg_serve *m);

/* A rank and its PMIx server. Down it is a question, answered by the same rank and
 * MEMBER_ASKED, behind everything that was told before. To the launcher an agent tells of
 * the first of its ranks that is in MPI, by whichever service (JOINED), that none is any
 * more (LEFT), and of one that has exited with 0 and never was (ABSENT). */
enum member_state { MEMBER_JOINED, MEMBER_LEFT, MEMBER_ASKED, MEMBER_ABSENT };
struct msg_member {
    uint32_t rank, state;
};
void msg_member_pack(const struct msg_member *m, struct pack *k);
int msg_member_unpack(const struct frame *f, struct msg_member *m, struct ddp_err *err);

/* The hosts of the job and how to start agents there. */
struct msg_hosts {
    uint32_t width;      /* of the tree */
    uint32_t window;     /* ssh at once */
    uint32_t timeout_ms; /* for all of it */
    char *agent, *ssh;   /* owned */
    uint32_t nhosts;
    struct host {
        char *name, *user; /* owned; user may be NULL */
        uint32_t port;     /* 0: ssh's choice */
        bool started;      /* by other means: not by the tree */
    } * hosts;             /* owned; the index is the node number */
};
void msg_hosts_pack(const struct msg_hosts *m, struct pack *k);
int msg_hosts_unpack(const struct frame *f, struct msg_hosts *m, struct ddp_err *err);
void msg_hosts_finish(struct msg_hosts *m);

/* Is this node fit for the job? Asked twice: for itself, then for the way to its
 * neighbour. */
struct msg_probe {
    uint32_t phase;      /* enum probe_phase of preflight/check.h */
    struct strv argv;    /* the program; may be empty */
    struct strv env;     /* as in msg_job */
    char *wdir;          /* owned */
    struct strv names;   /* of all hosts, by node number; "": not in the job */
    char *interface;     /* owned, or NULL */
    uint32_t store_port; /* that has to be free on node `master`; 0: any is fine */
    uint32_t master;
    struct secret token; /* what neighbours show each other */
    char *peer, *addr;   /* owned: the neighbour and where it listens; or NULL */
    uint32_t port;
};
void msg_probe_pack(const struct msg_probe *m, struct pack *k);
int msg_probe_unpack(const struct frame *f, struct msg_probe *m, struct ddp_err *err);
void msg_probe_finish(struct msg_probe *m);

/* One thing that has been found. */
struct msg_found {
    uint32_t check; /* its row in the table of checks; FOUND_END: all of this phase */
    bool remark;    /* `problem` is worth a line, and is no failure */
    int64_t number; /* for rows that compare numbers */
    char *item;     /* owned: which of several, such as a library; or NULL */
    char *value;    /* owned: for people; or NULL */
    char *key;      /* owned: the same on hosts that are alike; or NULL */
    char *problem;  /* owned: what is wrong, and what to try; or NULL */
};
enum { FOUND_END = 0xffff };
void msg_found_pack(const struct msg_found *m, struct pack *k);
int msg_found_unpack(const struct frame *f, struct msg_found *m, struct ddp_err *err);
void msg_found_finish(struct msg_found *m);

#endif
