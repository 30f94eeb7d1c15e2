/* packaging/compat.c - what Debian 12's static libraries call and glibc 2.28 does not have
 *
 * Part of the libraries that a release is linked with (tools/release). fstat() was inline before
 * glibc 2.33, arc4random() is of 2.36.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>

#undef fstat
int fstat(int fd, struct stat *st);
int __fxstat(int version, int fd, struct stat *st);
uint32_t arc4random(void);
void arc4random_buf(void *buf, size_t n);

#ifdef __x86_64__
enum { STAT_VERSION = 1 };
#else
enum { STAT_VERSION = 0 };
#endif

int fstat(int fd, struct stat *st)
{
    return __fxstat(STAT_VERSION, fd, st);
}

void arc4random_buf(void *buf, size_t n)
{
    for (char *p = buf; n > 0;) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno != EINTR)
            abort(); /* a kernel without getrandom(), which glibc 2.28 does not run on */
        p += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
}

uint32_t arc4random(void)
{
    uint32_t word;
    arc4random_buf(&word, sizeof word);
    return word;
}
