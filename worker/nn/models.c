/* worker/nn/models.c - models by name: embedded ones, and files */
#include "common/embedded.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/text_file.h"
#include "worker/nn/model.h"

#include <string.h>
#include <unistd.h>

#define SUFFIX ".model"

static bool is_path(const char *text)
{
    size_t n = strlen(text), end = sizeof SUFFIX - 1;
    return strchr(text, '/') || (n > end && strcmp(text + n - end, SUFFIX) == 0);
}

static void unknown(const char *text, struct ddp_err *err)
{
    OWNED char *names = NULL;
    for (const struct embedded *e = embedded_models; e->name; e++)
        xappendf(&names, "%.*s, ", (int)strcspn(e->name, "."), e->name);
    err_set(err, "unknown model '%s'; there are %sand files: ./net.model", text, names);
}

struct model_type *model_type_find(const char *text, struct ddp_err *err)
{
    bool whole = is_path(text) && access(text, F_OK) == 0; /* a ':' of the path's own */
    size_t n = whole ? strlen(text) : strcspn(text, ":");
    OWNED char *plain = xasprintf("%.*s", (int)n, text),
               *file = xasprintf("%s" SUFFIX, plain);
    bool path = is_path(plain);
    OWNED char *own = path ? text_file_read("model file", plain, err) : NULL;
    const char *inside = path ? own : embedded_text(embedded_models, file);
    struct model_type *type = inside ? description_read(text, path ? plain : file, inside,
                                                        text[n] ? text + n + 1 : "", err)
                                     : NULL;
    if (!inside && !path)
        unknown(plain, err);
    return type;
}
