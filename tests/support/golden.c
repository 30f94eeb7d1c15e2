/* tests/support/golden.c - see golden.h */
#include "tests/support/golden.h"

#include "common/mem.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_all(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *in = fopen(path, "r");
    ck_assert_msg(in != NULL, "'%s' is not there; UPDATE_GOLDEN=1 writes it", path);
    if (getdelim(&text, &size, '\0', in) < 0)
        ck_abort_msg("'%s' is empty", path);
    fclose(in);
    return text;
}

void golden_check(const char *name, const char *text)
{
    char *path = xasprintf(GOLDEN_DIR "/%s", name);
    const char *update = getenv("UPDATE_GOLDEN");
    if (update && *update == '1') {
        FILE *out = fopen(path, "w");
        ck_assert_msg(out != NULL, "cannot write '%s'", path);
        fputs(text, out);
        fclose(out);
        free(path);
        return;
    }
    char *expected = read_all(path);
    const char *a = text, *b = expected;
    for (int line = 1; *a || *b; line++) {
        int alen = (int)strcspn(a, "\n"), blen = (int)strcspn(b, "\n");
        ck_assert_msg(alen == blen && memcmp(a, b, (size_t)alen) == 0,
                      "%s:%d is\n'%.*s' and should be\n'%.*s'", name, line, alen, a, blen,
                      b);
        a += alen + (a[alen] == '\n');
        b += blen + (b[blen] == '\n');
    }
    free(expected);
    free(path);
}
