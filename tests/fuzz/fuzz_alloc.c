/* tests/fuzz/fuzz_alloc.c - the texts in which schedulers name the hosts of a job
 *
 * Input: a byte that chooses the source, then the values of its variables with NULs
 * between; the first value of a source that reads a file is that file's text. Aborts when
 * an allocation that was accepted has no host, a name that no host has, or numbers out of
 * range, and when a refusal has no words, was cut short, or has several lines but for
 * those of a file, which is shown with a caret below.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_file.h"
#include "tests/fuzz/fuzz_hosts.h"

#include <stdlib.h>
#include <string.h>

enum { VARIABLES = 5, NAMES_MAX = 1 << 17 };

static const struct row {
    const struct alloc_source *source;
    const char *file; /* the variable that names the file; NULL: there is none */
    const char *names[VARIABLES + 1];
} rows[] = {
    {&alloc_slurm,
     NULL,
     {"SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS", "SLURM_GPUS_PER_NODE",
      "SLURM_GPUS"}},
    {&alloc_slurm,
     NULL,
     {"SLURM_STEP_NODELIST", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS",
      "SLURM_GPUS_ON_NODE", "SLURM_GPUS"}},
    {&alloc_slurm,
     NULL,
     {"SLURM_HET_SIZE", "SLURM_JOB_NODELIST_HET_GROUP_0",
      "SLURM_TASKS_PER_NODE_HET_GROUP_0", "SLURM_NTASKS_HET_GROUP_0",
      "SLURM_JOB_NODELIST_HET_GROUP_1"}},
    {&alloc_slurm, "SLURM_HOSTFILE", {"SLURM_DISTRIBUTION", "SLURM_GPUS_ON_NODE"}},
    {&alloc_sge, "PE_HOSTFILE", {NULL}},
    {&alloc_pbs, "PBS_NODEFILE", {NULL}},
    {&alloc_lsf, NULL, {"LSB_MCPU_HOSTS"}},
    {&alloc_lsf, "LSB_DJOB_HOSTFILE", {NULL}},
    {&alloc_sagemaker, NULL, {"SM_HOSTS", "SM_CURRENT_HOST", "SM_NUM_GPUS"}},
    {&alloc_sagemaker, "DDPRUN_RESOURCECONFIG", {"SM_NUM_GPUS"}},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static bool numbers_fit(const struct alloc_node *n)
{
    return n->slots >= 0 && n->slots_else >= 0 && n->slots <= 1 << 30 &&
           n->slots_else <= 1 << 30;
}

static void set_variables(const struct row *row, const char *text, const char *end)
{
    if (row->file) {
        setenv(row->file, file_of(text, strlen(text)), 1);
        text += strlen(text) + 1;
    }
    for (size_t i = 0; row->names[i] && text < end; i++) {
        setenv(row->names[i], text, 1);
        text += strlen(text) + 1;
    }
}

static void unset_variables(const struct row *row)
{
    if (row->file)
        unsetenv(row->file);
    for (size_t i = 0; row->names[i]; i++)
        unsetenv(row->names[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 16 || is_slow(data, size))
        return 0;
    const struct row *row = &rows[data[0] % ROWS];
    char *text = calloc(size + 1, 1);
    if (!text)
        abort();
    memcpy(text, data + 1, size - 1);
    set_variables(row, text, text + size - 1);
    struct ddp_err err = {""};
    struct opts opts = {0};
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    /* what detect() asks for is there; alloc_read() would not have come here without */
    bool asked = row->file || getenv(row->names[0]);
    if (asked && *(row->file ? text : getenv(row->names[0]))) {
        setenv("SLURM_NODELIST", "n0", 0);
        if (row->source->read(&opts, a, &err) == 0)
            check_nodes(a, numbers_fit);
        else
            check_error(&err);
    }
    alloc_destroy(a);
    unset_variables(row);
    free(text);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
#define SEED(text)        \
    {                     \
        text, sizeof text \
    }
    static const struct {
        const char *text;
        size_t size;
    } seeds[] = {
        SEED("\0n[01-16,20],gpu3\0004(x17),1\00069\0v100:4\00072"),
        SEED("\1n[1-2]-ib\0000\0001\0004\0008"),
        SEED("\0022\0n[1-2]\0004(x2)\0008\0m1"),
        SEED("\3n2\nn1\nn1\n\0arbitrary\0004"),
        SEED("\4g0001.abci 80 gpu@g0001 UNDEFINED\ng0002\t80\tgpu@g0002\t0,0:0,1\n"),
        SEED("\5n1\nn1.cluster\nn2\r\n\nn1\n"),
        SEED("\6hosta 4 hostb 4"),
        SEED("\7hosta\nhosta\nhostb\n"),
        SEED("\10[\"algo-10\", \"algo-2\"]\0algo-2\0008"),
        SEED(
            "\11{\"current_host\": \"algo-1\", \"hosts\": [\"algo-1\", \"algo-2\"]}\0004"),
    };
    const size_t i = n % (sizeof seeds / sizeof seeds[0]);
    size_t size = seeds[i].size - 1 < room ? seeds[i].size - 1 : room;
    memcpy(data, seeds[i].text, size);
    return size;
}
