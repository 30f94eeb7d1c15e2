/* launcher/plugins/mpi/session_dir.h - the directory of a PMIx server's session files
 *
 * The server makes it, and removes it when it exits. The agent chooses its name, and
 * removes it after a server that was killed.
 */
#ifndef LAUNCHER_PLUGINS_MPI_SESSION_DIR_H
#define LAUNCHER_PLUGINS_MPI_SESSION_DIR_H

/* An unpredictable name in $TMPDIR; the caller frees it. */
char *session_dir_name(void);
void session_dir_remove(const char *dir); /* with all that is in it, if it exists */

#endif
