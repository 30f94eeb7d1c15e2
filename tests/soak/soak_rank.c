/* tests/soak/soak_rank.c - a rank of the soak: meets the others, writes known lines, ends
 *
 *     soak_rank SEED LINES MS FLAGS [RANK:LINE:CODE...]
 *
 * All ranks meet at the store, then write LINES lines over MS milliseconds. Line i of a
 * rank follows from SEED, its rank and i (line_of() in soak.py). Letters of FLAGS: m meet
 * at the store (from DDPRUN's variables), t ignore SIGTERM and SIGINT, c leave a child in
 * a session of its own. RANK:LINE:CODE: that rank exits with CODE before its line LINE.
 */
#include "include/ddprun/store.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LONG = 20000, SHORT = 200, PATIENCE_MS = 150000 };

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static void meet(int rank, int size)
{
    struct ddp_err err;
    struct ddp_store *s = ddp_store_connect(NULL, 0, PATIENCE_MS, &err);
    struct ddp_value *values = calloc((size_t)size, sizeof *values);
    if (!s || !values ||
        ddp_store_fence(s, "soak", rank, size, &rank, sizeof rank, values, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(3);
    }
    for (int i = 0; i < size; i++) {
        if (values[i].size != sizeof i || memcmp(values[i].data, &i, sizeof i) != 0)
            exit(4);
    }
    ddp_values_free(values, (size_t)size);
    free(values);
    ddp_store_close(s);
}

static void write_line(unsigned seed, int rank, int i)
{
    static char line[LONG + 64];
    unsigned h = (seed * 1000003u + (unsigned)rank * 8191u + (unsigned)i * 127u) % 65521u;
    int size = h % 97 == 0 ? LONG : (int)(h % SHORT), n = sprintf(line, "%d ", i);
    for (int k = 0; k < size; k++)
        line[n + k] = (char)('a' + (h + (unsigned)k) % 26);
    line[n + size] = '\n';
    fwrite(line, 1, (size_t)(n + size + 1), stdout);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    unsigned seed = (unsigned)strtoul(argv[1], NULL, 10);
    int lines = atoi(argv[2]), ms = atoi(argv[3]), rank = number("RANK");
    if (!getenv("RANK"))
        rank = number("OMPI_COMM_WORLD_RANK");
    if (strchr(argv[4], 't')) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
    }
    if (strchr(argv[4], 'c') && fork() == 0) {
        setsid();
        sleep(600);
        _exit(0);
    }
    if (strchr(argv[4], 'm'))
        meet(rank, number("WORLD_SIZE"));
    for (int i = 0; i < lines; i++) {
        for (int k = 5; k < argc; k++) {
            int who, line, code;
            if (sscanf(argv[k], "%d:%d:%d", &who, &line, &code) == 3 && who == rank &&
                line == i)
                exit(code);
        }
        write_line(seed, rank, i);
        long ns = (long)ms * 1000000 / (lines > 0 ? lines : 1);
        nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
    }
    return 0;
}
