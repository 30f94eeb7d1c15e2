/* launcher/plugins/preflight/check_libraries.c - shared libraries of the program, and
 * Python packages
 *
 * Runs the dynamic linker with --list, as ldd does, with the environment of ranks; the
 * program is not run. Libraries are compared by their build id, a hash of their contents
 * made at link time, so that hosts need not read hundreds of megabytes of PyTorch.
 */
#include "launcher/plugins/preflight/run.h"

#include "common/digest.h"
#include "common/mem.h"
#include "launcher/transport/program.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- ELF ---------------------------------------------------------------------------- */

struct image {
    const uint8_t *p; /* mapped */
    size_t n;
};

static bool image_open(struct image *m, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *m = (struct image){0};
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof(Elf64_Ehdr)) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p != MAP_FAILED)
            *m = (struct image){p, (size_t)st.st_size};
    }
    if (fd >= 0)
        close(fd);
    return m->p && memcmp(m->p, ELFMAG, SELFMAG) == 0 && m->p[EI_CLASS] == ELFCLASS64;
}

static void image_close(struct image *m)
{
    if (m->p)
        munmap((void *)(uintptr_t)m->p, m->n);
}

/* The n-th program header; false past the last, or when it is outside the file. */
static bool image_segment(const struct image *m, unsigned n, Elf64_Phdr *out)
{
    Elf64_Ehdr head;
    memcpy(&head, m->p, sizeof head);
    if (n >= head.e_phnum || head.e_phoff > m->n || head.e_phentsize < sizeof *out ||
        (m->n - head.e_phoff) / head.e_phentsize <= n)
        return false;
    memcpy(out, m->p + head.e_phoff + (size_t)n * head.e_phentsize, sizeof *out);
    return out->p_offset <= m->n && out->p_filesz <= m->n - out->p_offset;
}

/* PT_INTERP of `path`, malloc'ed; NULL: static, or no ELF. */
static char *linker_of(const char *path)
{
    struct image m;
    Elf64_Phdr seg;
    char *name = NULL;
    if (image_open(&m, path)) {
        for (unsigned i = 0; !name && image_segment(&m, i, &seg); i++) {
            if (seg.p_type == PT_INTERP)
                name = xstrndup((const char *)m.p + seg.p_offset, seg.p_filesz);
        }
    }
    image_close(&m);
    return name;
}

/* The GNU build id in hex; malloc'ed, NULL: it has none. */
static char *build_id(const char *path)
{
    struct image m;
    Elf64_Phdr seg;
    char *id = NULL;
    bool elf = image_open(&m, path);
    for (unsigned i = 0; elf && !id && image_segment(&m, i, &seg); i++) {
        size_t at = seg.p_offset, end = at + seg.p_filesz;
        /* padding may exceed the segment */
        while (seg.p_type == PT_NOTE && !id && at <= end &&
               end - at >= sizeof(Elf64_Nhdr)) {
            Elf64_Nhdr note;
            memcpy(&note, m.p + at, sizeof note);
            size_t name = at + sizeof note, desc = name + (note.n_namesz + 3U) / 4 * 4;
            if (note.n_namesz > end - at || note.n_descsz > end - at ||
                desc + note.n_descsz > end)
                break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
                memcmp(m.p + name, "GNU", 4) == 0) {
                id = xcalloc(1, note.n_descsz * 2 + 1);
                for (size_t b = 0; b < note.n_descsz; b++)
                    snprintf(id + 2 * b, 3, "%02x", m.p[desc + b]);
            }
            at = desc + (note.n_descsz + 3U) / 4 * 4;
        }
    }
    image_close(&m);
    return id;
}

/* --- libraries ---------------------------------------------------------------------- */

static void report_library(const struct check_ctx *ctx, const char *name,
                           const char *path)
{
    char sum[DIGEST_TEXT];
    char *id = build_id(path);
    if (!id && digest_file(path, sum, NULL, NULL) == 0)
        id = xstrdup(sum);
    if (id)
        found_value(ctx, name, id, "%s", path);
    free(id);
}

/* "libm.so.6 => /lib/libm.so.6 (0x...)", "libx.so => not found", "/lib/ld.so (0x...)",
 * "prog: /lib/libc.so.6: version `GLIBC_2.38' not found (required by prog)" */
static void parse_line(const struct check_ctx *ctx, char *line)
{
    char *arrow = strstr(line, " => ");
    line += strspn(line, " \t");
    if (arrow && strncmp(arrow + 4, "not found", 9) == 0) {
        found_problem(ctx,
                      "the program needs '%.*s', which is not found there; load its "
                      "module, or give LD_LIBRARY_PATH with -x",
                      (int)(arrow - line), line);
    } else if (arrow && arrow[4] == '/') {
        char *path = xstrndup(arrow + 4, strcspn(arrow + 4, " ("));
        *arrow = '\0';
        report_library(ctx, line, path);
        free(path);
    } else if (strstr(line, "not found") || strstr(line, "error while loading")) {
        found_problem(ctx, "%s; a program built for a newer system?", line);
    }
}

void check_libraries(const struct check_ctx *ctx)
{
    char *path = program_path(ctx, false);
    char *linker = path ? linker_of(path) : NULL;
    if (path && !linker) { /* a script: take its interpreter */
        char *interpreter = program_interpreter(ctx, path);
        linker = interpreter ? linker_of(interpreter) : NULL;
        free(path);
        path = interpreter;
    }
    const char *argv[] = {linker, "--list", path, NULL};
    char *text = linker ? run_output(argv, ctx->env->v, ctx->probe->wdir) : NULL;
    for (char *save, *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        parse_line(ctx, line);
    if (linker && !text)
        found_problem(ctx,
                      "the dynamic linker '%s' that the program asks for is not "
                      "there; a program built for another system?",
                      linker);
    free(text);
    free(linker);
    free(path);
}

/* --- Python ------------------------------------------------------------------------- */

static const char script[] = "import sys\n"
                             "try:\n"
                             "    from importlib.metadata import version\n"
                             "except ImportError:\n"
                             "    version = None\n"
                             "found = ['Python ' + sys.version.split()[0]]\n"
                             "for name in ('torch', 'numpy', 'horovod', 'mpi4py'):\n"
                             "    try:\n"
                             "        found.append(name + ' ' + version(name))\n"
                             "    except Exception:\n"
                             "        pass\n"
                             "print(', '.join(found))\n";

static bool is_python(const char *path)
{
    const char *base = path ? strrchr(path, '/') : NULL;
    return base && strncmp(base, "/python", 7) == 0;
}

/* Versions of packages that commonly cause failures, from their metadata: an import would
 * take seconds. */
void check_python(const struct check_ctx *ctx)
{
    char *path = program_path(ctx, false);
    char *interpreter =
        path && !is_python(path) ? program_interpreter(ctx, path) : xstrdup(path);
    if (is_python(interpreter)) {
        const char *argv[] = {interpreter, "-c", script, NULL};
        char *text = run_output(argv, ctx->env->v, ctx->probe->wdir);
        char *end = text ? text + strcspn(text, "\n") : NULL;
        if (end && strncmp(text, "Python ", 7) == 0) {
            *end = '\0';
            found_value(ctx, NULL, text, "%s", text);
        } else {
            found_problem(ctx, "'%s' does not work there: %.*s", interpreter,
                          end ? (int)(end - text) : 12, text ? text : "cannot start");
        }
        free(text);
    }
    free(interpreter);
    free(path);
}
