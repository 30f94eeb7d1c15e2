/* worker/checkpoint.c - see checkpoint.h */
#include "worker/checkpoint.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/strv.h"
#include "worker/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- places ---- */

static bool is_folder(const char *place)
{
    struct stat st;
    size_t len = strlen(place);
    return (len > 0 && place[len - 1] == '/') ||
           (stat(place, &st) == 0 && S_ISDIR(st.st_mode));
}

static char *in_folder(const char *folder, uint64_t step)
{
    size_t len = strlen(folder);
    return xasprintf("%s%sstep-%08" PRIu64 ".safetensors", folder,
                     len > 0 && folder[len - 1] == '/' ? "" : "/", step);
}

/* The file to resume from; the caller frees. NULL: the folder holds none. */
static char *newest(const char *place)
{
    if (!is_folder(place))
        return xstrdup(place);
    uint64_t best = 0, step;
    bool found = false;
    DIR *dir = opendir(place);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        int end = 0;
        if (sscanf(e->d_name, "step-%" SCNu64 ".safetensors%n", &step, &end) == 1 &&
            end > 0 && e->d_name[end] == '\0' && (!found || step > best)) {
            best = step;
            found = true;
        }
    }
    if (dir)
        closedir(dir);
    return found ? in_folder(place, best) : NULL;
}

bool checkpoint_exists(const char *place)
{
    struct stat st;
    char *path = newest(place);
    bool exists = path && stat(path, &st) == 0;
    free(path);
    return exists;
}

int checkpoint_prepare(const char *place, struct ddp_err *err)
{
    char *copy = xstrdup(place);
    bool folder = is_folder(place);
    const char *where = folder ? copy : dirname(copy);
    int rc = 0;
    if (folder && mkdir(place, 0777) < 0 && errno != EEXIST)
        rc = err_errno(err, "cannot make the folder '%s' for checkpoints", place);
    else if (access(where, W_OK | X_OK) < 0)
        rc = err_errno(err, "cannot write checkpoints into '%s'", where);
    free(copy);
    return rc;
}

/* ---- what is in one ---- */

/* One array of the file and where it lies in memory. */
struct slot {
    char *name; /* owned */
    const struct param *param;
    float *data;  /* borrowed from the model or the optimiser */
    bool state;   /* the optimiser's */
    bool counter; /* PyTorch keeps it as an integer, and nothing depends on it */
};

struct slots {
    struct slot *v; /* owned */
    size_t n;
};

static struct slots slots_make(struct model *model, const struct optim *optim)
{
    size_t nparams;
    const struct param *params = model_params(model, &nparams);
    size_t nbuffers, floats;
    const struct param *buffers = model_buffers(model, &nbuffers);
    float *block = model_buffer_block(model, &floats);
    struct slots s = {xcalloc(nparams * (1 + OPTIM_STATES) + nbuffers, sizeof *s.v), 0};
    for (size_t i = 0; i < nparams; i++)
        s.v[s.n++] = (struct slot){xstrdup(params[i].name), &params[i],
                                   model_weights(model) + params[i].offset};
    for (size_t i = 0; i < nbuffers; i++)
        s.v[s.n++] =
            (struct slot){xstrdup(buffers[i].name), &buffers[i],
                          block + buffers[i].offset, .counter = buffers[i].ndim == 0};
    for (int k = 0; k < OPTIM_STATES; k++) {
        for (size_t i = 0; optim->states[k] && i < nparams; i++)
            s.v[s.n++] = (struct slot){
                xasprintf("optim.%s.%s", optim->type->states[k], params[i].name),
                &params[i], optim->states[k] + params[i].offset, .state = true};
    }
    return s;
}

static void slots_free(struct slots *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i].name);
    free(s->v);
}

/* ---- saving ---- */

int checkpoint_save(const char *place, const struct train_state *state,
                    struct model *model, const struct optim *optim,
                    const struct dataset *data, int ranks, int batch_size, char **path,
                    struct ddp_err *err)
{
    struct strv meta = {0};
    strv_push(&meta, "format=pt");
    strv_pushf(&meta, "model=%s", model_type(model)->name);
    strv_pushf(&meta, "optimizer=%s", optim->type->name);
    strv_pushf(&meta, "step=%" PRIu64, state->step);
    strv_pushf(&meta, "epoch=%" PRId64, state->epoch);
    strv_pushf(&meta, "position=%" PRIu64, state->position);
    strv_pushf(&meta, "seed=%" PRIu64, state->seed);
    strv_pushf(&meta, "ranks=%d", ranks);
    strv_pushf(&meta, "batch_size=%d", batch_size);
    strv_pushf(&meta, "train_samples=%zu", data->train.n);
    if (data->task == TASK_CLASSIFY) {
        strv_pushf(&meta, "pixel_mean=%.17g", data->mean);
        strv_pushf(&meta, "pixel_std=%.17g", data->std);
    }

    struct slots slots = slots_make(model, optim);
    struct array *arrays = xcalloc(slots.n, sizeof *arrays);
    for (size_t i = 0; i < slots.n; i++) {
        const struct slot *s = &slots.v[i];
        arrays[i] = (struct array){s->name, s->param->ndim, {0}, s->data};
        memcpy(arrays[i].dims, s->param->dims, sizeof arrays[i].dims);
    }
    *path = is_folder(place) ? in_folder(place, state->step) : xstrdup(place);
    int rc = safetensors_write(*path, &meta, arrays, slots.n, err);
    if (rc < 0) {
        free(*path);
        *path = NULL;
        err_prefix(err, "no checkpoint");
    }
    free(arrays);
    slots_free(&slots);
    strv_finish(&meta);
    return rc;
}

/* ---- loading ---- */

static int get_number(const struct safetensors *f, const char *key, uint64_t *out,
                      struct ddp_err *err)
{
    const char *text = safetensors_metadata(f, key);
    char *end = NULL;
    *out = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    if (!end || *end)
        return err_set(err, "its metadata have no number for '%s'", key);
    return 0;
}

static int get_state(const struct safetensors *f, const struct optim *optim,
                     struct train_state *out, struct ddp_err *err)
{
    const char *name = safetensors_metadata(f, "optimizer");
    if (name && strcmp(name, optim->type->name) != 0)
        return err_set(err, "it was written with --optimizer %s, not %s", name,
                       optim->type->name);
    uint64_t epoch;
    if (get_number(f, "step", &out->step, err) < 0 ||
        get_number(f, "epoch", &epoch, err) < 0 ||
        get_number(f, "position", &out->position, err) < 0 ||
        get_number(f, "seed", &out->seed, err) < 0)
        return -1;
    if (epoch < 1 || epoch > INT32_MAX)
        return err_set(err, "its metadata say epoch %" PRIu64, epoch);
    out->epoch = (int64_t)epoch;
    return 0;
}

static void shape_text(int ndim, const int *dims, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%d", i ? ", " : "", dims[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

static int match(const struct safetensors *f, const struct slot *s, struct array *out,
                 struct ddp_err *err)
{
    int found = safetensors_find(f, s->name, out, err);
    if (s->counter && found <= 0) {
        *out = (struct array){0};
        return 0;
    }
    if (found < 0)
        return -1;
    if (!found)
        return err_set(err,
                       s->state ? "it lacks '%s': was it written without momentum?"
                                : "it lacks '%s': it is of another model",
                       s->name);
    if (out->ndim == s->param->ndim &&
        memcmp(out->dims, s->param->dims, (size_t)out->ndim * sizeof *out->dims) == 0)
        return 0;
    char theirs[64], ours[64];
    shape_text(out->ndim, out->dims, theirs, sizeof theirs);
    shape_text(s->param->ndim, s->param->dims, ours, sizeof ours);
    return err_set(err, "'%s' is %s in it and %s in this model", s->name, theirs, ours);
}

static int load_file(const struct safetensors *f, struct train_state *state,
                     struct model *model, struct optim *optim, bool *whole,
                     struct ddp_err *err)
{
    const char *name = safetensors_metadata(f, "model");
    if (name && strcmp(name, model_type(model)->name) != 0)
        return err_set(err, "it is of model '%s', not '%s'", name,
                       model_type(model)->name);
    struct train_state read = *state;
    *whole = safetensors_metadata(f, "step") != NULL;
    if (*whole && get_state(f, optim, &read, err) < 0)
        return -1;
    struct slots slots = slots_make(model, optim);
    struct array *arrays = xcalloc(slots.n, sizeof *arrays);
    int rc = 0;
    for (size_t i = 0; i < slots.n && rc == 0; i++) {
        if (*whole || !slots.v[i].state)
            rc = match(f, &slots.v[i], &arrays[i], err);
    }
    for (size_t i = 0; i < slots.n && rc == 0; i++) {
        if (arrays[i].data)
            memcpy(slots.v[i].data, arrays[i].data,
                   slots.v[i].param->count * sizeof(float));
    }
    if (rc == 0) {
        *state = read;
        optim->steps = read.step;
    }
    free(arrays);
    slots_free(&slots);
    return rc;
}

int checkpoint_load(const char *place, struct train_state *state, struct model *model,
                    struct optim *optim, bool *whole, struct ddp_err *err)
{
    char *path = newest(place);
    if (!path)
        return err_set(err, "no checkpoint 'step-*.safetensors' in folder '%s'", place);
    int rc = -1;
    struct safetensors *f = safetensors_read(path, err);
    if (f && (rc = load_file(f, state, model, optim, whole, err)) < 0)
        err_prefix(err, "'%s'", path);
    safetensors_free(f);
    free(path);
    return rc < 0 ? err_prefix(err, "cannot resume") : 0;
}
