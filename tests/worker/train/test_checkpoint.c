#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/strv.h"
#include "tests/worker/nn/train_step.h"
#include "worker/ddp/checkpoint.h"
#include "worker/safetensors.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A model with its optimiser, filled with numbers that can be told apart. */
struct rig {
    char *dir, *file;
    struct model *model;
    struct optim optim;
    struct train_state state;
};

static void rig_init(struct rig *r, const char *model, const char *optim, int images)
{
    struct ddp_err err;
    const struct kernels *kernels = kernels_get(NULL, PRECISION_FP32, &err);
    ck_assert_ptr_nonnull(kernels);
    *r = (struct rig){.dir = temp_dir()};
    r->file = xasprintf("%s/c.safetensors", r->dir);
    r->model =
        model_create(model, (struct io_shape){1, images, images, 10}, 4, kernels, &err);
    ck_assert_msg(r->model != NULL, "%s", err.text);
    struct optim_settings settings = {.momentum = 0.5f};
    optim_init(&r->optim, optim_find(optim), settings, kernels, r->model->count);
    model_init(r->model, 3);
    for (int k = 0; k < OPTIM_STATES; k++) {
        for (size_t i = 0; r->optim.states[k] && i < r->optim.n; i++)
            r->optim.states[k][i] = (float)i * (k ? -0.25f : 0.5f);
    }
    r->state = (struct train_state){.step = 1234,
                                    .seed = 9,
                                    .epoch = 5,
                                    .position = 64,
                                    .ranks = 2,
                                    .buckets = "4096,0"};
}

static void rig_finish(struct rig *r)
{
    optim_finish(&r->optim);
    model_destroy(r->model);
    free(r->file);
    free(r->dir);
}

static int try_save(struct rig *r, const char *place, struct ddp_err *err)
{
    char *path = NULL;
    const struct replica state = replica_of(r->model, &r->optim);
    struct checkpoint *c =
        checkpoint_take(place, &state, &r->state, 0, SIZE_MAX, 0, NULL);
    int rc = checkpoint_write(c, NULL, NULL, &path, err);
    ck_assert((path != NULL) == (rc == 0));
    checkpoint_free(c);
    free(path);
    return rc;
}

static void save(struct rig *r, const char *place)
{
    struct ddp_err err;
    ck_ok(try_save(r, place, &err), err);
}

static struct ddp_err passed_over; /* by load() */

static int load(struct rig *r, const char *place, struct ddp_err *err)
{
    bool whole = true;
    err->text[0] = '\0';
    const struct replica state = replica_of(r->model, &r->optim);
    return checkpoint_load(place, &state, &r->state, &whole, &passed_over, err);
}

static const struct {
    const char *model, *optim;
} kinds[] = {{"cnn", "adadelta"}, {"mlp", "adam"}, {"mlp", "sgd"}};

LOOP_TEST(what_was_saved_comes_back_to_the_bit, ARRAY_LEN(kinds))
{
    struct rig a, b;
    struct ddp_err err;
    rig_init(&a, kinds[_i].model, kinds[_i].optim, 8);
    rig_init(&b, kinds[_i].model, kinds[_i].optim, 8);
    a.optim.counts.steps = 1230; /* four were left out */
    a.optim.counts.loss_scale = _i == 1 ? 4096 : 0;
    a.optim.counts.good_steps = _i == 1 ? 17 : 0;
    save(&a, a.file);
    size_t bytes = a.optim.n * sizeof(float);
    memset(b.model->weights, 0, bytes);
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (b.optim.states[k])
            memset(b.optim.states[k], 0, bytes);
    }
    b.state = (struct train_state){.epoch = 1};
    ck_ok(load(&b, a.file, &err), err);
    ck_assert_mem_eq(a.model->weights, b.model->weights, bytes);
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (a.optim.states[k])
            ck_assert_mem_eq(a.optim.states[k], b.optim.states[k], bytes);
    }
    ck_assert_mem_eq(&a.state, &b.state, sizeof a.state);
    ck_assert_uint_eq(b.optim.counts.steps, 1230);
    ck_assert(b.optim.counts.loss_scale == a.optim.counts.loss_scale);
    ck_assert_uint_eq(b.optim.counts.good_steps, a.optim.counts.good_steps);
    rig_finish(&a);
    rig_finish(&b);
}

TEST(a_file_cut_anywhere_is_refused_and_changes_nothing)
{
    struct rig a, b;
    rig_init(&a, "mlp", "sgd", 8);
    rig_init(&b, "mlp", "sgd", 8);
    save(&a, a.file);
    struct stat st;
    ck_assert_int_eq(stat(a.file, &st), 0);
    float *before = xmemdup(b.model->weights, b.optim.n * sizeof(float));
    const long long cuts[] = {0, 4, 8, 9, 100, st.st_size / 2, st.st_size - 1};
    for (size_t i = ARRAY_LEN(cuts); i-- > 0;) {
        struct ddp_err err;
        ck_assert_int_eq(truncate(a.file, cuts[i]), 0);
        ck_assert_int_eq(load(&b, a.file, &err), -1);
        char *begin = xasprintf("'%s': it is cut short", a.file);
        ck_assert_msg(strncmp(err.text, begin, strlen(begin)) == 0, "%lld: %s", cuts[i],
                      err.text);
        free(begin);
        ck_assert_mem_eq(before, b.model->weights, b.optim.n * sizeof(float));
        ck_assert_uint_eq(b.state.step, 1234);
    }
    free(before);
    rig_finish(&a);
    rig_finish(&b);
}

/* What is wrong in the file, and not what the next step would make of it. */
TEST(damaged_numbers_are_told_by_file_and_array)
{
    struct rig a;
    struct ddp_err err;
    rig_init(&a, "mlp", "sgd", 8);
    a.optim.states[0][5] = NAN;
    save(&a, a.file);
    ck_assert_int_eq(load(&a, a.file, &err), -1);
    char *expected = xasprintf("'%s': 'optim.momentum_buffer.fc1.weight' contains NaN: "
                               "remove this checkpoint, or resume from an earlier one",
                               a.file);
    ck_assert_str_eq(err.text, expected);
    free(expected);
    a.optim.states[0][5] = 0;
    save(&a, a.file);
    ck_ok(load(&a, a.file, &err), err);
    FILE *f = fopen(a.file, "r+"); /* flip a bit of the last array's last number */
    ck_assert(f && fseek(f, -4, SEEK_END) == 0);
    int byte = fgetc(f);
    ck_assert(byte >= 0 && fseek(f, -4, SEEK_END) == 0);
    ck_assert(fputc(byte ^ 4, f) >= 0 && fclose(f) == 0);
    ck_assert_int_eq(load(&a, a.file, &err), -1);
    expected = xasprintf("'%s': array 'optim.momentum_buffer.fc3.bias' is damaged: "
                         "its CRC-32 does not match",
                         a.file);
    ck_assert_str_eq(err.text, expected);
    free(expected);
    rig_finish(&a);
}

static const struct {
    const char *model, *optim;
    int images;
    const char *error;
} others[] = {
    {"cnn", "sgd", 8, "it is of model 'mlp', not 'cnn'"},
    {"mlp", "adam", 8, "it was written with optimizer sgd, not adam"},
    {"mlp", "sgd", 9, "'fc1.weight' is [512, 64] in it and [512, 81] in this model"},
};

LOOP_TEST(a_checkpoint_of_something_else_is_refused, ARRAY_LEN(others))
{
    struct rig a, b;
    struct ddp_err err;
    rig_init(&a, "mlp", "sgd", 8);
    rig_init(&b, others[_i].model, others[_i].optim, others[_i].images);
    save(&a, a.file);
    ck_assert_int_eq(load(&b, a.file, &err), -1);
    char *expected = xasprintf("'%s': %s", a.file, others[_i].error);
    ck_assert_str_eq(err.text, expected);
    free(expected);
    rig_finish(&a);
    rig_finish(&b);
}

/* The path of the model's file may differ, its text may not. */
TEST(a_model_may_have_another_name)
{
    static const char *const texts[] = {"optimizer = sgd\nfc linear\n",
                                        "optimizer = sgd\nfc linear # other\n"};
    struct rig r[2];
    struct ddp_err err;
    char *dir = temp_dir();
    for (int other = 0; other < 2; other++) {
        char *paths[2];
        for (int i = 0; i < 2; i++) {
            paths[i] = xasprintf("%s/%d.model", dir, i);
            put_file(paths[i], texts[i && other]);
            rig_init(&r[i], paths[i], "sgd", 8);
        }
        save(&r[0], r[0].file);
        int rc = load(&r[1], r[0].file, &err);
        if (other)
            ck_assert_msg(rc < 0 && strstr(err.text, "it is of model '"), "%s", err.text);
        else
            ck_ok(rc, err);
        for (int i = 0; i < 2; i++) {
            rig_finish(&r[i]);
            free(paths[i]);
        }
    }
    free(dir);
}

/* What PyTorch's users write has no metadata of ours. Hugging Face's GPT-2 is within
 * another module if it was saved with its head. */
static const char *const modules[] = {"", "transformer."};

LOOP_TEST(weights_alone_are_taken_as_a_start, ARRAY_LEN(modules))
{
    struct rig a;
    struct ddp_err err;
    rig_init(&a, "mlp", "adam", 8);
    const struct param *params = a.model->params;
    size_t n = a.model->nparams;
    struct array *arrays = xcalloc(n, sizeof *arrays);
    float *ones = xcalloc(a.optim.n, sizeof *ones);
    for (size_t i = 0; i < a.optim.n; i++)
        ones[i] = 1;
    for (size_t i = 0; i < n; i++) {
        char *name = xasprintf("%s%s", modules[_i], params[i].name);
        arrays[i] = (struct array){name, params[i].ndim, {0}, ones};
        memcpy(arrays[i].dims, params[i].dims, sizeof arrays[i].dims);
    }
    struct strv none = {0};
    ck_ok(safetensors_write(a.file, &none, arrays, n, NULL, &err), err);
    bool whole = true;
    const struct replica state = replica_of(a.model, &a.optim);
    ck_ok(checkpoint_load(a.file, &state, &a.state, &whole, &passed_over, &err), err);
    ck_assert(!whole);
    ck_assert_mem_eq(a.model->weights, ones, a.optim.n * sizeof *ones);
    ck_assert_uint_eq(a.state.step, 1234); /* as it was */
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)arrays[i].name);
    free(ones);
    free(arrays);
    rig_finish(&a);
}

static const char *const too_large[] = {
    "step=99999999999999999999", "updates=18446744073709551616",
    "epoch=2147483648",          "position=9223372036854775808",
    "ranks=2147483648",          "parts=1000001"};

LOOP_TEST(a_number_that_is_too_large_is_refused, ARRAY_LEN(too_large))
{
    struct rig a;
    struct ddp_err err;
    struct strv extra = {0};
    char *path = NULL;
    rig_init(&a, "mlp", "sgd", 8);
    strv_push(&extra, too_large[_i]);
    const struct replica state = replica_of(a.model, &a.optim);
    struct checkpoint *c =
        checkpoint_take(a.file, &state, &a.state, 0, SIZE_MAX, 0, &extra);
    ck_ok(checkpoint_write(c, NULL, NULL, &path, &err), err);
    ck_assert_int_eq(load(&a, a.file, &err), -1);
    int len = (int)strcspn(too_large[_i], "=");
    char *why = xasprintf("'%s': in its metadata '%.*s' is too large: %s", a.file, len,
                          too_large[_i], too_large[_i] + len + 1);
    ck_assert_str_eq(err.text, why);
    ck_assert_uint_eq(a.state.step, 1234); /* as it was */
    free(why);
    checkpoint_free(c);
    free(path);
    strv_finish(&extra);
    rig_finish(&a);
}

TEST(a_full_disk_leaves_the_old_checkpoint)
{
    struct rig a, b;
    struct ddp_err err;
    char *part;
    rig_init(&a, "mlp", "sgd", 8);
    rig_init(&b, "mlp", "sgd", 8);
    save(&a, a.file);
    a.state.step++;
    struct rlimit small = {100000, 100000};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(try_save(&a, a.file, &err), -1);
    part = xasprintf("%s.part", a.file);
    char *expected = xasprintf("no checkpoint: cannot write '%s': File too large", part);
    ck_assert_str_eq(err.text, expected);
    ck_assert_int_eq(access(part, F_OK), -1);
    ck_ok(load(&b, a.file, &err), err);
    ck_assert_uint_eq(b.state.step, 1234);
    free(expected);
    free(part);
    rig_finish(&a);
    rig_finish(&b);
}

/* A rank's part of a checkpoint of two. */
static struct checkpoint *part_of(struct rig *r, int rank, uint64_t id)
{
    const struct replica state = replica_of(r->model, &r->optim);
    return checkpoint_take(r->file, &state, &r->state, rank, 0, id, NULL);
}

static size_t files_in(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The second one is not complete: a rank has died, or has no room. */
TEST(parts_of_the_same_step_do_not_replace_each_other)
{
    struct rig a, b;
    struct ddp_err err;
    char *path = NULL;
    struct checkpoint *c[2];
    rig_init(&a, "mlp", "sgd", 8);
    rig_init(&b, "mlp", "sgd", 8);
    for (uint64_t id = 1; id < 4; id++) {
        bool whole = id != 2;
        a.model->weights[0] = (float)id;
        for (int rank = 2; rank-- > 0;) {
            c[rank] = part_of(&a, rank, id);
            if (rank > 0 || whole)
                ck_ok(checkpoint_write(c[rank], NULL, NULL, &path, &err), err);
        }
        free(path);
        path = NULL;
        ck_assert_uint_eq(files_in(a.dir), whole ? 3 : 4);
        for (int rank = 0; rank < 2; rank++) {
            if (id == 3)
                checkpoint_discard(c[rank]); /* not what the main file needs */
            checkpoint_free(c[rank]);
        }
        ck_ok(load(&b, a.file, &err), err);
        ck_assert(b.model->weights[0] == (float)(whole ? id : 1));
    }
    c[1] = part_of(&a, 1, 4);
    ck_ok(checkpoint_write(c[1], NULL, NULL, &path, &err), err);
    checkpoint_discard(c[1]);
    checkpoint_free(c[1]);
    ck_assert_uint_eq(files_in(a.dir), 3);
    rig_finish(&a);
    rig_finish(&b);
}

/* Else another run could write to the same place. */
TEST(what_cannot_be_locked_is_not_written)
{
    struct ddp_err err;
    struct strv none = {0};
    char *dir = temp_dir(), *file = xasprintf("%s/c", dir);
    int spare = dup(STDIN_FILENO), lock = -1;
    struct rlimit all, few;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
    few = (struct rlimit){(rlim_t)spare + 1, all.rlim_max};
    close(spare);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_assert_int_eq(safetensors_write(file, &none, NULL, 0, &lock, &err), -1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &all), 0);
    ck_assert_ptr_nonnull(strstr(err.text, "c.part': Too many open files"));
    ck_assert_int_eq(access(file, F_OK), -1);
    ck_assert_int_eq(lock, -1);
    free(dir);
    free(file);
}

TEST(a_folder_is_resumed_from_its_highest_step)
{
    struct rig a;
    struct ddp_err err;
    rig_init(&a, "mlp", "sgd", 8);
    char *folder = xasprintf("%s/new/", a.dir);
    ck_assert(!checkpoint_exists(folder));
    ck_ok(checkpoint_prepare(folder, &err), err);
    ck_assert(!checkpoint_exists(folder));
    ck_assert_int_eq(load(&a, folder, &err), -1);
    ck_assert_ptr_nonnull(
        strstr(err.text, "no checkpoint 'step-*.safetensors' in folder"));
    static const uint64_t steps[] = {99, 100000000, 7};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        a.state.step = steps[i];
        save(&a, folder);
    }
    ck_assert(checkpoint_exists(folder));
    char *half = xasprintf("%sstep-900000000.safetensors.part", folder);
    FILE *f = fopen(half, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    a.state.step = 0;
    ck_ok(load(&a, folder, &err), err);
    ck_assert_uint_eq(a.state.step, 100000000);
    ck_assert_str_eq(passed_over.text, "");
    free(half);
    free(folder);
    rig_finish(&a);
}

/* A disk has lost a part of it; the one before is whole. */
TEST(a_damaged_one_in_a_folder_is_passed_over)
{
    struct rig a;
    struct ddp_err err;
    rig_init(&a, "mlp", "sgd", 8);
    char *folder = xasprintf("%s/new/", a.dir);
    ck_ok(checkpoint_prepare(folder, &err), err);
    for (a.state.step = 7; a.state.step < 10; a.state.step++)
        save(&a, folder);
    for (int whole = 8; whole >= 6; whole--) {
        char *newest = xasprintf("%sstep-%08d.safetensors", folder, whole + 1);
        ck_assert_int_eq(truncate(newest, 1000), 0);
        free(newest);
        a.state.step = 0;
        if (whole > 6) {
            ck_ok(load(&a, folder, &err), err);
            ck_assert_uint_eq(a.state.step, (uint64_t)whole);
            ck_assert_ptr_nonnull(
                strstr(passed_over.text, "step-00000009.safetensors': it is cut short"));
        } else {
            ck_assert_int_eq(load(&a, folder, &err), -1);
            ck_assert_ptr_nonnull(
                strstr(err.text, "step-00000009.safetensors': it is cut short"));
        }
    }
    free(folder);
    rig_finish(&a);
}

/* ---- what is on the disk ---- */

static ino_t written, synced; /* the last file that write() and fsync() were called for */
static int renames, folder_syncs;

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        written = st.st_ino;
        synced = synced == written ? 0 : synced;
    }
    return __real_write(fd, data, n);
}

int __wrap_fsync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        synced = st.st_ino;
    else if (S_ISDIR(st.st_mode))
        folder_syncs += renames > 0;
    return __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    struct stat st;
    ck_assert_int_eq(stat(from, &st), 0);
    ck_assert_msg(st.st_ino == written, "'%s' is not what was written", from);
    ck_assert_msg(st.st_ino == synced, "'%s' has not been synced", from);
    renames++;
    return __real_rename(from, to);
}

/* Else a crash of the machine leaves an empty file where the old one was. */
TEST(a_file_is_synced_before_it_replaces_another)
{
    struct rig a;
    rig_init(&a, "mlp", "sgd", 8);
    save(&a, a.file);
    ck_assert_int_eq(renames, 1);
    ck_assert_int_eq(folder_syncs, 1);
    rig_finish(&a);
}

TEST(a_place_that_cannot_be_written_is_found_early)
{
    struct ddp_err err;
    ck_assert_int_eq(checkpoint_prepare("/nonexistent/none/c.safetensors", &err), -1);
    ck_assert_str_eq(
        err.text,
        "cannot write checkpoints to '/nonexistent/none/c.safetensors': No such "
        "file or directory");
    ck_assert_int_eq(checkpoint_prepare("/dev/null", &err), -1);
    ck_assert_str_eq(err.text, "cannot write checkpoints to '/dev/null': it is no file, "
                               "and would be replaced by one");
    ck_assert_int_eq(checkpoint_prepare("/etc/passwd/c", &err), -1);
    ck_assert_str_eq(err.text,
                     "cannot write checkpoints to '/etc/passwd/c': Not a directory");
    ck_assert_int_eq(checkpoint_prepare("/proc/new/", &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot make the folder '/proc/new/'"));
}
