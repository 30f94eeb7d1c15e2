/* launcher/preflight/check_files.c - the working directory, /tmp and /dev/shm of a node
 */
#include "launcher/preflight/check.h"

#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static const struct {
    unsigned long magic; /* statfs(2) */
    const char *name;
} kinds[] = {
    {0x6969, "nfs"},         {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},
    {0x19830326, "beegfs"},  {0x00c36400, "ceph"},   {0xef53, "ext4"},
    {0x58465342, "xfs"},     {0x9123683e, "btrfs"},  {0x01021994, "tmpfs"},
    {0x794c7630, "overlay"}, {0x2fc12fc1, "zfs"},    {0x65735546, "fuse"},
    {0x01021997, "9p"},
};

static const char *kind_of(const char *path)
{
    struct statfs fs;
    if (statfs(path, &fs) == 0) {
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            if (kinds[i].magic == (unsigned long)fs.f_type)
                return kinds[i].name;
        }
    }
    return "of unknown kind";
}

static double free_mib(const char *path)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0
               ? (double)fs.f_bavail * (double)fs.f_frsize / (double)MIB
               : 0;
}

/* Can `bytes` really be written in `folder`? statvfs() knows no quotas. 0, or errno. */
static int try_to_write(const char *folder, size_t bytes)
{
    static const char zeros[64 << 10];
    char *path = xasprintf("%s/.ddprun-preflight-XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC), why = fd < 0 ? errno : 0;
    if (fd >= 0)
        unlink(path);
    free(path);
    for (size_t n = 0; why == 0 && n < bytes; n += sizeof zeros) {
        ssize_t sent = write(fd, zeros, sizeof zeros);
        if (sent != (ssize_t)sizeof zeros)
            why = sent < 0 ? errno : ENOSPC;
    }
    if (why == 0 && fsync(fd) < 0) /* NFS says only now that it is full */
        why = errno;
    if (fd >= 0)
        close(fd);
    return why;
}

/* The same on all hosts that share it: its number on its file system, and its birth,
 * since two file systems may number alike. Hosts see one NFS under different devices. */
static char *identity_of(const char *path)
{
    struct statx st = {0};
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &st) < 0)
        return NULL;
    return xasprintf("%llu %lld.%u", (unsigned long long)st.stx_ino,
                     (long long)st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
}

void look_wdir(const struct ask *ask)
{
    const char *dir = ask->probe->wdir;
    struct stat st;
    if (stat(dir, &st) < 0) {
        found_problem(ask,
                      "the working directory '%s' cannot be used there: %s; is home "
                      "shared with this host? --wdir names another",
                      dir, strerror(errno));
        return;
    }
    if (!S_ISDIR(st.st_mode) || chdir(dir) < 0) {
        found_problem(ask, "the working directory '%s' cannot be used there: %s", dir,
                      S_ISDIR(st.st_mode) ? strerror(errno) : "not a directory");
        return;
    }
    int why = try_to_write(dir, 1);
    char *key = identity_of(dir);
    found_value(ask, NULL, key, "'%s', %s%s", dir, kind_of(dir),
                why ? ", not writable" : "");
    free(key);
    if (why == ENOSPC || why == EDQUOT || why == EIO)
        found_problem(ask, "nothing can be written in the working directory '%s': %s",
                      dir, strerror(why));
    else if (why)
        found_remark(ask,
                     "the working directory '%s' is not writable there (%s): "
                     "checkpoints have to go elsewhere",
                     dir, strerror(why));
}

static void look_space(const struct ask *ask, const char *dir, double least_mib,
                       const char *cure)
{
    int why = try_to_write(dir, MIB);
    double mib = free_mib(dir);
    if (why == ENOSPC || why == EDQUOT) {
        found_problem(ask, "'%s' is full there (%s); %s", dir, strerror(why), cure);
    } else if (why) {
        found_problem(ask, "nothing can be written in '%s' there: %s; %s", dir,
                      strerror(why), cure);
    } else {
        found_number(ask, NULL, (int64_t)(mib * MIB));
        if (mib < least_mib)
            found_problem(ask, "only %.0f MiB free in '%s' there; %s", mib, dir, cure);
    }
}

void look_tmp(const struct ask *ask)
{
    const char *dir = strv_env_get(ask->env, "TMPDIR");
    look_space(ask, dir && *dir ? dir : "/tmp", 16,
               "clear it, or name another with -x TMPDIR=...");
}

/* PyTorch's data loaders, NCCL and our own groups all live there; containers begin with
 * 64 MiB. */
void look_shm(const struct ask *ask)
{
    look_space(ask, "/dev/shm", 256,
               "clear it, or make it larger (docker run --shm-size=8g, mount -o "
               "remount,size=50%)");
}
