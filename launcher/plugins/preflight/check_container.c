/* launcher/plugins/preflight/check_container.c - --container: the engine, and its image
 *
 * Nothing is pulled and no container is started: the engine is asked what it has.
 */
#include "launcher/plugins/preflight/run.h"

#include "common/mem.h"
#include "launcher/opts.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What it prints, for the ranks' user in their environment; "" if it cannot start. */
static char *ask(const struct check_ctx *ctx, const char *const *argv)
{
    char *text = run_output(argv, ctx->env->v, ctx->probe->wdir);
    return text ? text : xstrdup("");
}

static bool is_file(const struct check_ctx *ctx, const char *image)
{
    OWNED char *path =
        image[0] == '/' ? xstrdup(image) : xasprintf("%s/%s", ctx->probe->wdir, image);
    return access(path, R_OK) == 0;
}

/* A file, a directory, or the URL of one that is pulled at the start. */
static void check_file(const struct check_ctx *ctx, const char *program,
                       const char *image)
{
    if (strstr(image, "://"))
        found_value(ctx, NULL, image, "'%s', image '%s' is pulled at the start", program,
                    image);
    else if (is_file(ctx, image))
        found_value(ctx, NULL, image, "'%s', image '%s'", program, image);
    else
        found_problem(
            ctx, "no image '%s' there; copy it there, or use a shared directory", image);
}

/* By the image's id, a hash of its contents: 64 hexadecimal digits. */
static void check_podman(const struct check_ctx *ctx, const char *program,
                         const char *image)
{
    enum { ID = 64, SHOWN = 12 };
    const char *argv[] = {program,   "image", "inspect", "--format",
                          "{{.Id}}", image,   NULL};
    OWNED char *text = ask(ctx, argv);
    char *line = text + (strncmp(text, "sha256:", 7) == 0 ? 7 : 0);
    line[strcspn(line, "\n")] = '\0';
    if (strspn(line, "0123456789abcdef") == ID && !line[ID])
        found_value(ctx, NULL, line, "'%s', image '%s' is %.*s", program, image, SHOWN,
                    line);
    else
        found_problem(
            ctx,
            "no image '%s', and none is pulled at the start: podman pull %s (%.200s)",
            image, image, line);
}

static void check_enroot(const struct check_ctx *ctx, const char *program,
                         const char *image)
{
    const char *argv[] = {program, "list", NULL};
    OWNED char *text = ask(ctx, argv);
    bool found = is_file(ctx, image);
    for (char *save, *line = strtok_r(text, "\n", &save); line && !found;
         line = strtok_r(NULL, "\n", &save))
        found = strcmp(line, image) == 0;
    if (found)
        found_value(ctx, NULL, image, "'%s', container '%s'", program, image);
    else
        found_problem(ctx, "no container '%s': enroot create --name %s FILE.sqsh", image,
                      image);
}

static const struct {
    const char *name;
    void (*check)(const struct check_ctx *ctx, const char *program, const char *image);
} engines[] = {{"apptainer", check_file},
               {"singularity", check_file},
               {"podman", check_podman},
               {"enroot", check_enroot}};

/* By the command of a rank, which a peer has from its own command line. */
void check_container(const struct check_ctx *ctx)
{
    const struct strv *argv = &ctx->probe->argv;
    size_t mark = strlen(CONTAINER_MARK);
    if (argv->n < 4 || strncmp(argv->v[2], CONTAINER_MARK, mark) != 0)
        return;
    OWNED char *name = xstrndup(argv->v[2] + mark, strcspn(argv->v[2] + mark, ";"));
    size_t i = 0;
    while (i < ARRAY_LEN(engines) && strcmp(engines[i].name, name) != 0)
        i++;
    if (i == ARRAY_LEN(engines))
        return;
    int code;
    OWNED char *program = program_find(name, ctx->probe->wdir,
                                       strv_env_get(ctx->env, "PATH"), NULL, &code, NULL);
    if (program)
        engines[i].check(ctx, program, argv->v[3]);
    else
        found_problem(
            ctx,
            "no %s in PATH there; install it, load its module, or use another engine "
            "(--container-engine)",
            name);
}
