/* What somebody writes against the installed library: ranks meet at the store. */
#include <ddprun/store.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    struct ddp_err err;
    struct ddp_value values[2];
    int rank = atoi(getenv("RANK"));
    struct ddp_store *s = ddp_store_connect(NULL, 0, 10000, &err);
    if (!s || ddp_store_fence(s, "meet", rank, 2, rank ? "b" : "a", 1, values, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("met %s%s\n", (char *)values[0].data, (char *)values[1].data);
    ddp_values_free(values, 2);
    ddp_store_close(s);
    return 0;
}
