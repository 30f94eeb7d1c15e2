/* mpi_check WHAT: an MPI program that knows nothing of ddprun and checks what MPI does
 *
 * Compiled by the tests with the mpicc of each MPI that is there. Rank 0 writes one line
 * when everything was right: "WHAT ok on N ranks, L of them here". */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static void must(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "rank %d: %s is wrong\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 9);
}

static void ring(void)
{
    int token = 0, next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int round = 0; round < 10; round++) {
        if (rank > 0)
            MPI_Recv(&token, 1, MPI_INT, before, round, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        token++;
        if (size > 1)
            MPI_Send(&token, 1, MPI_INT, next, round, MPI_COMM_WORLD);
        if (rank == 0 && size > 1)
            MPI_Recv(&token, 1, MPI_INT, before, round, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    }
    must(rank > 0 || token == 10 * size, "the token");
}

/* What osu_latency and osu_bibw do: there and back, then a window of messages both ways,
 * between every rank and its opposite. */
static void points(void)
{
    enum { LARGEST = 1 << 20, WINDOW = 16 };
    int peer = size - 1 - rank;
    char *out = malloc(LARGEST), *in = malloc((size_t)LARGEST * WINDOW);
    if (peer == rank || !out || !in)
        return;
    for (size_t n = 0; n <= LARGEST; n = n ? n * 16 : 1) {
        memset(out, rank + (int)(n % 7), LARGEST);
        memset(in, 0, LARGEST);
        if (rank < peer) {
            MPI_Send(out, (int)n, MPI_CHAR, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(in, (int)n, MPI_CHAR, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, (int)n, MPI_CHAR, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, (int)n, MPI_CHAR, peer, 1, MPI_COMM_WORLD);
        }
        for (size_t i = 0; i < n; i++)
            must(in[i] == (char)(peer + (int)(n % 7)), "a byte");
        MPI_Request r[2 * WINDOW];
        int window = n > 65536 ? 2 : WINDOW;
        for (int i = 0; i < window; i++) {
            MPI_Irecv(in + n * (size_t)i, (int)n, MPI_CHAR, peer, 2, MPI_COMM_WORLD,
                      &r[i]);
            MPI_Isend(out, (int)n, MPI_CHAR, peer, 2, MPI_COMM_WORLD, &r[window + i]);
        }
        MPI_Waitall(2 * window, r, MPI_STATUSES_IGNORE);
    }
    MPI_Status s;
    MPI_Sendrecv(&rank, 1, MPI_INT, peer, 3, in, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG,
                 MPI_COMM_WORLD, &s);
    must(s.MPI_SOURCE == peer && s.MPI_TAG == 3 && memcmp(in, &peer, sizeof peer) == 0,
         "a message from any source");
    free(out);
    free(in);
}

static void collectives_of(MPI_Comm comm, int n)
{
    int me, all;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    int total = all * (all - 1) / 2;
    int *a = calloc((size_t)n * (size_t)all, sizeof *a),
        *b = calloc((size_t)n * (size_t)all, sizeof *b);
    if (!a || !b)
        must(0, "memory");
    for (int i = 0; i < n; i++)
        a[i] = me == all - 1 ? i : -1;
    MPI_Bcast(a, n, MPI_INT, all - 1, comm);
    for (int i = 0; i < n; i++)
        must(a[i] == i, "bcast");
    for (int i = 0; i < n; i++)
        a[i] = me + i;
    MPI_Allreduce(a, b, n, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < n; i++)
        must(b[i] == total + all * i, "allreduce");
    MPI_Reduce(a, b, n, MPI_INT, MPI_MAX, 0, comm);
    for (int i = 0; i < n && me == 0; i++)
        must(b[i] == all - 1 + i, "reduce");
    MPI_Allgather(a, n, MPI_INT, b, n, MPI_INT, comm);
    for (int i = 0; i < n * all; i++)
        must(b[i] == i / n + i % n, "allgather");
    MPI_Gather(a, n, MPI_INT, b, n, MPI_INT, 0, comm);
    MPI_Scatter(b, n, MPI_INT, a, n, MPI_INT, 0, comm);
    for (int i = 0; i < n; i++)
        must(a[i] == me + i, "gather and scatter");
    for (int i = 0; i < n * all; i++)
        a[i] = me * 1000 + i / n;
    MPI_Alltoall(a, n, MPI_INT, b, n, MPI_INT, comm);
    for (int i = 0; i < n * all; i++)
        must(b[i] == i / n * 1000 + me, "alltoall");
    MPI_Scan(&me, b, 1, MPI_INT, MPI_SUM, comm);
    must(b[0] == me * (me + 1) / 2, "scan");
    MPI_Barrier(comm);
    free(a);
    free(b);
}

static void collectives(void)
{
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    for (int n = 1; n <= 65536; n *= 16) {
        collectives_of(MPI_COMM_WORLD, n);
        collectives_of(half, n);
    }
    MPI_Comm_free(&half);
}

/* Rank 0 prints the number of each rank's program. */
static void appnums(void)
{
    int *mine, found, all[64];
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &mine, &found);
    must(found && size <= 64, "MPI_APPNUM");
    MPI_Gather(mine, 1, MPI_INT, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < size && rank == 0; i++)
        printf("%d ", all[i]);
}

/* A program that does not exist, and one that does not call MPI_Init. */
static void spawn(void)
{
    const char *const programs[] = {"child", "true"};
    MPI_Comm children;
    int error;
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int i = 0; i < 2; i++)
        must(MPI_Comm_spawn(programs[i], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0,
                            MPI_COMM_SELF, &children, &error) != MPI_SUCCESS,
             "a spawn that succeeds");
#ifdef OPEN_MPI
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "ompi_non_mpi", "true");
    must(MPI_Comm_spawn("true", MPI_ARGV_NULL, 1, info, 0, MPI_COMM_SELF, &children,
                        &error) == MPI_SUCCESS &&
             children == MPI_COMM_NULL,
         "a spawn without MPI");
    MPI_Info_free(&info);
#endif
}

/* All ranks and those of the other job in one communicator. */
static void meet(MPI_Comm other, int spawned)
{
    int n, number, sum, others;
    MPI_Comm all;
    MPI_Comm_remote_size(other, &others);
    MPI_Intercomm_merge(other, spawned, &all);
    MPI_Comm_size(all, &n);
    MPI_Comm_rank(all, &number);
    must(n == size + others && number == rank + (spawned ? others : 0),
         "the ranks of two jobs");
    MPI_Allreduce(&number, &sum, 1, MPI_INT, MPI_SUM, all);
    must(sum == n * (n - 1) / 2, "a sum over two jobs");
    MPI_Comm_free(&all);
}

/* All ranks together spawn three processes, which do what `what` says. */
static void spawn_some(char *program, char *what)
{
    MPI_Comm children;
    MPI_Info info;
    char *host = getenv("SPAWN_HOST");
    MPI_Info_create(&info);
    if (host)
        MPI_Info_set(info, "host", host);
    MPI_Info_set(info, "wdir", "/");
    MPI_Comm_spawn(program, (char *[]){what, "two words", NULL}, 3, info, 0,
                   MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    MPI_Info_free(&info);
    meet(children, 0);
    MPI_Comm_disconnect(&children);
    if (strcmp(what, "spawn-fails") == 0)
        sleep(60);
}

static volatile sig_atomic_t signalled;

static void on_signal(int sig)
{
    signalled = 1;
}

/* A minute, or until a signal comes. */
static void await_signal(void)
{
    for (int i = 0; i < 600 && !signalled; i++)
        usleep(100000);
    if (signalled)
        printf("%d got the signal\n", rank);
}

static int spawned(MPI_Comm parent, int argc, char **argv)
{
    char dir[9] = "", name[MPI_MAX_PROCESSOR_NAME];
    int n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    must(argc == 3 && strcmp(argv[2], "two words") == 0, "the arguments");
    must(getcwd(dir, sizeof dir) && strcmp(dir, "/") == 0, "the directory");
    meet(parent, 1);
    MPI_Comm_disconnect(&parent);
    MPI_Get_processor_name(name, &n);
    signal(SIGUSR1, on_signal);
    printf("spawned %d of %d on %s\n", rank, size, name);
    fflush(stdout);
    if (strcmp(argv[1], "spawn-fails") == 0 && rank == 1)
        _exit(7);
    if (strcmp(argv[1], "spawn-waits") == 0)
        await_signal();
    MPI_Finalize();
    return 0;
}

/* Rank 0 publishes its port, and rank 1 looks it up and connects, twice. MPI_Lookup_name
 * fails for a name that is not published. */
static void names(void)
{
    char port[MPI_MAX_PORT_NAME];
    MPI_Comm other;
    for (int turn = 0, n = 0; turn < 2; turn++) {
        if (rank == 0) {
            MPI_Open_port(MPI_INFO_NULL, port);
            MPI_Publish_name("ocean", MPI_INFO_NULL, port);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &other);
            MPI_Unpublish_name("ocean", MPI_INFO_NULL, port);
            MPI_Recv(&n, 1, MPI_INT, 0, 0, other, MPI_STATUS_IGNORE);
            must(n == 42 + turn, "a number from another communicator");
        } else {
            MPI_Lookup_name("ocean", MPI_INFO_NULL, port);
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &other);
            n = 42 + turn;
            MPI_Send(&n, 1, MPI_INT, 0, 0, other);
        }
        MPI_Comm_disconnect(&other);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    must(MPI_Lookup_name("ocean", MPI_INFO_NULL, port) != MPI_SUCCESS,
         "an unpublished name");
}

static void end_badly(const char *how)
{
    if (strcmp(how, "abort") == 0)
        MPI_Abort(MPI_COMM_WORLD, 42);
    if (strcmp(how, "exit") == 0)
        _exit(3);
    if (strcmp(how, "leave") == 0)
        _exit(0);
    if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
}

/* Rank 0 aborts just before the last rank ends. */
static void react(void)
{
    int n = 0;
    if (rank == size - 1) {
        MPI_Send(&n, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        usleep(10000);
        _exit(3);
    }
    if (rank == 0) {
        MPI_Recv(&n, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Abort(MPI_COMM_WORLD, 14);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "hello";
    MPI_Comm here, parent;
    int local;
    if (strcmp(what, "spawn-never") == 0 && argc == 3)
        pause();
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL)
        return spawned(parent, argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &local);
    if (strcmp(what, "ring") == 0 || strcmp(what, "all") == 0)
        ring();
    if (strcmp(what, "points") == 0 || strcmp(what, "all") == 0)
        points();
    if (strcmp(what, "collectives") == 0 || strcmp(what, "all") == 0)
        collectives();
    if (strcmp(what, "appnum") == 0)
        appnums();
    if (strcmp(what, "spawn") == 0)
        spawn();
    if (strncmp(what, "spawn-", 6) == 0)
        for (int i = strcmp(what, "spawn-thrice") == 0 ? 3 : 1; i > 0; i--)
            spawn_some(argv[0], argv[1]);
    if (strcmp(what, "names") == 0)
        names();
    if (strcmp(what, "react") == 0)
        react();
    if (rank == size - 1)
        end_badly(what);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s ok on %d ranks, %d of them here\n", what, size, local);
    MPI_Finalize();
    return 0;
}
