/* tests/fuzz/fuzz_site.c - site files, which name a cluster's partitions and limits
 *
 * Aborts when a site that was accepted has a partition without a name or numbers below
 * "not known", and when a refusal has no words, several lines, or was cut short.
 */
#include "launcher/tools/script/site.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_file.h"

#include <stdlib.h>
#include <string.h>

static void check_site(const struct site *s)
{
    for (size_t i = 0; i < s->npartitions; i++) {
        const struct partition *p = &s->partitions[i];
        if (!p->name || !p->name[0] || p->nodes < 0 || p->gpus < -1 || p->cores < 0 ||
            p->memory_mb < 0 || p->time_s < 0 || !(p->node_hours >= 0))
            abort();
        if (site_partition(s, p->name) == NULL)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_err err = {""};
    struct site *s = site_read(file_of(data, size), &err);
    if (s)
        check_site(s);
    else if (!err.text[0] || strlen(err.text) >= sizeof err.text - 1)
        abort();
    site_destroy(s);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "; a cluster\n[site]\ntitle = the lab\nscheduler = slurm\nrequest =\n    --ntasks={{ranks}}\n"
        "    --gpus-per-node={{gpus}}\n\n[partition dgx]\nnodes = 3\ngpus = 8\ncores = 40\n"
        "memory = 180G\ntime = 1d\n",
        "[site]\nscheduler = sge\naccount-required = yes\naccount-hint = a group\nsubmit = -g "
        "{{account}}\nmodules = gcc\n[partition a]\ntime = 168h\nnode-hours = 43008\n"
        "whole-nodes = yes\n[partition b]\nnodes = 1\n",
        "[site]\nscheduler = pbs\nclosed = October 2024\nscratch = $PBS_LOCALDIR\n[partition q]\n",
    };
    size_t len = strlen(seeds[n % 3]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 3], len);
    return len;
}
