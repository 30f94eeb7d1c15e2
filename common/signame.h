/* common/signame.h - names of signals: sigabbrev_np() needs glibc 2.32 */
#ifndef COMMON_SIGNAME_H
#define COMMON_SIGNAME_H

/* "SIGTERM"; "SIGRT" for real-time signals. Static. */
const char *signal_name(int sig);

#endif
