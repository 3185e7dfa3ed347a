"""The scripts of failing checks show the failure with torch and the repository alone, and nothing once it is mended."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gradproof_probe.checks import ALL_CHECKS
from gradproof_probe.lines import REPRO

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

FLAT = "torch.randn(3, 4)"
SEQUENCE = "torch.randn(2, 6, 8)"
PADDED = (SEQUENCE, "torch.tensor([[False] * 6, [False] * 4 + [True] * 2])")
NET, SGD = "net := make_net()", "optimizer := torch.optim.SGD(net.parameters(), lr=0.1)"
DATA = ("torch.randn(6, 4)", "3 * torch.randn(6, 1)")
STEP = (NET, SGD, *DATA)
BATCHES = "[(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(4)]"


@dataclass(frozen=True)
class Case:
    """A faulty target of a fixture. `right` is its mended counterpart there, or `mended` the change that mends it."""

    check: str
    target: str
    inputs: tuple[str, ...] = (FLAT,)
    right: str = ""
    mended: tuple[str, str] = ("", "")

    @property
    def job(self) -> str:
        return f"{self.check} {self.target}"

    @property
    def name(self) -> str:
        return self.target.partition(":")[2]


CASES = (
    Case("eval_side_effects", "evaluated:PlainDropout", right="RightDropout"),
    Case("eval_side_effects", "evaluated:ResetsGenerator", right="ForksGenerator"),
    Case(
        "eval_side_effects",
        "evaluated:MovesStatistics",
        mended=("self.running_mean.lerp_", "self.training and self.running_mean.lerp_"),
    ),
    Case(
        "state_dict",
        "kept_state:LayersInList",
        mended=("[nn.Linear(4, 4), nn.Linear(4, 4)]", "nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])"),
    ),
    Case(
        "state_dict",
        "kept_state:OnesThatAreTrained",
        mended=("torch.ones(4, requires_grad=True)", "nn.Parameter(torch.ones(4))"),
    ),
    Case("state_dict", "kept_state:CountedWarmup", mended=("* self.steps / 10", "")),
    Case("gradient_flow", "flowing:FloatStrength", mended=("float(self.strength)", "self.strength")),
    Case("gradient_flow", "flowing:SpoilingHook", ("torch.randn(4, 3)",), right="CopyingHook"),
    Case("batch_consistency", "batched:StateViewed", ("torch.randn(2, 6, 4)",), right="StateTransposed"),
    Case("batch_consistency", "batched:CausalConvolutionCentred", ("torch.randn(2, 4, 9)",), right="CausalConvolution"),
    Case("batch_consistency", "batched:AveragesPadding", PADDED, right="AveragesTheRest"),
    Case("training_step", "training_steps:clipped_after_step_seldom", STEP, right="clipped"),
    Case("training_step", "training_steps:epoch_cleared_each_time", (NET, SGD, BATCHES), right="epoch"),
    Case(
        "training_step",
        "training_steps:epoch_never_cleared",
        (NET, SGD, f"(item for item in {BATCHES})"),
        right="epoch",
    ),
    Case(
        "training_step",
        "training_steps:mixed_clipped_scaled",
        (NET, SGD, "torch.amp.GradScaler()", *DATA),
        right="mixed",
    ),
    Case(
        "training_step",
        "training_steps:scheduled_first",
        (NET, SGD, "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)", *DATA),
        right="scheduled",
    ),
    Case("training_step", "training_steps:with_freed_memory", ("Holder()", *STEP), right="with_detached_memory"),
    Case("checkpoint_equivalence", "checkpointed:OtherMasks", ("torch.randn(4, 8)",), right="KeptMasks"),
    Case("checkpoint_equivalence", "checkpointed:NormInside", ("torch.randn(4, 8)",), right="NormOutside"),
    Case("accumulation_equivalence", "accumulating:undivided", ("*with_loader()",), right="divided"),
    Case("accumulation_equivalence", "accumulating:twice_divided", ("*with_loader()",), right="divided"),
    Case("memory", "keeping:RunningMean", ("torch.randn(6, 4)",), right="DetachedMean"),
    Case("memory", "keeping:Gate", ("torch.randn(6, 4)",), mended=("OwnOutput.apply", "SavedOutput.apply")),
    Case("hvp", "curved:Wrong", ("torch.randn(4, 3)",), right="Right"),
    Case("autocast", "autocasting:FilledMask", ("torch.randn(6, 8)",), right="FittingMask"),
    Case("export_equivalence", "recorded.traced:Branching", right="Selecting"),
    Case("ddp_consistency", "several_ranks:synchronise_gradients", ("model := make_net()",), right="average_gradients"),
    Case("compile_equivalence", "compiled:Compiling", mended=("2.0 if torch.compiler.is_compiling() else 1.0", "2.0")),
    Case("compile_equivalence", "compiled:Cached", mended=("y = y * counted()", "y = y * 2")),
    Case("device_compare", "placed:PlainAttribute", ("torch.randn(3, 8)",), right="Buffer"),
    Case("device_compare", "placed:Factory", ("torch.randn(3, 8)",), right="FactoryMoved"),
)
# The scripts of one run share an import of torch: each is a forked process, begun before anything ran.
RUNNER = """
import json, os, runpy, sys
import numpy, torch, torch.utils.checkpoint
import torch._dynamo, torch._functorch.aot_autograd, torch._subclasses.fake_tensor
for script, root, out in json.loads(sys.stdin.read()):
    child = os.fork()
    if child == 0:
        stream = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.argv = [script, root]
        try:
            runpy.run_path(script, run_name="__main__")
            status = 0
        except SystemExit as error:
            status = int(error.code or 0)
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Shown:
    status: int
    output: str


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    def kind(case: Case) -> str:
        return "module" if case.name[0].isupper() else "function"

    batch = [
        entry(
            kind(case),
            case.target,
            checks=[case.check],
            inputs=case.inputs,
            constructor=f"{case.name}()" if kind(case) == "module" else None,
            job=case.job,
        )
        for case in CASES
    ]
    return speak(FIXTURES, batch)


def script_of(spoken: Spoken, case: Case) -> str:
    result = spoken.result(case.job, case.check)
    assert result["verdict"] == "fail", result
    script = result["repro"]
    assert isinstance(script, str), result["diagnosis"]
    return script


@pytest.fixture(scope="module")
def shown(spoken: Spoken, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Shown]:
    """What each script says of the faulty target, and of the mended one."""
    folder = tmp_path_factory.mktemp("scripts")
    jobs: list[tuple[str, bool, Path, Path, Path]] = []
    for number, case in enumerate(CASES):
        found = [line["result"]["repro"] for line in spoken.of(case.job, "check")]
        for is_mended in (False, True) if found and found[0] else ():
            script, root = found[0], FIXTURES
            if is_mended and case.right:
                script = script.replace(case.name, case.right)
            elif is_mended:
                root = mended_copy(case, folder / f"{number}")
            path = folder / f"{number}{is_mended}.py"
            path.write_text(script, encoding="utf-8")
            jobs.append((case.job, is_mended, path, root, path.with_suffix(".txt")))
    lines = json.dumps([[str(path), str(root), str(out)] for _, _, path, root, out in jobs])
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER], input=lines, capture_output=True, text=True, cwd=folder, check=True
    )
    return {
        (job, is_mended): Shown(int(status), out.read_text(encoding="utf-8"))
        for (job, is_mended, _, _, out), status in zip(jobs, done.stdout.split(), strict=True)
    }


def mended_copy(case: Case, root: Path) -> Path:
    """A source with the fixture of the case, changed within the target."""
    name = f"{case.target.partition(':')[0]}.py"
    shutil.copytree(FIXTURES, root, ignore=lambda _, names: [item for item in names if item != name])
    text = (root / name).read_text(encoding="utf-8")
    before, _, after = text.partition(f"class {case.name}(")
    assert case.mended[0] in after
    (root / name).write_text(f"{before}class {case.name}({after.replace(*case.mended, 1)}", encoding="utf-8")
    return root


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.job)
def test_the_failure_shows_and_is_two_numbers_apart(spoken: Spoken, shown: Any, case: Case) -> None:
    script_of(spoken, case)
    found = shown[case.job, False]
    assert found.status == 1, found.output
    said = dict(line.strip().split(":", 1) for line in found.output.splitlines() if line.startswith("  "))
    assert said["expected"].strip() != said["got"].strip()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.job)
def test_nothing_shows_once_the_code_is_mended(shown: Any, case: Case) -> None:
    found = shown[case.job, True]
    assert found.status == 0, found.output


def test_a_script_needs_torch_and_the_repository_alone_and_is_short(spoken: Spoken) -> None:
    for case in CASES:
        script = script_of(spoken, case)
        assert "gradproof" not in script.lower()
        assert len(script) < REPRO / 2


def test_each_check_that_compares_ways_of_running_has_a_script() -> None:
    judged = {check.name for check in ALL_CHECKS} - {"portrait", "finding_search", "nan_gradient"}
    assert judged - {case.check for case in CASES} == {"gradcheck", "gradgradcheck"}


def test_what_can_not_run_ends_with_another_status(spoken: Spoken, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(script_of(spoken, CASES[0]), encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", str(script), str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 2
