"""System call numbers by architecture, for the calls that the filters of `hearthd.confinement.profiles` name.

The first column is x86_64; the second is asm-generic/unistd.h, which aarch64 uses. From 424 on, all architectures use
the same numbers.
"""

from __future__ import annotations

import platform

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Values of AUDIT_ARCH_* (linux/audit.h) by `platform.machine()`."""

LAST_KNOWN = 462
"""The last call that the filters were written for (`mseal`); for a filtered process, calls with higher numbers do not
exist."""

_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171),
    "bind": (49, 200), "bpf": (321, 280), "capset": (126, 91), "chmod": (90, None), "chown": (92, None),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220),
    "clone3": (435, 435), "connect": (42, 203), "delete_module": (176, 106), "execve": (59, 221),
    "execveat": (322, 281), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25),
    "finit_module": (313, 273), "fork": (57, None), "fremovexattr": (199, 16), "fsconfig": (431, 431),
    "fsetxattr": (190, 7), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "futimesat": (261, None),
    "init_module": (175, 105), "inotify_init": (253, None), "inotify_init1": (294, 26), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None),
    "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129), "lchown": (94, None), "listen": (50, 201),
    "listmount": (458, 458), "lookup_dcookie": (212, 18), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "migrate_pages": (256, 238), "mknod": (133, None), "mknodat": (259, 33), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "mq_notify": (244, 184), "mq_open": (240, 180), "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186),
    "msgrcv": (70, 188), "msgsnd": (69, 189), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241), "personality": (135, 92),
    "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41),
    "prctl": (157, 167), "prlimit64": (302, 261), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "removexattr": (197, 14), "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semctl": (66, 191),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "sendmmsg": (307, 269), "sendmsg": (46, 211),
    "sendto": (44, 206), "setdomainname": (171, 162), "setfsgid": (123, 152), "setfsuid": (122, 151),
    "setgid": (106, 144), "setgroups": (116, 159), "sethostname": (170, 161), "setns": (308, 268),
    "setpriority": (141, 140), "setregid": (114, 143), "setresgid": (119, 149), "setresuid": (117, 147),
    "setreuid": (113, 145), "settimeofday": (164, 170), "setuid": (105, 146), "setxattr": (188, 5),
    "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194), "socket": (41, 198), "socketpair": (53, 199),
    "statmount": (457, 457), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "tgkill": (234, 131),
    "tkill": (200, 130), "truncate": (76, 45), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "uselib": (134, None), "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None), "vfork": (58, None),
    "vhangup": (153, 58),
}  # fmt: skip

_COLUMNS = {machine: column for column, machine in enumerate(ARCHITECTURES)}

SECCOMP = {"x86_64": 317, "aarch64": 277}
"""Number of the call that installs a filter, by `platform.machine()`."""


def number(name: str, machine: str = "") -> int | None:
    """Returns the number of a call on `machine` (default: this one); None if that architecture has no such call.

    Raises KeyError for a name or a machine that the table does not have.
    """
    return _NUMBERS[name][_COLUMNS[machine or platform.machine()]]


def known() -> bool:
    """True if the table has this architecture."""
    return platform.machine() in ARCHITECTURES
