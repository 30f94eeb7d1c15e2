/* tests/fuzz/fuzz_files.c - files that a user writes or gets from elsewhere
 *
 * Input: a byte that chooses the reader, then the file: programs (--app), options
 * (ddprun/config), data sets (--data-sets), tokens (--data), a program's ELF file, a
 * model
 * (--model). Aborts
 * when a refusal has no words or several lines, and when what was accepted is out of
 * range.
 */
#include "common/elf_file.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/cli/cli.h"
#include "launcher/tools/fetch/catalog.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_file.h"
#include "worker/data/dataset.h"
#include "worker/nn/model.h"

#include <elf.h>
#include <stdbool.h>
#include <string.h>

enum { CONTEXT = 4, VOCABULARY = 50257 };

/* Names for the file, as readers look for "ddprun/config" or at ".bin"; removed at the
 * end. */
static char dir[] = "/tmp/fuzz-files-XXXXXX";
static const char *const names[] = {"ddprun/config", "tokens.bin"};

static char *name_of(size_t i)
{
    return xasprintf("%s/%s", dir, names[i]);
}

static void remove_names(void)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char *name = name_of(i);
        unlink(name);
        free(name);
    }
    char *folder = xasprintf("%s/ddprun", dir);
    rmdir(folder);
    rmdir(dir);
    free(folder);
}

static void make_names(const char *path)
{
    if (!mkdtemp(dir))
        abort();
    atexit(remove_names);
    char *folder = xasprintf("%s/ddprun", dir);
    if (mkdir(folder, 0700) < 0)
        abort();
    free(folder);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char *name = name_of(i);
        if (symlink(path, name) < 0)
            abort();
        free(name);
    }
    log_setup("fuzz", NULL, "error", NULL);
}

static int parse_options(char **argv, struct ddp_err *err)
{
    static FILE *nowhere;
    FILE *out = stdout;
    struct opts opts;
    int argc = 0;
    while (argv[argc])
        argc++;
    if (!nowhere && !(nowhere = fopen("/dev/null", "we")))
        abort();
    stdout = nowhere; /* for --help */
    int rc = cli_parse(argc, argv, &opts, err);
    stdout = out;
    if (rc == 0 && (opts.np < 0 || opts.per_node < 0))
        abort();
    opts_finish(&opts);
    return rc;
}

static int read_app(char *path, struct ddp_err *err)
{
    char name[] = "ddprun", app[] = "--app";
    return parse_options((char *[]){name, app, path, NULL}, err);
}

static int read_config(char *path, struct ddp_err *err)
{
    char name[] = "ddprun", program[] = "train";
    setenv("XDG_CONFIG_HOME", dir, 1);
    int rc = parse_options((char *[]){name, program, NULL}, err);
    unsetenv("XDG_CONFIG_HOME");
    return rc;
}

static int read_catalog(char *path, struct ddp_err *err)
{
    struct data_set set;
    if (catalog_find(path, "mnist", &set, err) < 0)
        return -1;
    for (size_t i = 0; i < set.nfiles; i++) {
        if (set.files[i].bytes <= 0 || strchr(set.files[i].name, '/'))
            abort();
    }
    if (set.nfiles == 0 || set.urls.n == 0)
        abort();
    data_set_finish(&set);
    return 0;
}

static int read_tokens_of(const char *path, struct ddp_err *err)
{
    struct dataset d;
    uint32_t out[CONTEXT + 1];
    if (tokens_load(path, CONTEXT, VOCABULARY, &d, err) < 0)
        return -1;
    const struct samples *parts[] = {&d.train, &d.test};
    for (size_t p = 0; p < ARRAY_LEN(parts); p++) {
        const uint32_t ends[] = {0, (uint32_t)parts[p]->n - 1};
        for (size_t i = 0; parts[p]->n > 0 && i < ARRAY_LEN(ends); i++) {
            tokens_gather(&d, parts[p], &ends[i], 1, out);
            for (size_t t = 0; t < ARRAY_LEN(out); t++) {
                if (out[t] >= VOCABULARY)
                    abort();
            }
        }
    }
    if (d.train.n == 0 || d.test.n == 0)
        abort();
    dataset_finish(&d);
    return 0;
}

static int read_text(char *path, struct ddp_err *err)
{
    return read_tokens_of(path, err);
}

static int read_tokens(char *path, struct ddp_err *err)
{
    char *name = name_of(1);
    int rc = read_tokens_of(name, err);
    free(name);
    return rc;
}

static int read_elf(char *path, struct ddp_err *err)
{
    struct elf elf;
    if (elf_read(path, &elf) < 0)
        return err_set(err, "no words are asked for");
    for (size_t i = 0; i < elf.needs.n && i < 4; i++)
        free(elf_find(path, &elf, NULL, elf.needs.v[i]));
    elf_finish(&elf);
    return 0;
}

static int read_model(char *path, struct ddp_err *err)
{
    struct model_type *type = model_type_find(path, err);
    if (!type)
        return -1;
    int i = 0;
    for (; type->layers[i].kind != LAYER_END; i++) {
        const struct layer_spec *l = &type->layers[i];
        if (l->from > i + 1 || l->shortcut > i || l->outputs < 0 || !l->name)
            abort();
    }
    if (i == 0 || !type->optimizer)
        abort();
    model_type_free(type);
    return 0;
}

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
static const struct row {
    int (*read)(char *path, struct ddp_err *err);
    const char *seed;
} rows[] = {
    {read_app, "# two\n-np 2 ./a --x 1\n-np 3 ./b\n"},
    {read_app, "-H a:2,b:2 --bind-to core -np 4 python3 train.py\n"},
    {read_config, "[ddprun]\nssh = ssh -q\nverbose = yes\nnode-timeout = 5s\n"},
    {read_config, "; c\nhostfile = h\npreload = no\noutput-filename=o\n"},
    {read_catalog, "[mnist]\nabout = digits\nurl = https://x/y\nfile = a.gz 12 " SHA
                   "\n[other]\nurl = file:///x\nfile = b 3 " SHA "\n"},
    {read_catalog, "[mnist]\nurl = file:///x\nfile = ../b 3 " SHA "\n"},
    {read_text, "a text of some tokens"},
    {read_tokens, "ababababababababababab"},
    {read_elf, ""}, /* this machine's header, below */
    {read_model, "optimizer = sgd\nc conv outputs=4 size=3 pad=1 stride=2\nn norm relu\n"
                 "d conv size=1 outputs=4 from=c\nm norm add=n\na mean\nf linear\n"},
    {read_model, "task = tokens\noptimizer = a\ncontext = 4\nvocabulary = 9 # all\n"
                 "w embed outputs=6\na attention heads=2\nd dense outputs=6 add=w\n"},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_err err = {""};
    if (size == 0)
        return 0;
    char *path = xstrdup(file_of(data + 1, size - 1));
    if (strstr(dir, "XXXXXX"))
        make_names(path);
    if (rows[data[0] % ARRAY_LEN(rows)].read(path, &err) < 0 &&
        (!err.text[0] || strchr(err.text, '\n'))) {
        fprintf(stderr, "a refusal without words, or of several lines: '%s'\n", err.text);
        abort();
    }
    free(path);
    return 0;
}

/* The head of a program with a dynamic section and its strings. */
static size_t elf_seed(uint8_t *out)
{
    struct {
        Elf64_Ehdr head;
        Elf64_Phdr load, dynamic;
        Elf64_Dyn entries[5];
        char strings[24];
    } f = {
        .head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                 .e_type = ET_DYN,
                 .e_machine = EM_X86_64,
                 .e_version = EV_CURRENT,
                 .e_phoff = sizeof(Elf64_Ehdr),
                 .e_ehsize = sizeof(Elf64_Ehdr),
                 .e_phentsize = sizeof(Elf64_Phdr),
                 .e_phnum = 2},
        .strings = "\0libmpi.so.40\0$ORIGIN",
    };
    const size_t entries = (size_t)((char *)f.entries - (char *)&f);
    const size_t strings = (size_t)(f.strings - (char *)&f);
    f.load = (Elf64_Phdr){.p_type = PT_LOAD, .p_filesz = sizeof f, .p_memsz = sizeof f};
    f.dynamic = (Elf64_Phdr){.p_type = PT_DYNAMIC,
                             .p_offset = entries,
                             .p_vaddr = entries,
                             .p_filesz = sizeof f.entries,
                             .p_memsz = sizeof f.entries};
    f.entries[0] = (Elf64_Dyn){DT_NEEDED, {1}};
    f.entries[1] = (Elf64_Dyn){DT_RUNPATH, {14}};
    f.entries[2] = (Elf64_Dyn){DT_STRTAB, {strings}};
    f.entries[3] = (Elf64_Dyn){DT_STRSZ, {sizeof f.strings}};
    memcpy(out, &f, sizeof f);
    return sizeof f;
}

/* `room` is a driver's, of thousands of bytes. */
size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    size_t i = n % ARRAY_LEN(rows), size = 1 + strlen(rows[i].seed);
    data[0] = (uint8_t)i;
    memcpy(data + 1, rows[i].seed, size - 1);
    if (rows[i].read == read_elf)
        size = 1 + elf_seed(data + 1);
    /* a third of those with tokens have llm.c's header */
    if (rows[i].read == read_tokens && n % 3 == 0) {
        memset(data + 1, 0, 1024);
        memcpy(data + 1, &(uint32_t){n % 2 ? 20240801 : 20240520}, 4);
        memset(data + 1 + 1024, 1 - (int)(n % 2), 64);
        size = 1 + 1024 + 64;
    }
    return size < room ? size : room;
}
