/* common/installed.c - see installed.h */
#include "common/installed.h"

#include "common/mem.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES = 5 };

/* Relative to the program's directory: in a build directory, and as installed; the last
 * one is absolute. FROM_* come from meson.build. */
static const char *const places[][PLACES] = {
    [INSTALLED_PROGRAM] = {".", "..", FROM_BIN_TO_LIBEXEC, ".", DDPRUN_LIBEXECDIR},
    [INSTALLED_DATA] = {"tools/fetch", ".", FROM_BIN_TO_DATA, FROM_LIBEXEC_TO_DATA,
                        DDPRUN_DATADIR},
    [INSTALLED_PLUGIN] = {"cuda", ".", FROM_BIN_TO_LIB, ".", DDPRUN_LIBDIR},
};

char *installed_file(enum installed_kind kind, const char *name, int mode)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    int folder = slash ? (int)(slash - self) : 0;
    for (size_t i = 0; i < PLACES; i++) {
        const char *place = places[kind][i];
        char *path = place[0] == '/' ? xasprintf("%s/%s", place, name)
                     : strcmp(place, ".") == 0
                         ? xasprintf("%.*s/%s", folder, self, name)
                         : xasprintf("%.*s/%s/%s", folder, self, place, name);
        if (access(path, mode) == 0)
            return path;
        free(path);
    }
    return NULL;
}

char *installed_plugin(const void *address, const char *name)
{
    static const char *const near[] = {"", "ddprun/", "cuda/"};
    Dl_info library;
    const char *slash = dladdr(address, &library) && library.dli_fname
                            ? strrchr(library.dli_fname, '/')
                            : NULL;
    for (size_t i = 0; i < ARRAY_LEN(near) && slash; i++) {
        char *path = xasprintf("%.*s/%s%s", (int)(slash - library.dli_fname),
                               library.dli_fname, near[i], name);
        if (access(path, R_OK) == 0)
            return path;
        free(path);
    }
    return installed_file(INSTALLED_PLUGIN, name, R_OK);
}

char *installed_default(enum installed_kind kind, const char *name)
{
    return xasprintf("%s/%s", places[kind][PLACES - 1], name);
}
