/* worker/nn/models.c - models by name: embedded ones, gpt2, and files */
#include "common/embedded.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/text_file.h"
#include "worker/nn/description.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX ".model"

static bool is_path(const char *text)
{
    size_t n = strlen(text), end = sizeof SUFFIX - 1;
    return strchr(text, '/') || (n > end && strcmp(text + n - end, SUFFIX) == 0);
}

static struct model_type *read_path(const char *path, struct ddp_err *err)
{
    char *text = text_file_read("model", path, err);
    struct model_type *type = text ? description_read(path, path, text, err) : NULL;
    free(text);
    return type;
}

static struct model_type *unknown(const char *text, struct ddp_err *err)
{
    char names[200] = "";
    size_t used = 0;
    for (const struct embedded *e = embedded_models; e->name && used < sizeof names; e++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%.*s, ",
                                 (int)strcspn(e->name, "."), e->name);
    err_set(err, "unknown model '%s'; there are %sgpt2, and files: ./net.model", text,
            names);
    return NULL;
}

struct model_type *model_type_find(const char *text, struct ddp_err *err)
{
    if (strcmp(text, "gpt2") == 0 || strncmp(text, "gpt2:", 5) == 0)
        return gpt2_make(text, err);
    if (is_path(text))
        return read_path(text, err);
    char *file = xasprintf("%s" SUFFIX, text);
    const char *inside = embedded_text(embedded_models, file);
    struct model_type *type = inside ? description_read(text, file, inside, err) : NULL;
    free(file);
    return inside ? type : unknown(text, err);
}
