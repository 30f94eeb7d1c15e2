"""Fork a process whose parent is the caller's own parent.

The agent has to be the parent of a rank. By two forks, of which the first ends, a rank of PyTorch costs
three times the work: each copies the page tables of all that was imported, and the end frees a copy. This
is glibc's fork() with CLONE_PARENT. It does not call what pthread_atfork() has registered: the caller has
one thread, and has called os.fork() since there were more, for the libraries that stop theirs.
"""
import ctypes
import os
import sys

CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, SIGCHLD = 0x8000, 0x200000, 0x1000000, 17
PR_GET_TID_ADDRESS = 40
CALLS = {"x86_64": (56, 273, 274), "aarch64": (220, 99, 100)}  # clone, set_robust_list, get_robust_list


def thread_id(libc):
    """The address of glibc's variable with the id of this thread; None: there is none (musl). Before
    glibc 2.43 the kernel has it, to clear it at the thread's end; since 2.34 libthread_db's symbol has the
    offset."""
    cleared, places = ctypes.c_void_p(), []
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(cleared), 0, 0, 0) == 0:
        places.append(cleared.value)
    try:
        offset = (ctypes.c_uint32 * 3).in_dll(libc, "_thread_db_pthread_tid")[2]
        libc.pthread_self.restype = ctypes.c_void_p
        places.append(libc.pthread_self() + offset)
    except ValueError:
        pass  # no such symbol
    return next((p for p in places if p and ctypes.c_int.from_address(p).value == os.getpid()), None)


class Sibling:
    def __init__(self):
        self.libc = ctypes.PyDLL(None)
        known = sys.maxsize > 2**32 and CALLS.get(os.uname().machine)
        self.tid = ctypes.c_void_p(thread_id(self.libc) if known else None)
        self.calls = known if self.tid else None

    def fork(self):
        """As os.fork(), or None: it cannot be done here."""
        if not self.calls:
            return None
        clone, set_robust_list, get_robust_list = self.calls
        call, api, robust, size = self.libc.syscall, ctypes.pythonapi, ctypes.c_void_p(), ctypes.c_size_t()
        call(get_robust_list, 0, ctypes.byref(robust), ctypes.byref(size))
        flags = CLONE_PARENT | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | SIGCHLD
        api.PyOS_BeforeFork()
        # the last two are in another order on each architecture; the thread pointer is not used
        pid = call(clone, ctypes.c_long(flags), None, None, self.tid, self.tid)
        if pid == 0:
            call(set_robust_list, robust, size)
            api.PyOS_AfterFork_Child()
            return 0
        api.PyOS_AfterFork_Parent()
        return pid if pid > 0 else None
