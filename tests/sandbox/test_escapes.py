"""Hostile code finds every way out closed: each attempt was possible in some configuration that was tried before."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyseccomp
import pytest

from tests.sandbox.inside import Inside, processes_with
from worker.sandbox.interpreters import runtime_of
from worker.sandbox.model import Mode, Status
from worker.sandbox.seccomp import FALLBACK_NUMBERS

REPOSITORY = Path(__file__).parents[2]


def system_call(name: str) -> int:
    number = pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)
    return FALLBACK_NUMBERS[name] if number == -1 else number


# -- what it can see -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/passwd", "/etc/hostname", "/sys", "/var", "/run", "/boot"])
def test_files_of_the_host_are_not_there(confined: Inside, path: str) -> None:
    assert confined.run(f"say(refusal(lambda: os.stat({path!r})))").answer == "ENOENT"


def test_home_and_checkout_show_nothing_but_the_way_to_the_interpreter(confined: Inside) -> None:
    code = "say({path: sorted(os.listdir(path)) if os.path.exists(path) else [] for path in sys.argv[1:]})"
    places = {str(Path.home()), str(REPOSITORY), str(REPOSITORY.parent), "/tmp"}
    shown = runtime_of(Path(sys.executable)).visible
    seen = confined.run(code, *places).answer
    for place in places:
        leading = {path.relative_to(place).parts[0] for path in shown if path.is_relative_to(place)}
        assert set(seen[place]) <= leading


def test_our_own_packages_are_not_importable_beside_submitted_code(confined: Inside) -> None:
    code = """
found = []
for name in ("services", "worker", "api", "analyzer"):
    try:
        __import__(name)
        found.append(name)
    except ImportError:
        pass
say(found)
"""
    assert confined.run(code, site=True).answer == []


def test_the_environment_holds_nothing_of_the_worker(confined: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADPROOF_SECRET_KEY", "the worker's secret")
    code = """
text = json.dumps(dict(os.environ))
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        text += open(f"/proc/{pid}/environ", errors="replace").read()
    except OSError:
        pass
say("the worker's secret" in text or "GRADPROOF_SECRET_KEY" in text)
"""
    assert confined.run(code).answer is False


def test_the_environment_of_the_first_process_is_empty_or_closed(confined: Inside) -> None:
    code = """
try:
    say(open("/proc/1/environ").read())
except OSError as error:
    say(errno.errorcode[error.errno])
"""
    assert confined.run(code).answer == ("EACCES" if confined.launcher.mode is Mode.ROOT else "")


def test_no_process_of_the_host_is_visible(confined: Inside) -> None:
    pids = confined.run("say(sorted(int(name) for name in os.listdir('/proc') if name.isdecimal()))").answer
    assert len(pids) <= 3
    assert max(pids) < 20


def test_it_inherits_no_descriptor_but_the_result_pipe(confined: Inside) -> None:
    code = """
extra = {}
for descriptor in map(int, os.listdir("/proc/self/fd")):
    try:
        extra[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        pass
say([sorted(number for number in extra if number > 2), RESULT, extra[0]])
"""
    above, result, standard_input = confined.run(code).answer
    assert above == [result]
    assert standard_input == "/dev/null"


def test_it_has_no_capability_and_can_gain_none(confined: Inside) -> None:
    status = confined.run("say(dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines()))")
    fields = {name: value.strip() for name, value in status.answer.items()}
    assert {
        name: int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    } == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0)
    assert (fields["NoNewPrivs"], fields["Seccomp"], fields["Groups"]) == ("1", "2", "")
    assert "0" not in fields["Uid"].split()


# -- network ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tcp_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_no_server_of_the_host_answers_on_loopback(confined: Inside, tcp_port: int) -> None:
    code = f"say(refusal(lambda: socket.create_connection(('127.0.0.1', {tcp_port}), 2)))"
    assert confined.run(code).answer == "ECONNREFUSED"


def test_no_address_outside_can_be_reached(confined: Inside) -> None:
    code = """
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
say([refusal(lambda: socket.create_connection(("1.1.1.1", 443), 2)),
     refusal(lambda: datagram.sendto(b"x", ("1.1.1.1", 53)))])
"""
    assert confined.run(code).answer == ["ENETUNREACH", "ENETUNREACH"]


def test_no_name_resolves(confined: Inside) -> None:
    code = """
try:
    say(socket.getaddrinfo("example.org", 443))
except socket.gaierror:
    say("no name")
"""
    assert confined.run(code).answer == "no name"


def test_sockets_of_the_host_in_the_file_system_and_in_the_abstract_are_out_of_reach(
    confined: Inside, tmp_path: Path
) -> None:
    abstract = f"\0{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as in_a_file, socket.socket(socket.AF_UNIX) as in_the_abstract:
        in_a_file.bind(str(tmp_path / "s"))
        in_the_abstract.bind(abstract)
        in_a_file.listen()
        in_the_abstract.listen()
        code = f"""
say([refusal(lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / "s")!r})),
     refusal(lambda: socket.socket(socket.AF_UNIX).connect({abstract!r}))])
"""
        assert confined.run(code).answer == ["ENOENT", "ECONNREFUSED"]


@pytest.mark.parametrize(
    "family", [17, 38, 40, 16 + 2**32], ids=["AF_PACKET", "AF_ALG", "AF_VSOCK", "a family with a high bit"]
)
def test_socket_families_that_no_network_namespace_confines_are_refused(confined: Inside, family: int) -> None:
    code = f"say(refusal(lambda: syscall({system_call('socket')}, {family}, 1, 0)))"
    assert confined.run(code).answer == "EPERM"


# -- writing ---------------------------------------------------------------------------------------------------------


def test_nothing_but_the_bounded_places_can_be_written(confined: Inside) -> None:
    code = """
def write(directory):
    with open(os.path.join(directory, "evil"), "w") as file:
        file.write("x")
say({directory: refusal(lambda: write(directory)) for directory in sys.argv[1:]})
"""
    read_only = ["/", "/usr", "/usr/bin", "/etc", "/dev", sys.prefix, sys.base_prefix, str(Path.home())]
    writable = ["/tmp", "/job", "/dev/shm"]
    answers = confined.run(code, *read_only, *writable).answer
    assert {directory: answers[directory] for directory in writable} == dict.fromkeys(writable, "done")
    assert {answers[directory] for directory in read_only} <= {"EROFS", "ENOENT", "EACCES"}


def test_kernel_settings_can_not_be_written(confined: Inside) -> None:
    code = """
def write(path):
    with open(path, "w") as file:
        file.write("x")
say([refusal(lambda: write(path)) for path in sys.argv[1:]])
"""
    paths = [f"/proc/sys/{name}" for name in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory")]
    answers = confined.run(code, *paths, "/proc/sysrq-trigger").answer
    assert set(answers) <= {"EROFS", "EACCES", "ENOENT"}


def test_the_request_can_be_neither_changed_nor_replaced(confined: Inside) -> None:
    code = """
open("/job/other", "w").close()
say([refusal(lambda: open("/job/request.json", "w")), refusal(lambda: os.unlink("/job/request.json")),
     refusal(lambda: os.rename("/job/other", "/job/request.json")), open("/job/request.json").read()])
"""
    *refusals, text = confined.run(code, request=b"what was asked").answer
    assert "done" not in refusals
    assert text == "what was asked"


def test_a_link_left_behind_leads_nowhere(confined: Inside) -> None:
    code = """
os.symlink("/etc/shadow", "/job/evil")
say(refusal(lambda: open("/job/evil")))
"""
    ran = confined.run(code)
    assert ran.answer == "ENOENT"
    assert ran.outcome.status is Status.EXITED


@pytest.mark.parametrize(("place", "limit"), [("/tmp", "tmp"), ("/job", "job"), ("/dev/shm", "shared_memory")])
def test_a_temporary_place_is_full_at_its_limit(confined: Inside, place: str, limit: str) -> None:
    code = f"""
written = 0
def fill():
    global written
    with open({place!r} + "/fill", "wb", buffering=0) as file:
        while True:
            written += file.write(bytes(65536))
say([refusal(fill), written])
"""
    refused, written = confined.run(code, **{limit: 3 * 2**20}).answer
    assert refused == "ENOSPC"
    assert 2 * 2**20 < written <= 3 * 2**20


# -- other processes, other rights -----------------------------------------------------------------------------------


def test_signals_reach_nobody_outside(confined: Inside) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        code = """
say([refusal(lambda: os.kill(os.getppid(), 9)), refusal(lambda: os.kill(1, 9)), refusal(lambda: os.kill(-1, 9))])
say("still here")
"""
        answers, after = confined.run(code).said
        assert after == "still here"
        if confined.launcher.mode is Mode.ROOT:
            assert answers[:2] == ["EPERM", "EPERM"]
        assert bystander.poll() is None
        bystander.kill()


def test_no_other_user_can_be_become(confined: Inside) -> None:
    code = """
import subprocess
def su():
    return subprocess.run(["su", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode
say([refusal(lambda: os.setuid(0)), refusal(lambda: os.setgid(0)), refusal(lambda: os.setgroups([0])), su() != 0])
"""
    *refusals, su_failed = confined.run(code).answer
    assert set(refusals) <= {"EPERM", "EINVAL"}
    assert su_failed


KERNEL_WAYS = {
    "mount": (0, 0, 0, 0, 0),
    "umount2": (0, 0),
    "unshare": (0x10000000,),  # CLONE_NEWUSER
    "setns": (0, 0),
    "pivot_root": (0, 0),
    "chroot": (0,),
    "open_tree": (0, 0, 0),
    "fsopen": (0, 0),
    "bpf": (0, 0, 0),
    "io_uring_setup": (1, 0),
    "perf_event_open": (0, 0, 0, 0, 0),
    "userfaultfd": (0,),
    "keyctl": (0, 0, 0),
    "add_key": (0, 0, 0, 0, 0),
    "request_key": (0, 0, 0, 0),
    "ptrace": (16, 1, 0, 0),  # PTRACE_ATTACH to the first process
    "process_vm_readv": (1, 0, 0, 0, 0, 0),
    "process_vm_writev": (1, 0, 0, 0, 0, 0),
    "pidfd_getfd": (0, 0, 0),
    "kcmp": (1, 1, 0, 0, 0),
    "open_by_handle_at": (0, 0, 0),
    "kexec_load": (0, 0, 0, 0),
    "init_module": (0, 0, 0),
    "finit_module": (0, 0, 0),
    "reboot": (0, 0, 0, 0),
    "sethostname": (0, 0),
    "settimeofday": (0, 0),
    "syslog": (0, 0, 0),
    "quotactl_fd": (0, 0, 0, 0),
    "open_tree_attr": (0, 0, 0, 0, 0),
}


def test_the_kernel_refuses_what_the_filter_names(confined: Inside) -> None:
    code = """
calls = json.loads(sys.argv[1])
say({name: refusal(lambda: syscall(number, *words)) for name, (number, words) in calls.items()})
"""
    calls = {name: (system_call(name), words) for name, words in KERNEL_WAYS.items()}
    answers = confined.run(code, json.dumps(calls)).answer
    assert answers == dict.fromkeys(KERNEL_WAYS, "EPERM")


def test_no_namespace_can_be_made_by_any_variant_of_clone(confined: Inside) -> None:
    code = f"""
flags = [0x00020000, 0x10000000, 0x20000000, 0x40000000, 0x10000000 | 17]
say([*(refusal(lambda: syscall({system_call("clone")}, flag, 0, 0, 0, 0)) for flag in flags),
     refusal(lambda: syscall({system_call("clone3")}, 0, 0))])
"""
    assert confined.run(code).answer == ["EPERM"] * 5 + ["ENOSYS"]


def test_terminal_input_can_not_be_forged_even_with_high_bits_set(confined: Inside) -> None:
    code = f"""
say([refusal(lambda: syscall({system_call("ioctl")}, 0, request, 0)) for request in (0x5412, 0x541C, 2**32 + 0x5412)])
"""
    assert confined.run(code).answer == ["EPERM"] * 3


def test_the_signal_that_ties_a_job_to_its_worker_can_not_be_changed(confined: Inside) -> None:
    """In mode U the first process is open to the payload, but is under the same filter."""
    code = f"""
signal_now = ctypes.c_int(-1)
syscall({system_call("prctl")}, 1, 15)
syscall({system_call("prctl")}, 2**32 + 1, 15)
syscall({system_call("prctl")}, 2, ctypes.byref(signal_now))
filtered = [line for line in open("/proc/1/status") if line.startswith("Seccomp:")]
say([signal_now.value, filtered[0].split()[1]])
"""
    signal_now, filtered = confined.run(code).answer
    assert signal_now != 15
    assert filtered == "2"


FOREIGN_CALLS = {"x86_64": [0x40000000 + 39]}.get(platform.machine(), [])  # getpid by the numbers of x32


@pytest.mark.parametrize("number", FOREIGN_CALLS)
def test_system_calls_by_the_numbers_of_another_architecture_kill(confined: Inside, number: int) -> None:
    outcome = confined.run(f"syscall({number})").outcome
    assert (outcome.status, outcome.signal) == (Status.SIGNALLED, 31)  # SIGSYS


# -- exhausting ------------------------------------------------------------------------------------------------------


def test_a_fork_bomb_stops_at_the_process_limit(confined: Inside) -> None:
    code = """
children = 0
def fork():
    global children
    while True:
        if os.fork() == 0:
            import signal
            signal.pause()
            os._exit(0)
        children += 1
say([refusal(fork), children])
"""
    refused, children = confined.run(code, processes=32).answer
    assert refused == "EAGAIN"
    assert 20 <= children <= 32


def test_memory_beyond_the_limit_kills_and_is_told_apart(confined: Inside) -> None:
    ran = confined.run("held = [bytearray(b'x' * 2**20) for _ in range(30 * 2**10)]", memory=64 * 2**20)
    assert (ran.outcome.status, ran.outcome.oom_kills >= 1) == (Status.OUT_OF_MEMORY, True)
    assert ran.outcome.peak_memory is not None
    assert ran.outcome.peak_memory <= 64 * 2**20


def test_thirty_gigabytes_by_torch_end_at_the_limit(confined: Inside) -> None:
    code = "import torch\nsay('torch')\nheld = [torch.ones(2**25) for _ in range(30 * 8)]"
    ran = confined.run(code, site=True, memory=700 * 2**20, wall_s=60.0)
    assert ran.answer == "torch", ran.outcome
    assert ran.outcome.status is Status.OUT_OF_MEMORY


def test_an_endless_loop_ends_at_the_wall_clock(confined: Inside) -> None:
    outcome = confined.run("while True: pass", wall_s=0.3).outcome
    assert (outcome.status, outcome.exit_code, outcome.signal) == (Status.TIMED_OUT, None, None)
    assert "0.3 s" in outcome.detail


def test_a_daemon_dies_with_its_job(confined: Inside) -> None:
    token = uuid.uuid4().hex
    code = """
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        os.close(2)
        os.write(writer, b"x")
        while True:
            pass
    os._exit(0)
os.wait()
os.read(reader, 1)
say("daemon runs")
"""
    ran = confined.run(code, token)
    assert (ran.answer, ran.outcome.status) == ("daemon runs", Status.EXITED)
    assert processes_with(token) == {}


def test_endless_printing_is_cut_and_killed(confined: Inside) -> None:
    outcome = confined.run("while True: print('x' * 1000)").outcome
    assert outcome.status is Status.OUTPUT_LIMIT
    assert outcome.detail == "more than 65536 bytes were printed"
    assert len(outcome.stdout_tail) <= 16 * 1024


def test_a_flood_of_results_is_cut_and_killed(confined: Inside) -> None:
    ran = confined.run("while True: say('x' * 1000)")
    assert ran.outcome.status is Status.OUTPUT_LIMIT
    assert ran.outcome.detail == "more than 262144 bytes of results"
    assert sum(len(line) + 1 for line in ran.lines) <= 262144


def test_one_huge_result_line_is_never_passed_on(confined: Inside) -> None:
    ran = confined.run("say('small')\nsay('x' * 100_000)")
    assert ran.outcome.status is Status.OUTPUT_LIMIT
    assert ran.outcome.detail == "a result line of more than 65536 bytes"
    assert ran.said == ["small"]


def test_the_payload_is_neither_root_nor_the_user_who_runs_the_worker(confined: Inside) -> None:
    uid = confined.run("say(os.getuid())").answer
    assert uid == 65534 if confined.launcher.mode is Mode.USER else uid >= 200_000
