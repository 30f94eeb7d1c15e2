/* common/installed.h - files of this installation, found from the running program
 *
 * An installation may be moved as a whole (a tarball, a virtual environment): a file is
 * looked for relative to the program, as in a build folder and as installed, and only then
 * at the prefix that was configured.
 */
#ifndef COMMON_INSTALLED_H
#define COMMON_INSTALLED_H

enum installed_kind {
    INSTALLED_PROGRAM, /* what ddprun runs itself: libexec/ddprun */
    INSTALLED_DATA,    /* share/ddprun */
    INSTALLED_PLUGIN,  /* lib/ddprun */
};

/* The path of `name` (malloc'ed) that access(2) grants `mode` (X_OK, R_OK); NULL: there is
 * none. */
char *installed_file(enum installed_kind kind, const char *name, int mode);

/* Where `name` would be at the configured prefix (malloc'ed): for messages and for other
 * hosts, which may have it there. */
char *installed_default(enum installed_kind kind, const char *name);

#endif
