/* launcher/tools/fetch/catalog.h - the known data sets: URLs, and sizes and checksums of
 * their files
 *
 * An ini file: datasets.ini in this folder is installed, --data-sets names another.
 */
#ifndef LAUNCHER_TOOLS_FETCH_CATALOG_H
#define LAUNCHER_TOOLS_FETCH_CATALOG_H

#include "common/digest.h"
#include "common/strv.h"

struct data_file {
    char *name;    /* owned: no '/', no leading '.' */
    int64_t bytes; /* file size */
    char sha256[DIGEST_TEXT];
};

struct data_set {
    char *name, *about;      /* owned; `about` may be NULL */
    struct strv urls;        /* folders, in the order of attempts */
    struct data_file *files; /* owned */
    size_t nfiles;
};

/* The set `name` of the file `path`. -1 with `err`, which has file and line. */
int catalog_find(const char *path, const char *name, struct data_set *out,
                 struct ddp_err *err);
void data_set_finish(struct data_set *s);

#endif
