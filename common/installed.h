/* common/installed.h - find files of this installation from the running program
 *
 * An installation may be moved as a whole (a tarball, a virtual environment): a file is
 * searched relative to the program, as in a build directory and as installed, and then at
 * the configured prefix.
 */
#ifndef COMMON_INSTALLED_H
#define COMMON_INSTALLED_H

enum installed_kind {
    INSTALLED_PROGRAM, /* programs that ddprun runs: libexec/ddprun */
    INSTALLED_DATA,    /* share/ddprun */
    INSTALLED_PLUGIN,  /* lib/ddprun */
};

/* The path of `name` (malloc'ed) for which access(2) grants `mode` (X_OK, R_OK); NULL:
 * none. */
char *installed_file(enum installed_kind kind, const char *name, int mode);

/* The path of a plug-in (malloc'ed) that may also be near the library which contains
 * `address`: beside it, or in ddprun/ or, in a build directory, cuda/ there. */
char *installed_plugin(const void *address, const char *name);

/* The path of `name` at the configured prefix (malloc'ed): for messages and for other
 * hosts, which may have it there. */
char *installed_default(enum installed_kind kind, const char *name);

#endif
