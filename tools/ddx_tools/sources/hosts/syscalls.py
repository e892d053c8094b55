"""Names of the Linux system calls that a training process waits in.

Numbers from the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
A call that is not listed keeps its number.
"""

from __future__ import annotations

_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 8: "lseek",
    9: "mmap", 11: "munmap", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
    23: "select", 24: "sched_yield", 25: "mremap", 26: "msync", 28: "madvise", 34: "pause", 35: "nanosleep",
    40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
    48: "shutdown", 56: "clone", 58: "vfork", 59: "execve", 61: "wait4", 65: "semop", 70: "msgrcv",
    72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 76: "truncate", 77: "ftruncate", 82: "rename",
    83: "mkdir", 87: "unlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 162: "sync", 202: "futex",
    208: "io_getevents", 217: "getdents64", 219: "restart_syscall", 220: "semtimedop",
    230: "clock_nanosleep", 231: "exit_group", 232: "epoll_wait", 243: "mq_timedreceive", 247: "waitid",
    257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat", 264: "renameat", 270: "pselect6",
    271: "ppoll", 275: "splice", 281: "epoll_pwait", 285: "fallocate", 288: "accept4", 299: "recvmmsg",
    306: "syncfs", 326: "copy_file_range", 332: "statx", 426: "io_uring_enter", 435: "clone3",
    441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip

_AARCH64 = {
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat",
    35: "unlinkat", 38: "renameat", 45: "truncate", 46: "ftruncate", 47: "fallocate", 56: "openat",
    57: "close", 61: "getdents64", 62: "lseek", 63: "read", 64: "write", 65: "readv", 66: "writev",
    67: "pread64", 68: "pwrite64", 71: "sendfile", 72: "pselect6", 73: "ppoll", 76: "splice",
    79: "newfstatat", 80: "fstat", 81: "sync", 82: "fsync", 83: "fdatasync", 94: "exit_group", 95: "waitid",
    98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield", 128: "restart_syscall",
    133: "rt_sigsuspend", 137: "rt_sigtimedwait", 183: "mq_timedreceive", 188: "msgrcv", 192: "semtimedop",
    193: "semop", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 210: "shutdown",
    211: "sendmsg", 212: "recvmsg", 215: "munmap", 216: "mremap", 220: "clone", 221: "execve", 222: "mmap",
    227: "msync", 233: "madvise", 242: "accept4", 243: "recvmmsg", 260: "wait4", 267: "syncfs",
    276: "renameat2", 285: "copy_file_range", 291: "statx", 426: "io_uring_enter", 435: "clone3",
    441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip

_TABLES = {"x86_64": _X86_64, "amd64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}

FD_CALLS = frozenset({
    "read", "write", "readv", "writev", "pread64", "pwrite64", "recvfrom", "sendto", "recvmsg", "sendmsg",
    "recvmmsg", "accept", "accept4", "connect", "fsync", "fdatasync", "flock", "fcntl", "ioctl", "lseek",
    "ftruncate", "fallocate", "getdents64", "splice", "syncfs", "epoll_wait", "epoll_pwait", "epoll_pwait2",
    "close", "shutdown", "fstat", "sendfile",
})  # fmt: skip
"""Calls whose first argument is the file descriptor that they wait for."""


def name_of(number: int, machine: str) -> str | None:
    """The name of a system call on this machine type (`platform.machine()`); None if it is not in the table."""
    return _TABLES.get(machine.lower(), {}).get(number)
