/* worker/ddp/checkpoint.c - see checkpoint.h */
#include "worker/ddp/checkpoint.h"

#include "common/err.h"
#include "common/folder.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "common/scoped.h"
#include "common/strv.h"
#include "worker/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- places ---- */

static bool names_folder(const char *place)
{
    size_t len = strlen(place);
    return (len > 0 && place[len - 1] == '/') || is_folder(place);
}

static char *in_folder(const char *folder, uint64_t step)
{
    size_t len = strlen(folder);
    return xasprintf("%s%sstep-%08" PRIu64 ".safetensors", folder,
                     len > 0 && folder[len - 1] == '/' ? "" : "/", step);
}

/* The newest checkpoint in a folder of a step below `*below`, which becomes its step; the
 * caller frees. NULL: there is none. */
static char *newest(const char *place, uint64_t *below)
{
    uint64_t best = 0, step;
    bool found = false;
    if (!names_folder(place)) {
        found = *below > 0;
        *below = 0;
        return found ? xstrdup(place) : NULL;
    }
    SCOPED(close_folder) DIR *dir = opendir(place);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        int end = 0;
        if (sscanf(e->d_name, "step-%" SCNu64 ".safetensors%n", &step, &end) == 1 &&
            end > 0 && e->d_name[end] == '\0' && step < *below &&
            (!found || step > best)) {
            best = step;
            found = true;
        }
    }
    *below = best;
    return found ? in_folder(place, best) : NULL;
}

bool checkpoint_exists(const char *place)
{
    struct stat st;
    uint64_t below = UINT64_MAX;
    OWNED char *path = newest(place, &below);
    return path && stat(path, &st) == 0;
}

/* Is it a file with something else in it, the data, say? A checkpoint begins with its
 * header's length, in 8 bytes, and JSON. */
static bool has_other_content(const char *place)
{
    char head[9];
    SCOPED(close_fd) int fd = open(place, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, head, sizeof head);
    return n > 0 && (n < (ssize_t)sizeof head || head[8] != '{');
}

int checkpoint_prepare(const char *place, struct ddp_err *err)
{
    bool folder = names_folder(place);
    if (folder && mkdir(place, 0777) < 0 && errno != EEXIST)
        return err_errno(err, "cannot make the folder '%s' for checkpoints", place);
    const char *why =
        output_path_check(place, folder ? OUTPUT_PATH_FOLDER : OUTPUT_PATH_REPLACED);
    if (!why && has_other_content(place))
        why = "it is a file, and no checkpoint";
    return why ? err_set(err, "cannot write checkpoints to '%s': %s", place, why) : 0;
}

static bool is_same_file(int a, int b)
{
    struct stat x, y;
    return a >= 0 && fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

int checkpoint_lock(const char *place, int *lock, struct ddp_err *err)
{
    SCOPED(close_fd) int fd = open(place, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) /* it is not there, or is not to be read: reported elsewhere */
        return 0;
    if (is_same_file(*lock, fd))
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return err_set(err,
                       "another run saves to '%s': end it, or give this one another "
                       "place for its checkpoints",
                       place);
    checkpoint_unlock(lock);
    *lock = fd;
    fd = -1; /* kept */
    return 0;
}

void checkpoint_unlock(int *lock)
{
    close_fd(lock);
    *lock = -1;
}

/* ---- what is in one ---- */

/* The arrays of a run, with its own memory, those of the optimiser last. */
struct arrays {
    struct array *v; /* owned, with their names */
    size_t n, first_state;
};

static void add(struct arrays *all, char *name, const struct param *p, const float *block)
{
    struct array *a = &all->v[all->n++];
    *a = (struct array){name, p->ndim, {0}, block + p->offset};
    memcpy(a->dims, p->dims, sizeof a->dims);
}

static struct arrays arrays_of(const struct replica *r)
{
    size_t most = r->nparams * (1 + OPTIM_STATES) + r->nfields;
    struct arrays all = {xcalloc(most, sizeof *all.v), 0, r->nparams + r->nfields};
    for (size_t i = 0; i < r->nparams; i++)
        add(&all, xstrdup(r->params[i].name), &r->params[i], r->weights);
    for (size_t i = 0; i < r->nfields; i++)
        add(&all, xstrdup(r->fields[i].name), &r->fields[i], r->buffers);
    for (int k = 0; k < OPTIM_STATES; k++) {
        const float *whole = optim_whole(r->optim, k);
        for (size_t i = 0; whole && i < r->nparams; i++)
            add(&all,
                xasprintf("optim.%s.%s", r->optim->type->states[k], r->params[i].name),
                &r->params[i], whole);
    }
    return all;
}

static void arrays_free(struct arrays *all)
{
    for (size_t i = 0; i < all->n; i++)
        free((void *)(uintptr_t)all->v[i].name);
    free(all->v);
}

static size_t bytes_of(const struct array *a)
{
    return array_count(a) * sizeof(float);
}

/* ---- saving ---- */

enum { PART_LOOK_MS = 5 };

struct checkpoint {
    char *path; /* owned: the checkpoint's main file */
    uint64_t step, id;
    int rank, parts;
    bool in_folder;
    struct strv meta;     /* owned */
    struct arrays arrays; /* owned, with their data, too */
};

static char *part_path(const char *path, uint64_t step, uint64_t id, int part, int parts)
{
    return xasprintf("%s.%08" PRIu64 "-%" PRIu64 ".%d-of-%d", path, step, id, part + 1,
                     parts);
}

static char *part_of(const struct checkpoint *c, int rank)
{
    return part_path(c->path, c->step, c->id, rank, c->parts);
}

static void put_meta(struct strv *meta, const struct replica *r,
                     const struct train_state *at, int parts, uint64_t id)
{
    const struct optim *optim = r->optim;
    strv_push(meta, "format=pt");
    strv_pushf(meta, "model=%s", r->model);
    if (r->model_checksum)
        strv_pushf(meta, "model_checksum=%016" PRIx64, r->model_checksum);
    strv_pushf(meta, "optimizer=%s", optim->type->name);
    strv_pushf(meta, "step=%" PRIu64, at->step);
    if (at->epoch > 0) {
        strv_pushf(meta, "epoch=%" PRId64, at->epoch);
        strv_pushf(meta, "position=%" PRIu64, at->position);
        strv_pushf(meta, "seed=%" PRIu64, at->seed);
    }
    strv_pushf(meta, "updates=%" PRIu64, optim->counts.steps);
    if (optim->counts.loss_scale > 0) {
        strv_pushf(meta, "loss_scale=%.9g", (double)optim->counts.loss_scale);
        strv_pushf(meta, "good_steps=%" PRIu32, optim->counts.good_steps);
    }
    strv_pushf(meta, "ranks=%" PRId64, at->ranks);
    if (*at->buckets)
        strv_pushf(meta, "buckets=%s", at->buckets);
    if (parts > 1) {
        strv_pushf(meta, "parts=%d", parts);
        strv_pushf(meta, "parts_id=%" PRIu64, id);
    }
}

/* Copy the arrays that this rank writes: those whose middle is in its share of all
 * bytes. */
static void copy_arrays(struct checkpoint *c, const struct arrays *all, size_t all_bytes)
{
    double at = 0;
    c->arrays.v = xcalloc(all->n, sizeof *all->v);
    for (size_t i = 0; i < all->n; i++) {
        struct array a = all->v[i];
        size_t bytes = bytes_of(&a);
        int part = (int)((at + (double)bytes / 2) / (double)all_bytes * c->parts);
        at += (double)bytes;
        if (part != c->rank && c->parts > 1)
            continue;
        a.name = xstrdup(a.name);
        a.data = xmemdup(a.data, bytes);
        c->arrays.v[c->arrays.n++] = a;
    }
}

struct checkpoint *checkpoint_take(const char *place, const struct replica *r,
                                   const struct train_state *at, int rank,
                                   size_t shard_bytes, uint64_t id,
                                   const struct strv *extra)
{
    SCOPED(arrays_free) struct arrays all = arrays_of(r);
    size_t bytes = 0;
    for (size_t i = 0; i < all.n; i++)
        bytes += bytes_of(&all.v[i]);
    int parts = bytes > shard_bytes ? (int)at->ranks : 1;
    if (parts == 1 && rank > 0)
        return NULL;
    struct checkpoint *c = xcalloc(1, sizeof *c);
    c->in_folder = names_folder(place);
    c->path = c->in_folder ? in_folder(place, at->step) : xstrdup(place);
    c->step = at->step;
    c->id = id;
    c->rank = rank;
    c->parts = parts;
    put_meta(&c->meta, r, at, parts, id);
    if (extra && extra->n > 0)
        strv_push_all(&c->meta, extra->v);
    copy_arrays(c, &all, bytes);
    return c;
}

void checkpoint_free(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->arrays.n; i++)
        free((void *)(uintptr_t)c->arrays.v[i].data);
    arrays_free(&c->arrays);
    strv_finish(&c->meta);
    free(c->path);
    free(c);
}

static int await_parts(const struct checkpoint *c, const atomic_bool *cancelled,
                       struct ddp_err *err)
{
    for (int i = 1; i < c->parts; i++) {
        OWNED char *part = part_of(c, i);
        while (access(part, F_OK) < 0) {
            if (!cancelled || atomic_load(cancelled))
                return err_set(err, "rank %d's part '%s' has not come", i, part);
            poll(NULL, 0, PART_LOOK_MS);
        }
    }
    return 0;
}

/* Remove parts of earlier checkpoints of the same file, and what a killed rank had begun
 * of one. */
static void remove_old_parts(const struct checkpoint *c)
{
    const char *slash = strrchr(c->path, '/'), *name = slash ? slash + 1 : c->path;
    OWNED char *folder =
        slash ? xstrndup(c->path, (size_t)(name - c->path)) : xstrdup(".");
    size_t len = strlen(name);
    SCOPED(close_folder) DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        uint64_t step, id;
        int part, parts, end = 0;
        if (strncmp(e->d_name, name, len) != 0 ||
            sscanf(e->d_name + len, ".%" SCNu64 "-%" SCNu64 ".%d-of-%d%n", &step, &id,
                   &part, &parts, &end) != 4)
            continue;
        const char *rest = e->d_name + len + (size_t)end;
        if ((!*rest || strcmp(rest, ".part") == 0) && id != c->id)
            unlinkat(dirfd(dir), e->d_name, 0);
    }
}

/* Write the main file, which has the arrays if there are no parts. A locked file is
 * replaced and the new one locked, unless the place is a folder. */
static int write_main(struct checkpoint *c, int *lock, struct ddp_err *err)
{
    int made = -1;
    size_t n = c->parts > 1 ? 0 : c->arrays.n;
    int rc = safetensors_write(c->path, &c->meta, c->arrays.v, n, &made, err);
    if (rc == 0 && lock && !c->in_folder) {
        checkpoint_unlock(lock);
        *lock = made;
    } else {
        checkpoint_unlock(&made);
    }
    return rc;
}

int checkpoint_write(struct checkpoint *c, const atomic_bool *cancelled, int *lock,
                     char **path, struct ddp_err *err)
{
    OWNED char *part = part_of(c, c->rank);
    int rc = 0;
    if (c->parts > 1)
        rc = safetensors_write(part, &c->meta, c->arrays.v, c->arrays.n, NULL, err);
    if (rc == 0 && c->rank == 0)
        rc = await_parts(c, cancelled, err) < 0 ? -1 : write_main(c, lock, err);
    if (rc < 0)
        return err_prefix(err, "no checkpoint");
    if (c->rank == 0) {
        remove_old_parts(c);
        free(*path);
        *path = xstrdup(c->path);
    }
    return 0;
}

/* ---- loading ---- */

static int get_number(const struct safetensors *f, const char *key, uint64_t most,
                      uint64_t *out, struct ddp_err *err)
{
    const char *text = safetensors_metadata(f, key);
    char *end = NULL;
    errno = 0;
    *out = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    if (!end || *end)
        return err_set(err, "its metadata have no number for '%s'", key);
    return errno || *out > most
               ? err_set(err, "in its metadata '%s' is too large: %.40s", key, text)
               : 0;
}

void checkpoint_discard(const struct checkpoint *c)
{
    struct ddp_err ignored;
    uint64_t id;
    if (!c || c->parts == 1)
        return;
    OWNED char *part = part_of(c, c->rank);
    struct safetensors *f = safetensors_read(c->path, &ignored);
    if (!f || get_number(f, "parts_id", UINT64_MAX, &id, &ignored) < 0 || id != c->id)
        unlink(part);
    safetensors_free(f);
}

/* A program that counts epochs needs to know where this one was. */
static int get_state(const struct safetensors *f, const struct optim *optim,
                     struct train_state *out, struct ddp_err *err)
{
    const char *name = safetensors_metadata(f, "optimizer");
    if (name && strcmp(name, optim->type->name) != 0)
        return err_set(err, "it was written with optimizer %s, not %s", name,
                       optim->type->name);
    uint64_t epoch = 0, ranks = 0;
    const char *buckets = safetensors_metadata(f, "buckets");
    TRY(get_number(f, "step", UINT64_MAX, &out->step, err));
    if (out->epoch > 0) {
        TRY(get_number(f, "epoch", INT32_MAX, &epoch, err));
        TRY(get_number(f, "position", INT64_MAX, &out->position, err));
        TRY(get_number(f, "seed", UINT64_MAX, &out->seed, err));
        if (epoch < 1)
            return err_set(err, "its metadata say epoch 0");
    }
    if (safetensors_metadata(f, "ranks"))
        TRY(get_number(f, "ranks", INT32_MAX, &ranks, err));
    out->epoch = (int64_t)epoch;
    out->ranks = (int64_t)ranks;
    snprintf(out->buckets, sizeof out->buckets, "%s", buckets ? buckets : "");
    return 0;
}

/* Skipped steps are no updates. Older files have no count. */
static int get_optim(const struct safetensors *f, const struct train_state *state,
                     struct optim *optim, struct ddp_err *err)
{
    uint64_t updates = state->step, good = 0;
    const char *scale = safetensors_metadata(f, "loss_scale");
    char *end = NULL;
    float value = scale ? strtof(scale, &end) : 0;
    if (safetensors_metadata(f, "updates"))
        TRY(get_number(f, "updates", INT64_MAX, &updates, err));
    if (scale && (*end || end == scale || !(value >= 1 && value <= 0x1p24f)))
        return err_set(err, "its metadata say that the loss is scaled by '%.40s'", scale);
    if (scale)
        TRY(get_number(f, "good_steps", UINT32_MAX, &good, err));
    optim->counts = (struct optim_counts){updates, value, (uint32_t)good};
    return 0;
}

/* "[3, 4]"; the caller frees. */
static char *shape_text(const struct array *a)
{
    char *text = xstrdup("[");
    for (int i = 0; i < a->ndim; i++)
        xappendf(&text, "%s%d", i ? ", " : "", a->dims[i]);
    xappendf(&text, "]");
    return text;
}

/* A checkpoint's files: one, or the one with the metadata and then the parts. */
struct files {
    struct safetensors **v; /* owned */
    int n;
};

static void files_close(struct files *files)
{
    for (int i = 0; i < files->n; i++)
        safetensors_free(files->v[i]);
    free(files->v);
}

static int files_open(const char *path, struct files *files, struct ddp_err *err)
{
    *files = (struct files){xcalloc(1, sizeof(void *)), 1};
    files->v[0] = safetensors_read(path, err);
    if (!files->v[0])
        return -1;
    uint64_t parts = 1, step = 0, id = 0;
    if (safetensors_metadata(files->v[0], "parts") &&
        (get_number(files->v[0], "parts", 1000000, &parts, err) < 0 ||
         get_number(files->v[0], "parts_id", UINT64_MAX, &id, err) < 0 ||
         get_number(files->v[0], "step", UINT64_MAX, &step, err) < 0))
        return err_prefix(err, "'%s'", path);
    if (parts < 2)
        return 0;
    const char *why;
    OWNED char *beside = output_path_follow(path, &why); /* the parts are there */
    files->v = xrealloc(files->v, (size_t)parts + 1, sizeof(void *));
    for (int i = 0; i < (int)parts; i++) {
        OWNED char *part = part_path(beside ? beside : path, step, id, i, (int)parts);
        struct safetensors *f = safetensors_read(part, err);
        if (!f)
            return err_prefix(err, "a part of '%s'", path);
        files->v[files->n++] = f;
    }
    return 0;
}

static bool is_average(const struct array *a)
{
    return strncmp(a->name, "optim.ema.", 10) == 0;
}

static bool has_nan(const struct array *a)
{
    bool any = false;
    for (size_t i = 0, n = array_count(a); i < n; i++)
        any |= isnan(a->data[i]);
    return any;
}

/* 1: found; 0: none has that name */
static int find(const struct files *files, const char *name, struct array *out,
                struct ddp_err *err)
{
    int found = 0;
    for (int i = 0; i < files->n && found == 0; i++)
        found = safetensors_find(files->v[i], name, out, err);
    return found;
}

/* The file's array for one of ours. */
static int match(const struct files *files, const struct array *own, bool state,
                 struct array *out, struct ddp_err *err)
{
    bool counter = own->ndim == 0; /* PyTorch's integer: nothing depends on it */
    OWNED char *longer = xasprintf("transformer.%s", own->name); /* GPT2LMHeadModel's */
    int found = find(files, own->name, out, err);
    if (found == 0)
        found = find(files, longer, out, err);
    if ((counter && found <= 0) || (is_average(own) && found == 0)) {
        *out = (struct array){0};
        return 0;
    }
    if (found < 0)
        return -1;
    if (!found)
        return err_set(err,
                       state ? "it lacks '%s': was it written without momentum?"
                             : "it lacks '%s': it is of another model",
                       own->name);
    if (out->ndim == own->ndim &&
        memcmp(out->dims, own->dims, (size_t)out->ndim * sizeof *out->dims) == 0)
        return has_nan(out) ? err_set(err,
                                      "'%s' contains NaN: remove this checkpoint, or "
                                      "resume from an earlier one",
                                      own->name)
                            : 0;
    OWNED char *theirs = shape_text(out), *ours = shape_text(own);
    return err_set(err, "'%s' is %s in it and %s in this model", own->name, theirs, ours);
}

/* A model has several names: of its file by other paths, gpt2 with its sizes in another
 * order. */
static bool same_text(const struct safetensors *f, const struct replica *r)
{
    const char *theirs = safetensors_metadata(f, "model_checksum");
    return theirs && r->model_checksum && strtoull(theirs, NULL, 16) == r->model_checksum;
}

static int load_files(const struct files *files, const struct replica *r,
                      struct train_state *state, bool *whole, struct ddp_err *err)
{
    const struct safetensors *f = files->v[0];
    const char *name = safetensors_metadata(f, "model");
    if (name && strcmp(name, r->model) != 0 && !same_text(f, r))
        return err_set(err, "it is of model '%s', not '%s'", name, r->model);
    struct train_state read = *state;
    *whole = *whole && safetensors_metadata(f, "step");
    if (*whole && get_state(f, r->optim, &read, err) < 0)
        return -1;
    SCOPED(arrays_free) struct arrays own = arrays_of(r);
    OWNED struct array *found = xcalloc(own.n, sizeof *found);
    for (size_t i = 0; i < (*whole ? own.n : own.first_state); i++)
        TRY(match(files, &own.v[i], i >= own.first_state, &found[i], err));
    if (*whole)
        TRY(get_optim(f, &read, r->optim, err));
    for (size_t i = 0; i < own.n; i++) {
        const void *from = found[i].data;
        if (!from && is_average(&own.v[i])) /* the last arrays: begin with the weights */
            from = own.v[i - (own.n - r->nparams)].data;
        if (from)
            memcpy((void *)(uintptr_t)own.v[i].data, from, bytes_of(&own.v[i]));
    }
    *state = read;
    return 0;
}

int checkpoint_load(const char *place, const struct replica *r, struct train_state *state,
                    bool *whole, struct ddp_err *passed_over, struct ddp_err *err)
{
    int rc;
    uint64_t below = UINT64_MAX;
    SCOPED(files_close) struct files files = {0};
    OWNED char *path = newest(place, &below);
    char *before;
    *passed_over = (struct ddp_err){""};
    if (!path)
        return err_set(err, "no checkpoint 'step-*.safetensors' in folder '%s'", place);
    while ((rc = files_open(path, &files, err)) < 0 && (before = newest(place, &below))) {
        if (!*passed_over->text)
            *passed_over = *err;
        files_close(&files);
        free(path);
        path = before;
    }
    if (rc < 0 && *passed_over->text)
        *err = *passed_over;
    else if (rc == 0 && (rc = load_files(&files, r, state, whole, err)) < 0)
        err_prefix(err, "'%s'", path);
    return rc;
}
