/* What ranks and debuggers write for a hang report: the first byte chooses the decoder.
 * Whatever is decoded can be judged. */
#include "tests/fuzz/fuzz.h"

#include "launcher/plugins/diagnose/ras.h"
#include "launcher/plugins/diagnose/stacks.h"
#include "launcher/plugins/diagnose/trace.h"
#include "launcher/plugins/diagnose/verdict.h"

#include <stdlib.h>
#include <string.h>

static const char *const seeds[] = {
    "p  File \"a.py\", line 3 in f\nThread 0x1 [main] (most recent call first):\n"
    "  File \"/x/torch/distributed/distributed_c10d.py\", line 5 in all_reduce\n"
    "  File \"b.py\", line ??? in <module>\n",
    "nPID 9\nTID 9:\n#0  0x00007f2a clock_nanosleep@@GLIBC\n    ../x.c:48:5\n"
    "#1  0x0000563a - 1 MPI_Barrier\n#2 0x01 in main (a=1) at c.c:20\n",
    "t{\"entries\":[{\"collective_seq_id\":1,\"input_dtypes\":[\"Float\"],\"input_sizes\":"
    "[[10]],\"pg_id\":0,\"process_group\":[\"0\",\"default_pg\"],\"profiling_name\":"
    "\"gloo:all_reduce\",\"retired\":false,\"time_created_ns\":5}],\"pg_status\":{\"0\":"
    "{\"last_completed_collective\":\"0\",\"last_enqueued_collective\":\"1\"}}}",
    "l{\"groups\":[{\"id\":\"ddp\",\"name\":\"default_pg\",\"ranks\":[],\"entered\":4,"
    "\"done\":3}],\"calls\":[{\"group\":\"ddp\",\"number\":4,\"op\":\"all_reduce\","
    "\"sizes\":[[10]],\"types\":[\"f32\"],\"since_ms\":7,\"done\":false}]}",
    "rSERVER PROTOCOL 2\nOK\nNCCL version 2.28.3 compiled with CUDA 13.0\n\nJob summary\n"
    "  Nodes  Processes\n      1          2\n",
    "g0 \n.\n1 0,1\n.\n2 1,2\n",
    "s[{\"pid\":9,\"thread_name\":\"MainThread\",\"frames\":[{\"name\":\"load\",\"filename\":"
    "\"/x/data.py\",\"module\":null,\"line\":10}]}]",
};

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    const char *seed = seeds[n % (sizeof seeds / sizeof seeds[0])];
    size_t size = strlen(seed) < room ? strlen(seed) : room;
    memcpy(data, seed, size);
    return size;
}

/* As rank_trace_read() leaves it. */
static void read_ras(const char *body, json_t *rank)
{
    struct rank_trace t = {.sock = -1, .answer = strdup(body), .size = strlen(body)};
    ras_take(&t, rank);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    json_t *rank = json_object(), *other = json_object(), *ranks = json_array();
    const char *body = size > 0 ? text + 1 : text;
    if (*text == 'p')
        json_object_set_new(rank, "threads", stacks_of_python(body));
    else if (*text == 'n')
        json_object_set_new(rank, "threads", stacks_of_native(body));
    else if (*text == 's')
        json_object_set_new(rank, "threads", stacks_of_pyspy(body));
    else if (*text == 't')
        trace_of_torch(body, "0 0,1\n", 1000, rank);
    else if (*text == 'g')
        trace_of_groups(body, 1, rank);
    else if (*text == 'r')
        read_ras(body, rank);
    else
        trace_of_library(body, 1000, rank);
    json_object_set_new(rank, "rank", json_integer(0));
    json_object_set_new(rank, "state", json_string("sleeping"));
    json_object_set_new(other, "rank", json_integer(1));
    json_array_append_new(ranks, rank);
    json_array_append_new(ranks, other);
    json_t *found = verdict(ranks);
    if (json_array_size(json_object_get(found, "sentences")) == 0)
        abort();
    json_decref(found);
    json_decref(ranks);
    free(text);
    return 0;
}
