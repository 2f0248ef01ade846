"""Seccomp rules for device processes: for the CPU backend, whose kernels are native code, and for GPUs."""

from __future__ import annotations

import errno

from hearthd.confinement.seccomp import Argument, Rule

_OTHER_PROCESSES = (
    "kcmp", "migrate_pages", "move_pages", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "process_madvise",
    "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace",
)  # fmt: skip
_SYSTEM = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
    "fanotify_mark", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl",
    "kexec_file_load", "kexec_load", "keyctl", "listmount", "lookup_dcookie", "modify_ldt", "mount", "mount_setattr",
    "move_mount", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open", "personality",
    "pivot_root", "quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname", "setns",
    "settimeofday", "statmount", "swapoff", "swapon", "syslog", "umount2", "unshare", "uselib", "userfaultfd",
    "vhangup",
)  # fmt: skip
_PROGRAMS = ("execve", "execveat", "fork", "vfork", "io_uring_enter", "io_uring_register", "io_uring_setup")
"""Calls that start programs or processes, and io_uring, which makes system calls that no filter sees."""
_SOCKETS = ("accept", "accept4", "bind", "connect", "listen", "socket")
_ATTRIBUTES = (
    "chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fremovexattr", "fsetxattr", "futimesat",
    "inotify_init", "inotify_init1", "lchown", "lremovexattr", "lsetxattr", "mknod", "mknodat", "removexattr",
    "setxattr", "truncate", "utime", "utimensat", "utimes",
)  # fmt: skip
"""Calls that change attributes of files, which Landlock does not cover, or truncate files, which versions before 3 do
not cover."""
_IDENTITY = (
    "capset", "setfsgid", "setfsuid", "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid",
)  # fmt: skip
_NAMED_IPC = (
    "mq_notify", "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop",
    "semtimedop", "shmat", "shmctl", "shmget",
)  # fmt: skip
"""Calls on named objects, which other processes of the user or of the machine may have created."""

_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_CLONE_THREAD = 0x10000
_MSG_FASTOPEN = 0x20000000
_F_SETOWN, _F_SETOWN_EX = 8, 15
_TIOCSTI, _TIOCLINUX, _TIOCCONS, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x541D, 0x8901, 0x8902
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_PTRACER = 1, 4, 0x59616D61


def cpu(pid: int) -> list[Rule]:
    """Returns the rules for the process `pid` of the CPU backend.

    It can use its existing sockets and start threads. It cannot start a process, open a socket, signal other processes,
    or change anything of files except their content.
    """
    own_pid, own_pid_or_zero = (pid,), (0, pid)
    always = (*_OTHER_PROCESSES, *_SYSTEM, *_PROGRAMS, *_SOCKETS, *_ATTRIBUTES, *_IDENTITY, *_NAMED_IPC, "tkill")
    return [
        # A closed TCP socket can be connected again by sending the first bytes with MSG_FASTOPEN.
        Rule("sendto", clear=((3, _MSG_FASTOPEN),)),
        Rule("sendmsg", clear=((2, _MSG_FASTOPEN),)),
        Rule("sendmmsg", clear=((3, _MSG_FASTOPEN),)),
        Rule("ioctl", never=(Argument(1, (_TIOCSTI, _TIOCLINUX, _TIOCCONS, _FIOSETOWN, _SIOCSPGRP)),)),
        # The owner of a descriptor gets a signal that can be chosen.
        Rule("fcntl", never=(Argument(1, (_F_SETOWN, _F_SETOWN_EX)),)),
        Rule("prctl", never=(Argument(0, (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_PTRACER)),)),
        Rule("clone", set=((0, _CLONE_THREAD),)),
        # its flags are in memory, which a filter cannot read; the C library then uses clone
        Rule("clone3", error=errno.ENOSYS),
        # Datagrams can be sent to any address, even from one end of a pair.
        Rule("socketpair", only=(Argument(0, (_AF_UNIX,)), Argument(1, (_SOCK_STREAM,), _SOCK_TYPE))),
        *(
            Rule(name, only=(Argument(0, own_pid),))
            for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
        ),
        *(
            Rule(name, only=(Argument(0, own_pid_or_zero),))
            for name in ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
        ),
        Rule("setpriority", only=(Argument(0, (0,)), Argument(1, own_pid_or_zero))),
        Rule("ioprio_set", only=(Argument(0, (1,)), Argument(1, own_pid_or_zero))),
        *(Rule(name) for name in always),
    ]


def gpu() -> list[Rule]:
    """Returns the rules for a device process on a GPU.

    They deny calls that neither CUDA nor NCCL makes, and that an attacker would. Programs may be started (the driver
    starts `nvidia-modprobe`) and sockets opened (NCCL).
    """
    return [Rule(name) for name in (*_OTHER_PROCESSES, *_SYSTEM) if name not in _USED_BY_CUDA]


_USED_BY_CUDA = (
    "migrate_pages",
    "move_pages",
    "pidfd_getfd",
    "pidfd_open",
    "perf_event_open",
    "statmount",
    "listmount",
)
"""Calls that CUDA uses: NUMA placement, exports of memory between processes, and profilers."""
