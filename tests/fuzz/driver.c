/* tests/fuzz/driver.c - runs a fuzz target without libFuzzer
 *
 *     fuzz_NAME_plain [-a CORPUS] [-n RUNS] [-s SEED] [-k FILE]   the corpus; mutate
 * seeds fuzz_NAME_plain [-a CORPUS] -c DIR          write corpus and seeds, for libFuzzer
 *     fuzz_NAME_plain FILE...                     one run per file, as libFuzzer left it
 *
 * The same seed gives the same inputs. With -k FILE each input is kept there while it
 * runs, so that a crash leaves it behind. A corpus (keep.py) is a file of inputs: the
 * size of each in two bytes, low one first, and its bytes.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 1 << 16, SEEDS = 64, MUTATIONS_MAX = 8 };

static uint64_t state;

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* One of: another byte, an extreme byte, bytes out, bytes in, bytes twice. */
static size_t mutate(uint8_t *data, size_t size)
{
    static const uint8_t extremes[] = {0, 1, 0x7f, 0x80, 0xff};
    if (size == 0) {
        data[0] = (uint8_t)next();
        return 1;
    }
    size_t at = next() % size, n = 1 + next() % 16;
    switch (next() % 5) {
    case 0:
        data[at] = (uint8_t)next();
        return size;
    case 1:
        data[at] = extremes[next() % sizeof extremes];
        return size;
    case 2:
        n = n < size - at ? n : size - at;
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 3:
        n = n < ROOM - size ? n : ROOM - size;
        memmove(data + at + n, data + at, size - at);
        for (size_t i = 0; i < n; i++)
            data[at + i] = (uint8_t)next();
        return size + n;
    default:
        n = size - at < ROOM - size ? size - at : ROOM - size;
        memcpy(data + size, data + at, n);
        return size + n;
    }
}

/* In a block of its own size, so that a sanitizer sees the first byte too far. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        abort();
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static int write_file(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "wbe");
    size_t done = f ? fwrite(data, 1, size, f) : 0;
    if (!f || fclose(f) != 0 || done != size) {
        perror(path);
        return -1;
    }
    return 0;
}

/* Run each input of the corpus, or write it to a folder. */
static int each_kept(const char *corpus, const char *dir, const char *keep)
{
    static uint8_t data[ROOM];
    uint8_t head[2];
    unsigned n = 0;
    FILE *f = fopen(corpus, "rbe");
    for (; f && fread(head, 1, 2, f) == 2; n++) {
        size_t size = head[0] + head[1] * 256u;
        char path[4096];
        snprintf(path, sizeof path, "%s/kept-%04u", dir ? dir : "", n);
        if (fread(data, 1, size, f) != size)
            break;
        if ((dir || keep) && write_file(dir ? path : keep, data, size) < 0)
            return -1;
        if (!dir)
            run(data, size);
    }
    if (!f || !feof(f) || fclose(f) != 0) {
        fprintf(stderr, "%s: no corpus\n", corpus);
        return -1;
    }
    printf("%u inputs of %s\n", n, corpus);
    return 0;
}

static int write_seeds(const char *dir, const char *corpus)
{
    static uint8_t data[ROOM];
    mkdir(dir, 0777);
    if (corpus && each_kept(corpus, dir, NULL) < 0)
        return 1;
    for (unsigned i = 0; i < SEEDS; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%02u", dir, i);
        if (write_file(path, data, fuzz_seed(i, data, ROOM)) < 0)
            return 1;
    }
    return 0;
}

static int run_file(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rbe");
    if (!f) {
        perror(path);
        return 1;
    }
    size_t size = fread(data, 1, sizeof data, f);
    fclose(f);
    run(data, size);
    return 0;
}

static int run_mutations(unsigned runs, uint64_t seed, const char *keep)
{
    static uint8_t data[ROOM];
    for (unsigned i = 0; i < runs; i++) {
        state = seed * 1000003 + i;
        next();
        size_t size = fuzz_seed(next() % SEEDS, data, ROOM);
        for (unsigned n = next() % MUTATIONS_MAX; n > 0; n--)
            size = mutate(data, size);
        if (keep && write_file(keep, data, size) < 0)
            return 1;
        run(data, size);
    }
    if (keep)
        unlink(keep);
    printf("%u runs from seed %llu\n", runs, (unsigned long long)seed);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned runs = 300000;
    uint64_t seed = 1;
    const char *keep = NULL, *corpus = NULL;
    for (int opt; (opt = getopt(argc, argv, "a:n:s:c:k:")) != -1;) {
        switch (opt) {
        case 'n':
            runs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 's':
            seed = strtoull(optarg, NULL, 10);
            break;
        case 'k':
            keep = optarg;
            break;
        case 'a':
            corpus = optarg;
            break;
        case 'c':
            return write_seeds(optarg, corpus);
        default:
            return 2;
        }
    }
    int failed = 0;
    for (int i = optind; i < argc; i++)
        failed |= run_file(argv[i]);
    if (optind < argc)
        return failed;
    if (corpus && each_kept(corpus, NULL, keep) < 0)
        return 1;
    return run_mutations(runs, seed, keep);
}
