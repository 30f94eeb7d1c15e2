/* common/text_file.c - see text_file.h */
#include "common/text_file.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *text_file_read(const char *what, const char *path, struct ddp_err *err)
{
    FILE *in = fopen(path, "re");
    if (!in) {
        err_errno(err, "cannot open the %s file '%s'", what, path);
        return NULL;
    }
    char *text = xcalloc(TEXT_FILE_MAX + 1, 1);
    size_t n = fread(text, 1, TEXT_FILE_MAX, in);
    int rc = 0;
    if (ferror(in))
        rc = err_errno(err, "cannot read the %s file '%s'", what, path);
    else if (n == TEXT_FILE_MAX || strlen(text) != n)
        rc = err_set(err, "'%s' is not a %s file", path, what);
    fclose(in);
    if (rc == 0)
        return text;
    free(text);
    return NULL;
}
