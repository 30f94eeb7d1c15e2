/* tests/launcher/print_front.c - the tables of options and variables, for docs.py */
#include "launcher/cli.h"
#include "launcher/contract.h"

#include <stdio.h>
#include <string.h>

static void on_line(const char *text, void *arg)
{
    puts(text);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "help") == 0)
        cli_help(on_line, NULL);
    else
        contract_print(on_line, NULL);
    return 0;
}
