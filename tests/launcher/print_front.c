/* tests/launcher/print_front.c - prints tables of the launcher for scripts
 *
 *     print_front help | variables | subsystems    the tables, for docs.py
 *     print_front names LIST...        host lists expanded, for scontrol.py
 */
#include "common/hostlist.h"
#include "common/log.h"
#include "launcher/cli/help.h"
#include "launcher/contract.h"

#include <stdio.h>
#include <string.h>

static int print_names(char *const *lists)
{
    struct ddp_err err;
    for (; *lists; lists++) {
        struct strv names = {0};
        if (hostlist_expand(*lists, &names, &err) < 0)
            puts(err.text);
        for (size_t i = 0; i < names.n; i++)
            puts(names.v[i]);
        puts("");
        strv_finish(&names);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "names") == 0)
        return print_names(argv + 2);
    if (strcmp(what, "subsystems") == 0) {
        for (const char *const *s = log_subsystems; *s; s++)
            puts(*s);
        return 0;
    }
    if (strcmp(what, "help") == 0)
        help_show("all", stdout, &(struct ddp_err){""});
    else
        contract_print(stdout);
    return 0;
}
