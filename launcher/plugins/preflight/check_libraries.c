/* launcher/plugins/preflight/check_libraries.c - shared libraries of the program, and
 * Python packages
 *
 * Runs the dynamic linker with --list, as ldd does, with the environment of ranks; the
 * program is not run. Libraries are compared by their build id, a hash of their contents
 * made at link time, so that hosts need not read hundreds of megabytes of PyTorch.
 */
#include "launcher/plugins/preflight/run.h"

#include "common/digest.h"
#include "common/elf_file.h"
#include "common/mem.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>

/* --- libraries ---------------------------------------------------------------------- */

static void report_library(const struct check_ctx *ctx, const char *name,
                           const char *path)
{
    char sum[DIGEST_TEXT];
    SCOPED(elf_finish) struct elf elf = {0};
    elf_read(path, &elf);
    if (!elf.build_id && digest_file(path, sum, NULL, NULL) == 0)
        elf.build_id = xstrdup(sum);
    if (elf.build_id)
        found_value(ctx, name, elf.build_id, "%s", path);
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
        OWNED char *path = xstrndup(arrow + 4, strcspn(arrow + 4, " ("));
        *arrow = '\0';
        report_library(ctx, line, path);
    } else if (strstr(line, "not found") || strstr(line, "error while loading")) {
        found_problem(ctx, "%s; a program built for a newer system?", line);
    }
}

/* malloc'ed; NULL: linked statically, or not an ELF file. */
static char *linker_of(const char *path)
{
    SCOPED(elf_finish) struct elf elf = {0};
    elf_read(path, &elf);
    return xstrdup(elf.interpreter);
}

void check_libraries(const struct check_ctx *ctx)
{
    char *path = program_path(ctx, false);
    OWNED char *linker = path ? linker_of(path) : NULL;
    if (path && !linker) { /* a script: take its interpreter */
        char *interpreter = program_interpreter(ctx, path, false);
        linker = interpreter ? linker_of(interpreter) : NULL;
        free(path);
        path = interpreter;
    }
    const char *argv[] = {linker, "--list", path, NULL};
    OWNED char *text = linker ? run_output(argv, ctx->env->v, ctx->probe->wdir) : NULL;
    for (char *save, *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        parse_line(ctx, line);
    if (linker && !text)
        found_problem(ctx,
                      "the dynamic linker '%s' that the program asks for is not "
                      "there; a program built for another system?",
                      linker);
    free(path);
}

/* --- Python ------------------------------------------------------------------------- */

/* Without modules of the working directory, which a rank does not import, either. */
static const char script[] = "import sys\n"
                             "sys.path = [p for p in sys.path if p]\n"
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

/* Versions of packages that commonly cause failures, from their metadata: an import would
 * take seconds. */
void check_python(const struct check_ctx *ctx)
{
    enum { SHOWN = 300 }; /* bytes */
    OWNED char *path = program_path(ctx, false);
    OWNED char *interpreter = path && !program_is_python(path)
                                  ? program_interpreter(ctx, path, false)
                                  : xstrdup(path);
    if (interpreter && program_is_python(interpreter)) {
        const char *argv[] = {interpreter, "-c", script, NULL};
        OWNED char *text = run_output(argv, ctx->env->v, ctx->probe->wdir);
        char *end = text ? text + strcspn(text, "\n") : NULL;
        if (end && strncmp(text, "Python ", 7) == 0) {
            *end = '\0';
            found_value(ctx, NULL, text, "%s", text);
        } else {
            found_problem(ctx, "'%s' does not work there: %.*s", interpreter,
                          end && end - text < SHOWN ? (int)(end - text) : SHOWN,
                          text ? text : "cannot start");
        }
    }
}
