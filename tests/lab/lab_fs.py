"""A folder behind a slow file server: every answer takes MS more.      lab_fs.py FOLDER MS PIDFILE

Mounts the folder over itself by the kernel's FUSE protocol. Stopped (SIGSTOP), it is a server that
does not answer, so every access to the folder hangs, as with NFS. No hard links, extended
attributes or locks.
"""
import ctypes
import errno
import os
import stat
import struct
import sys
import time

HEADER = struct.Struct("<IIQQIIIHH")
BUFFER = (128 << 10) + 4096


def cut(data):
    """The names, each of which ends in a 0."""
    return [os.fsdecode(name) for name in data.split(b"\0")[:-1]]


class Server:
    def __init__(self, folder, seconds):
        self.root, self.seconds = os.open(folder, os.O_RDONLY), seconds
        self.paths, self.ids, self.open = {1: "."}, {".": 1}, {}
        self.uid = self.gid = 0
        self.device = os.open("/dev/fuse", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other," \
                  "default_permissions"
        if libc.mount(b"lab-slow", folder.encode(), b"fuse.lab", 0, options.encode()) < 0:
            sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")

    def serve(self):
        while True:
            try:
                request = os.read(self.device, BUFFER)
            except OSError as e:
                if e.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return  # unmounted
            _, op, unique, node, self.uid, self.gid, _, _, _ = HEADER.unpack_from(request)
            verb, error, answer = VERBS.get(op), 0, b""
            if op in (2, 36, 42):
                continue  # FORGET, INTERRUPT, BATCH_FORGET have no answer
            if op != 26:
                time.sleep(self.seconds)
            try:
                if verb is None:
                    raise OSError(errno.ENOSYS, "")
                answer = verb(self, self.paths.get(node), request[HEADER.size:]) or b""
            except OSError as e:
                error = e.errno
            try:
                os.write(self.device, struct.pack("<IiQ", 16 + len(answer), -error, unique) + answer)
            except OSError:
                pass  # the caller is gone

    # answers

    def attr(self, path):
        s = os.stat(path, dir_fd=self.root, follow_symlinks=False)
        times = [s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns]
        return struct.pack("<6Q10I", self.id_of(path), s.st_size, s.st_blocks,
                           *(t // 10**9 for t in times), *(t % 10**9 for t in times), s.st_mode,
                           s.st_nlink, s.st_uid, s.st_gid, s.st_rdev, s.st_blksize, 0)

    def id_of(self, path):
        if path not in self.ids:
            self.ids[path] = len(self.paths) + 1
            self.paths[self.ids[path]] = path
        return self.ids[path]

    def entry(self, path):
        attr = self.attr(path)  # nothing is kept in the kernel: each question comes here
        return struct.pack("<4Q2I", self.id_of(path), 0, 0, 0, 0, 0) + attr

    def made(self, path):
        os.chown(path, self.uid, self.gid, dir_fd=self.root, follow_symlinks=False)
        return self.entry(path)

    def handle(self, fd):
        self.open[fd] = True
        return struct.pack("<QIi", fd, 0, 0)

    def forget(self, path):
        self.ids.pop(path, None)

    # questions

    def init(self, _path, data):
        major, _, readahead, _ = struct.unpack_from("<4I", data)
        return struct.pack("<4I2H2I2H8I", major, 31, readahead, 0, 12, 9, 128 << 10, 1, 0, 0, *[0] * 8)

    def lookup(self, path, data):
        return self.entry(f"{path}/{cut(data)[0]}")

    def getattr(self, path, _data):
        return struct.pack("<QII", 0, 0, 0) + self.attr(path)

    def setattr(self, path, data):
        (valid, _, _, size, _, atime, mtime, _, ans, mns, _, mode, _, uid, gid,
         _) = struct.unpack_from("<IIQQQ3Q3I5I", data)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode), dir_fd=self.root)
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1, dir_fd=self.root,
                     follow_symlinks=False)
        if valid & 8:
            fd = os.open(path, os.O_WRONLY, dir_fd=self.root)
            os.ftruncate(fd, size)
            os.close(fd)
        if valid & 0x30:
            old = os.stat(path, dir_fd=self.root, follow_symlinks=False)
            at = time.time_ns() if valid & 0x80 else atime * 10**9 + ans
            mt = time.time_ns() if valid & 0x100 else mtime * 10**9 + mns
            os.utime(path, ns=(at if valid & 0x10 else old.st_atime_ns,
                               mt if valid & 0x20 else old.st_mtime_ns),
                     dir_fd=self.root, follow_symlinks=False)
        return self.getattr(path, data)

    def readlink(self, path, _data):
        return os.fsencode(os.readlink(path, dir_fd=self.root))

    def symlink(self, path, data):
        name, target = cut(data)
        os.symlink(target, f"{path}/{name}", dir_fd=self.root)
        return self.made(f"{path}/{name}")

    def mknod(self, path, data):
        path = f"{path}/{cut(data[16:])[0]}"
        os.mknod(path, *struct.unpack_from("<II", data), dir_fd=self.root)
        return self.made(path)

    def mkdir(self, path, data):
        path = f"{path}/{cut(data[8:])[0]}"
        os.mkdir(path, struct.unpack_from("<I", data)[0], dir_fd=self.root)
        return self.made(path)

    def unlink(self, path, data):
        os.unlink(f"{path}/{cut(data)[0]}", dir_fd=self.root)
        self.forget(f"{path}/{cut(data)[0]}")

    def rmdir(self, path, data):
        os.rmdir(f"{path}/{cut(data)[0]}", dir_fd=self.root)
        self.forget(f"{path}/{cut(data)[0]}")

    def rename(self, path, data, head=8):
        old, new = cut(data[head:])
        old, new = f"{path}/{old}", f"{self.paths[struct.unpack_from('<Q', data)[0]]}/{new}"
        os.rename(old, new, src_dir_fd=self.root, dst_dir_fd=self.root)
        self.forget(new)
        for known in [p for p in self.ids if p == old or p.startswith(old + "/")]:
            node = self.ids.pop(known)
            self.paths[node] = new + known[len(old):]
            self.ids[self.paths[node]] = node

    def rename2(self, path, data):
        self.rename(path, data, 16)

    def open_file(self, path, data):
        flags = struct.unpack_from("<I", data)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return self.handle(os.open(path, flags, dir_fd=self.root))

    def create(self, path, data):
        flags, mode = struct.unpack_from("<II", data)
        path = f"{path}/{cut(data[16:])[0]}"
        fd = os.open(path, flags, mode, dir_fd=self.root)
        return self.made(path) + self.handle(fd)

    def read(self, _path, data):
        fd, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(fd, size, offset)

    def write(self, _path, data):
        fd, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(fd, data[40:40 + size], offset), 0)

    def release(self, _path, data):
        fd = struct.unpack_from("<Q", data)[0]
        if self.open.pop(fd, None):
            os.close(fd)

    def fsync(self, _path, data):
        os.fsync(struct.unpack_from("<Q", data)[0])

    def readdir(self, path, data):
        _, offset, size = struct.unpack_from("<QQI", data)
        names, answer = [".", "..", *sorted(os.listdir(self.fd_path(path)))], b""
        for i, name in enumerate(names[offset:], offset + 1):
            raw = os.fsencode(name)
            one = struct.pack("<QQII", i, i, len(raw), 0) + raw + b"\0" * (-len(raw) % 8)
            if len(answer) + len(one) > size:
                break
            answer += one
        return answer

    def fd_path(self, path):
        return f"/proc/self/fd/{self.root}/{path}"

    def statfs(self, _path, _data):
        s = os.fstatvfs(self.root)
        return struct.pack("<5Q10I", s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree,
                           s.f_bsize, s.f_namemax, s.f_frsize, *[0] * 7)

    def nothing(self, _path, _data):
        pass


VERBS = {
    1: Server.lookup, 3: Server.getattr, 4: Server.setattr, 5: Server.readlink, 6: Server.symlink,
    8: Server.mknod, 9: Server.mkdir, 10: Server.unlink, 11: Server.rmdir, 12: Server.rename,
    14: Server.open_file, 15: Server.read, 16: Server.write, 17: Server.statfs,
    18: Server.release, 20: Server.fsync, 25: Server.nothing, 26: Server.init,
    27: Server.open_file, 28: Server.readdir, 29: Server.release, 30: Server.nothing,
    35: Server.create, 38: Server.nothing, 45: Server.rename2,
}

os.umask(0)
server = Server(sys.argv[1], float(sys.argv[2]) / 1e3)
if os.fork() == 0:  # mounted: the parent returns
    for fd in range(3):
        os.dup2(server.root, fd)
    with open(sys.argv[3], "w", encoding="ascii") as pid_file:
        pid_file.write(str(os.getpid()))
    server.serve()
