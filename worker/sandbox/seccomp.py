"""The system calls that submitted code is refused, compiled to BPF for `bwrap --seccomp FD`.

A list of refusals on top of everything else: the namespaces, the dropped capabilities and the missing network stand
without it, and it takes away what the kernel offers to any process all the same (io_uring, keyrings, namespaces,
sockets that no network namespace confines). It must let torch, its compilers and ordinary Python work.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import IO, Any, Final

# By name, refused with EPERM. Names that the installed libseccomp (2.5.4 in Debian 12) does not know fall back to
# FALLBACK_NUMBERS: from 424 on, every architecture numbers its system calls alike.
REFUSED: Final = (
    # the file system seen from inside stays as it was built
    "mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen",
    "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount", "name_to_handle_at",
    "open_by_handle_at", "fanotify_init", "quotactl", "quotactl_fd", "swapon", "swapoff", "uselib",
    # no new namespace, and none of anybody else
    "unshare", "setns",
    # parts of the kernel that have been the way out before
    "bpf", "perf_event_open", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "add_key",
    "request_key", "keyctl", "modify_ldt", "vm86", "vm86old", "lookup_dcookie", "nfsservctl", "acct",
    # other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "move_pages",
    "migrate_pages",
    # the machine itself
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module",
    "query_module", "get_kernel_syms", "reboot", "syslog", "settimeofday", "clock_settime", "clock_settime64",
    "clock_adjtime", "clock_adjtime64", "adjtimex", "stime", "sethostname", "setdomainname", "iopl", "ioperm",
    "vhangup",
)  # fmt: skip

FALLBACK_NUMBERS: Final = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "statmount": 457,
    "listmount": 458,
    "open_tree_attr": 467,
}

# linux/sched.h: CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NAMESPACE_FLAGS: Final = (
    0x00000080,
    0x00020000,
    0x02000000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)

# linux/tty.h: putting characters into a terminal's input, by either way
TERMINAL_INJECTION: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

# linux/prctl.h. Done by nobody and reported as done: in mode U a payload can write into the memory of bwrap's first
# process (same uid, /proc/1/mem) and could make it forget that it dies with its worker. Refusing with an error would
# break torch.multiprocessing, which asks for this signal in each child; in a sandbox all die together anyway.
SET_PARENT_DEATH_SIGNAL: Final = 1

# AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK (getifaddrs) are confined by the network namespace. The others are refused:
# AF_VSOCK (40) reaches the host of a virtual machine from any network namespace, AF_ALG (38) is kernel cryptography.
SOCKET_FAMILIES: Final = frozenset({1, 2, 10, 16})
_FIRST_FAMILY_ABOVE: Final = max(SOCKET_FAMILIES) + 1

_LOW_HALF: Final = 0xFFFFFFFF


class SeccompUnavailableError(Exception):
    """libseccomp is not there; the message says how to get it."""


def _library() -> Any:
    try:
        import pyseccomp  # noqa: PLC0415 - it loads libseccomp at import, which a machine may lack
    except (ImportError, OSError, RuntimeError) as error:
        raise SeccompUnavailableError(
            f"libseccomp can't be loaded ({error}); on Debian: apt-get install libseccomp2"
        ) from error
    return pyseccomp


@functools.lru_cache(maxsize=1)
def filter_program() -> bytes:
    """The filter as a BPF program. Raises SeccompUnavailableError."""
    library = _library()
    refuse = library.ERRNO(errno.EPERM)
    # An architecture or x32 call that the filter was not compiled for kills the process: libseccomp's default.
    rules = library.SyscallFilter(library.ALLOW)
    for name in REFUSED:
        _refuse_by_name(library, rules, refuse, name)
    # glibc falls back to clone(2), whose flags a filter can read; clone3's lie behind a pointer.
    rules.add_rule(library.ERRNO(errno.ENOSYS), "clone3")
    for flag in NAMESPACE_FLAGS:
        rules.add_rule(refuse, "clone", library.Arg(0, library.MASKED_EQ, flag, flag))
    for request in TERMINAL_INJECTION:
        # The kernel reads the low 32 bits only: comparing all 64 could be got around by setting a high one.
        rules.add_rule(refuse, "ioctl", library.Arg(1, library.MASKED_EQ, _LOW_HALF, request))
    rules.add_rule(library.ERRNO(0), "prctl", library.Arg(0, library.MASKED_EQ, _LOW_HALF, SET_PARENT_DEATH_SIGNAL))
    for call in ("socket", "socketpair"):
        # A family with high bits set is above every allowed one, so all 64 bits may be compared here.
        rules.add_rule(refuse, call, library.Arg(0, library.GE, _FIRST_FAMILY_ABOVE))
        for family in range(_FIRST_FAMILY_ABOVE):
            if family not in SOCKET_FAMILIES:
                rules.add_rule(refuse, call, library.Arg(0, library.EQ, family))
    return _export(rules)


def _refuse_by_name(library: Any, rules: Any, refuse: Any, name: str) -> None:
    """Refuse `name`; a call that this architecture does not have at all needs no rule."""
    # -1: libseccomp does not know the name; below -1: the name belongs to another architecture.
    number = library.resolve_syscall(library.system_arch(), name)
    if number == -1:
        number = FALLBACK_NUMBERS.get(name, -1)
    if number >= 0:
        rules.add_rule(refuse, number)


def _export(rules: Any) -> bytes:
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w+b") as file:
        _write_program(rules, file)
        file.seek(0)
        return file.read()


def _write_program(rules: Any, file: IO[bytes]) -> None:
    rules.export_bpf(file)
    file.flush()
