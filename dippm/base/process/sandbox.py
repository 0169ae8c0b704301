"""The sandbox of a process that reads an untrusted file: no writing, no network, no programs.

It uses three unprivileged mechanisms of Linux, each of which a kernel, a container or a policy may
refuse; which of them work is tested and reported, never assumed:

* **Landlock** (kernel 5.13): files are written, created, moved and removed in one folder only; no
  program is started; newer versions cover TCP, abstract sockets and signals.
* **A network namespace** without interfaces, in a user namespace where needed.
* **seccomp** refuses system calls by which a process reaches other processes, the network or the
  kernel, those that change what Landlock does not cover (modes, times and owners of files), and
  those that start programs.

All are inherited by threads and children, and are irrevocable. Landlock and the namespace apply to
the calling thread and its descendants: enter the sandbox before a framework is imported.

Reading is not restricted: the process starts before its file is known and serves many files,
libraries are anywhere, and Landlock has no exceptions within an allowed folder. Data that was read
can only leave by the answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LANDLOCK, NAMESPACE, SECCOMP = "Landlock", "network namespace", "seccomp"
MECHANISMS = (LANDLOCK, NAMESPACE, SECCOMP)
OTHER_SYSTEM = "only Linux has it"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The restrictions of a process.

    Attributes:
        refused: those of "writing files", "the network" and "starting programs" that were tried
            and refused.
        active: mechanisms that the kernel accepted, with their versions.
        missing: reason by mechanism that the kernel did not accept.
    """

    refused: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def open_ways(self) -> tuple[str, ...]:
        """Actions that are still possible."""
        return tuple(way for way in ATTEMPTS if way not in self.refused)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data that `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Sandbox:
        """Return the sandbox of a document that `to_dict` made."""
        return cls(tuple(document["refused"]), tuple(document["active"]), document["missing"])


def enter_sandbox(folder: Path) -> Sandbox:
    """Drop privileges that a conversion does not need, as far as the kernel allows it.

    Args:
        folder: the only folder in which files may be written from now on.
    """
    if sys.platform != "linux":
        return Sandbox(missing=dict.fromkeys(MECHANISMS, OTHER_SYSTEM))
    active, missing = [], {}
    enter: dict[str, Callable[[], str]] = {
        NAMESPACE: _leave_network,  # first: the others refuse the calls that it needs
        LANDLOCK: lambda: _protect_files(folder),
        SECCOMP: _filter_calls,
    }
    with contextlib.suppress(OSError):
        _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # the others require it
    for name, step in enter.items():
        try:
            version = step()
        except OSError as error:
            missing[name] = error.strerror or str(error)
        else:
            active.append(f"{name} {version}".strip())
        if name == NAMESPACE:
            with contextlib.suppress(OSError):
                _drop_capabilities()
    refused = tuple(way for way, attempt in ATTEMPTS.items() if _is_refused(attempt, folder))
    return Sandbox(refused, tuple(active), missing)


def _is_refused(attempt: Callable[[Path], None], folder: Path) -> bool:
    try:
        attempt(folder)
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENETUNREACH)
    return False


def _write_beside(folder: Path) -> None:
    """Create a folder next to the allowed one, where the process otherwise has permission."""
    outside = folder.with_name(f"{folder.name}-beside")
    outside.mkdir()
    outside.rmdir()


def _connect(folder: Path) -> None:
    """Connect a datagram socket to the discard port of this machine; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("127.0.0.1", 9))


def _start_program(folder: Path) -> None:
    """Start this interpreter in a child, which exits at once."""
    try:
        child = os.fork()
    except OSError as error:  # without a process no program starts either
        raise PermissionError(errno.EPERM, "refused") from error
    if not child:
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", ""])
        os._exit(100)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 100:
        raise PermissionError(errno.EPERM, "refused")


ATTEMPTS: dict[str, Callable[[Path], None]] = {
    "writing files": _write_beside,
    "the network": _connect,
    "starting programs": _start_program,
}


# --- calls into the kernel -------------------------------------------------------------------

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CAPABILITY_VERSION_3, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 0x20080522, 1, 2
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NAMESPACES = 0x7E020080 | CLONE_NEWNET | CLONE_NEWUSER
"""Every flag of `clone` that makes a namespace."""


def _call(function: str, *arguments: Any) -> int:
    """Call a function of the C library.

    Raises:
        OSError: if the call fails.
    """
    library = ctypes.CDLL(None, use_errno=True)
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = getattr(library, function)(*plain)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _capabilities() -> tuple[Any, tuple[int, ...]]:
    """Return the header for `capset`, and the present capability sets."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), 8)
    held = ctypes.create_string_buffer(24)
    _call("capget", header, held)
    return header, struct.unpack("=6I", held.raw)


def _drop_capabilities() -> None:
    """Drop root's capabilities, except that to read files of other users."""
    header, (_, permitted, *_) = _capabilities()
    kept = permitted & 1 << CAP_DAC_READ_SEARCH
    _call("capset", header, struct.pack("=6I", kept, kept, 0, 0, 0, 0))


def _leave_network() -> str:
    """Enter a network namespace without interfaces."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWNET)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        _, (effective, *_) = _capabilities()
        if effective & (1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH):
            words = "a user namespace would take the right to read what belongs to others"
            raise OSError(errno.EPERM, words) from error
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        with contextlib.suppress(OSError):  # otherwise the user is "nobody", with the same rights
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return ""


# --- Landlock --------------------------------------------------------------------------------

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, equal on all architectures."""

RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, TRUNCATE = 1 << 0, 1 << 1, 1 << 14
READING = 1 << 2 | 1 << 3
FILES_BY_ABI = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""Known file accesses by version; later versions have those of the last."""

TCP = 1 << 0 | 1 << 1
SCOPES = 1 << 0 | 1 << 1
"""Abstract sockets and signals of processes outside the sandbox."""


def _protect_files(folder: Path) -> str:
    """Restrict writing to one folder and the null device."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError(errno.EBUSY, "other threads of the process run already")
    abi = _call("syscall", CREATE_RULESET, None, 0, 1)
    files = FILES_BY_ABI[min(abi, len(FILES_BY_ABI) - 1)] & ~READING
    attributes = [files, TCP if abi >= 4 else 0, SCOPES if abi >= 6 else 0]
    known = 1 + (abi >= 4) + (abi >= 6)
    attribute = struct.pack(f"={known}Q", *attributes[:known])
    rules = _call("syscall", CREATE_RULESET, attribute, len(attribute), 0)
    try:
        _allow(rules, folder, files & ~EXECUTE)
        _allow(rules, Path(os.devnull), files & (WRITE_FILE | TRUNCATE))
        _call("syscall", RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return f"ABI {abi}"


def _allow(rules: int, path: Path, accesses: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", accesses, handle)
        _call("syscall", ADD_RULE, rules, RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(handle)


# --- seccomp ---------------------------------------------------------------------------------

X86_64, AARCH64 = 0, 1
MACHINES = {"x86_64": (X86_64, 0xC000003E), "aarch64": (AARCH64, 0xC00000B7)}
NEWEST = 462
"""Last system call that the table below considers. Later ones fail as on an older kernel, for
which libraries have fallbacks."""

NONE = -1
REFUSED: dict[str, tuple[int, int]] = {
    # the network; socket pairs, which reach no other process, are allowed
    "socket": (41, 198),
    # programs
    "execve": (59, 221),
    "execveat": (322, 281),
    # not covered by Landlock: modes, owners, times, attributes, files by their path
    "chmod": (90, NONE),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, NONE),
    "fchown": (93, 55),
    "lchown": (94, NONE),
    "fchownat": (260, 54),
    "utime": (132, NONE),
    "utimes": (235, NONE),
    "futimesat": (261, NONE),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # keys, tracing, and asynchronous calls, which filters cannot see
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # file systems, namespaces, and the machine
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "iopl": (172, NONE),
    "ioperm": (173, NONE),
    "modify_ldt": (154, NONE),
    "_sysctl": (156, NONE),
    "lookup_dcookie": (212, 18),
    "lsm_set_self_attr": (460, 460),
}
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}
"""System calls whose flags are in memory, invisible to filters; the C library falls back."""

CLONE, OPEN, OPENAT, IOCTL = (56, 220), (2, NONE), (257, 56), (16, 29)
OWN_PROCESS_ONLY = {"kill": (62, 129), "tgkill": (234, 131)}
OWN_OR_ZERO = {"prlimit64": (302, 261)}
TERMINAL_CALLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Requests: is it a terminal, its width, available bytes, non-blocking, close on exec or not."""


def _filter_calls() -> str:
    """Refuse the system calls of the tables above."""
    machine, architecture = MACHINES.get(platform.machine(), (NONE, 0))
    if machine == NONE or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"its calls are not known on {platform.machine()}")
    program = b"".join(_instructions(machine, architecture))
    count = len(program) // 8
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", count, ctypes.addressof(code))
    _call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)
    return ""


LOAD, EQUAL, ABOVE, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
ALLOW = 0x7FFF0000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`; the low half of an argument is first."""


def _instructions(machine: int, architecture: int) -> list[bytes]:
    refuse = _line(RETURN, 0x00050000 | errno.EPERM)
    pretend = _line(RETURN, 0x00050000 | errno.ENOSYS)
    allow = _line(RETURN, ALLOW)
    lines = [
        _line(LOAD, ARCHITECTURE),
        *_unless(EQUAL, architecture, [pretend]),
        _line(LOAD, NUMBER),
        *_if(ABOVE, NEWEST, [pretend]),
    ]
    for table, answer in ((REFUSED, refuse), (ABSENT, pretend)):
        for numbers in table.values():
            lines += _if(EQUAL, numbers[machine], [answer])
    process = os.getpid()
    checked: list[tuple[tuple[int, int], list[bytes]]] = [
        (CLONE, [_line(LOAD, ARGUMENTS), *_if(ANY_BIT, NAMESPACES, [refuse]), allow]),
        (OPEN, [_line(LOAD, ARGUMENTS + 8), *_truncates(refuse), allow]),
        (OPENAT, [_line(LOAD, ARGUMENTS + 16), *_truncates(refuse), allow]),
        (IOCTL, [_line(LOAD, ARGUMENTS + 8), *_among(TERMINAL_CALLS, allow), refuse]),
    ]
    for table, own in ((OWN_PROCESS_ONLY, (process,)), (OWN_OR_ZERO, (process, 0))):
        for numbers in table.values():
            checked.append((numbers, [_line(LOAD, ARGUMENTS), *_among(own, allow), refuse]))
    for numbers, body in checked:
        lines += _if(EQUAL, numbers[machine], body)
    return [*lines, allow]


def _truncates(refuse: bytes) -> list[bytes]:
    """Refuse to truncate a file on opening it for reading, which early Landlock does not cover."""
    flags = os.O_TRUNC | os.O_ACCMODE
    return [_line(AND, flags), *_if(EQUAL, os.O_TRUNC | os.O_RDONLY, [refuse])]


def _among(values: tuple[int, ...], answer: bytes) -> list[bytes]:
    return [line for value in values for line in _if(EQUAL, value, [answer])]


def _if(test: int, value: int, body: list[bytes]) -> list[bytes]:
    """Run a body, which ends with a verdict, if a test holds."""
    if value == NONE:
        return []
    return [_line(test, value, 0, len(body)), *body]


def _unless(test: int, value: int, body: list[bytes]) -> list[bytes]:
    return [_line(test, value, len(body), 0), *body]


def _line(operation: int, value: int, then: int = 0, other: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, then, other, value & 0xFFFFFFFF)
