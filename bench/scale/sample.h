/* bench/scale/sample.h - what the launcher has used so far
 *
 * CPU time, memory and descriptors are read from /proc of the launcher; bytes are the
 * kernel's counters of the simulated agents' sockets, so they include the handshakes and
 * the sealing of records.
 */
#ifndef BENCH_SCALE_SAMPLE_H
#define BENCH_SCALE_SAMPLE_H

#include <stdint.h>
#include <sys/types.h>

struct sample {
    int64_t at_ns, cpu_ns;       /* wall clock; CPU time of all threads */
    long rss_kib, peak_kib, fds; /* now; the most so far; open descriptors */
    uint64_t up, down;           /* bytes of closed links, and of those counted */
};

/* Of process `pid`; leaves the bytes alone. */
void sample_process(pid_t pid, struct sample *s);
/* Add the bytes of a socket: `up` those it has sent. */
void sample_socket(int fd, struct sample *s);

#endif
