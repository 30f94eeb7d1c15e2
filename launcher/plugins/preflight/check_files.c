/* launcher/plugins/preflight/check_files.c - the working directory, /tmp and /dev/shm of
 * a node
 */
#include "launcher/plugins/preflight/check.h"

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

/* Write `bytes` to a temporary file in `folder`: statvfs() ignores quotas. 0, or errno.
 */
static int try_to_write(const char *folder, size_t bytes)
{
    static const char zeros[64 << 10];
    OWNED char *path = xasprintf("%s/.ddprun-preflight-XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC), why = fd < 0 ? errno : 0;
    if (fd >= 0)
        unlink(path);
    for (size_t n = 0; why == 0 && n < bytes; n += sizeof zeros) {
        ssize_t sent = write(fd, zeros, sizeof zeros);
        if (sent != (ssize_t)sizeof zeros)
            why = sent < 0 ? errno : ENOSPC;
    }
    if (why == 0 && fsync(fd) < 0) /* NFS reports a full disk only now */
        why = errno;
    close_fd(&fd);
    return why;
}

/* Equal on all hosts that share the directory: inode number and creation time, since
 * inode numbers of two file systems may be equal. st_dev is not used: it differs between
 * the clients of one NFS. */
static char *identity_of(const char *path)
{
    struct statx st = {0};
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &st) < 0)
        return NULL;
    return xasprintf("%llu %lld.%u", (unsigned long long)st.stx_ino,
                     (long long)st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
}

void check_wdir(const struct check_ctx *ctx)
{
    const char *dir = ctx->probe->wdir;
    struct stat st;
    if (stat(dir, &st) < 0) {
        found_problem(ctx,
                      "the working directory '%s' cannot be used there: %s; is home "
                      "shared with this host? --wdir names another",
                      dir, strerror(errno));
        return;
    }
    if (!S_ISDIR(st.st_mode) || chdir(dir) < 0) {
        found_problem(ctx, "the working directory '%s' cannot be used there: %s", dir,
                      S_ISDIR(st.st_mode) ? strerror(errno) : "not a directory");
        return;
    }
    int why = try_to_write(dir, 1);
    OWNED char *key = identity_of(dir);
    found_value(ctx, NULL, key, "'%s', %s%s", dir, kind_of(dir),
                why ? ", not writable" : "");
    if (why == ENOSPC || why == EDQUOT || why == EIO)
        found_problem(ctx, "nothing can be written in the working directory '%s': %s",
                      dir, strerror(why));
    else if (why)
        found_remark(ctx,
                     "the working directory '%s' is not writable there (%s): "
                     "checkpoints have to go elsewhere",
                     dir, strerror(why));
}

static void check_space(const struct check_ctx *ctx, const char *dir, double least_mib,
                        const char *cure)
{
    int why = try_to_write(dir, MIB);
    double mib = free_mib(dir);
    if (why == ENOSPC || why == EDQUOT) {
        found_problem(ctx, "'%s' is full there (%s); %s", dir, strerror(why), cure);
    } else if (why) {
        found_problem(ctx, "nothing can be written in '%s' there: %s; %s", dir,
                      strerror(why), cure);
    } else {
        found_number(ctx, (int64_t)(mib * MIB));
        if (mib < least_mib)
            found_problem(ctx, "only %.0f MiB free in '%s' there; %s", mib, dir, cure);
    }
}

void check_tmp(const struct check_ctx *ctx)
{
    const char *dir = strv_env_get(ctx->env, "TMPDIR");
    check_space(ctx, dir && *dir ? dir : "/tmp", 16,
                "clear it, or name another with -x TMPDIR=...");
}

/* Used by PyTorch's data loaders, NCCL and ddp groups; the default in containers is
 * 64 MiB. */
void check_shm(const struct check_ctx *ctx)
{
    check_space(ctx, "/dev/shm", 256,
                "clear it, or make it larger (docker run --shm-size=8g, mount -o "
                "remount,size=50%)");
}
