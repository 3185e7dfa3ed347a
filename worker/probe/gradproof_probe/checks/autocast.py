"""Does the target hold under autocast: no error, no infinity, no more error than rounding makes?"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.checks.gradcheck import argument_names
from gradproof_probe.equivalence.observation import Mode, Observation, observe
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.training.autocasting import (
    DTYPES,
    HalfResults,
    Raised,
    Row,
    Subject,
    error_rows,
    fits,
    lost,
    reference,
    relative,
    rounded,
    traced,
    tried,
    under_autocast,
)
from gradproof_probe.training.careful_products import CarefulProducts
from gradproof_probe.training.cuda_autocast import cuda_lists
from gradproof_probe.training.custom_functions import Decorated, decorated_at
from gradproof_probe.training.half_singularities import Singular, ordinary, search
from gradproof_probe.training.mentions import mentions

# How far it may be from full precision: ten times what rounding alone costs, and more than a dozen roundings that may
# add up. Of 230 targets measured with float32 inputs, one was beyond.
RATIO: Final = 10.0
FROM: Final = {torch.bfloat16: 0.12, torch.float16: 0.05}
# What float32 itself gets wrong by more than this is no subject for half precision.
PLAIN: Final = 1e-3
_REENTRANT: Final = "use_reentrant=True, torch.utils.checkpoint is incompatible with .grad()"
SMALL_LOSS: Final = 2.0**-12
# CPU seconds of one forward and backward in float32 from which only what can fail is looked for: inputs that are half
# already are reported, not judged, and rows of zeros are never more than `inconclusive`. Together half of the time.
LONG: Final = 0.1
MIXED_PRECISION: Final = r"autocast|GradScaler|custom_fwd|custom_bwd|\.half\(|float16|mixed_precision"


@dataclass(frozen=True, slots=True)
class _Fault:
    cause: str
    text: str
    place: Place | None
    numbers: dict[str, Any]
    sure: bool = True


class Autocast(Check):
    name: ClassVar[str] = "autocast"
    cost: ClassVar[float] = 45.0
    fixed_s: ClassVar[float] = 0.1
    documentation: ClassVar[Documentation] = Documentation(
        summary="Runs the target under autocast in bfloat16 and float16 and compares with full precision.",
        what_it_does=(
            "Forward runs under autocast and backward outside of it, as in training, with float32 parameters and "
            "inputs, and once more with inputs that are half already, as a layer in front leaves them. The casts are "
            "those that autocast has on CUDA (norms, sums, exponentials and softmax in float32), whatever the "
            "machine, and code that asks for `cuda` is answered for it. Outputs and gradients are compared with a "
            "float64 run. Then inputs that data sets hold (rows of zeros, equal rows, constant rows) are tried in "
            "float16, without the casts that only CUDA has. Where a forward and backward takes over 0.1 s, these and "
            "inputs that are half already are left out."
        ),
        how_it_decides=(
            "The yardstick is a run in which the result of every operation is rounded to the narrow type's digits. "
            "`fail` is an error that autocast alone raises at a submitted line and that is about types or about a "
            "number that float16 can't hold; a value or gradient that is finite and fits, but not under autocast; "
            "and an error of more than 10 times the yardstick's (and of more than 12 % in bfloat16, 5 % in float16), "
            "each with other parameters and inputs as well, and where products are computed in float32 and rounded "
            "(else this machine's half kernels are wrong: `inconclusive`). Gradients in float16 are not measured, "
            "since training scales the loss there. An eps that float16 can't hold, shown by a row of zeros or of equal "
            "values, is `inconclusive`: whether such rows come in half precision is not known. A custom Function that "
            "says nothing of autocast, in a source that never speaks of mixed precision, is `inconclusive` where it "
            "can't "
            "be used under it. Inputs that are half already are reported only. Where autocast casts nothing, the "
            "check is `skipped`."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.resolved.target.kind == "function" and context.recipe.reason == "no differentiable output":
            return CheckResult("skipped", "no output depends differentiably on an input")
        try:
            run = _Run(context)
            with cuda_lists():
                ended = run.compare()
            return ended or run.result()
        except ExpressionError as error:
            return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")


class _Run:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._subject = Subject(context.resolved, context.recipe, context.source_root, context.seed)
        self._evidence: dict[str, Any] = {}
        self._mode: Mode = "train"
        self._rows: list[Row] = []
        self._steps: list[str] = []
        self._drawn: list[str] = []
        self._faults: list[_Fault] = []
        self._cast = 0
        self._long = False

    def compare(self) -> CheckResult | None:
        """Ordinary inputs, in both types; the result if there is nothing to compare."""
        try:
            self._drawn = self._choose_mode()
            begun = time.process_time()
            plain = self._plain(self._subject)
            self._long = time.process_time() - begun > LONG
            wide, precise = reference(self._subject, self._mode)
        except ExpressionError:
            raise
        except Exception as error:
            said = f"without autocast it raises {describe_error(error)}"
            # Only the way in which gradients are asked for here is refused.
            return CheckResult("skipped" if _REENTRANT in str(error) else "error", said, evidence=self._evidence)
        if not any(value.is_floating_point() for name, value in wide.values.items() if name.startswith("output")):
            return CheckResult("skipped", "no output is a floating tensor")
        self._evidence["reference"] = str(precise).removeprefix("torch.")
        for dtype in DTYPES:
            if not self._more():
                text = f"time ran out before {str(dtype).removeprefix('torch.')}"
                return None if self._faults else CheckResult("inconclusive", text, evidence=self._evidence)
            yardstick = None if self._drawn else rounded(self._subject, self._mode, precise, dtype)
            self._faults += self._compare_in(dtype, plain, wide, yardstick)
            if self._more() and not self._long:
                self._note_half_inputs(wide, yardstick, dtype)
        self._evidence["errors"] = [row.to_wire() for row in self._rows]
        self._evidence["cast_results"] = self._cast
        return None

    def result(self) -> CheckResult:
        """With the casts of the CPU's own autocast, which keeps norms in float16 as a model cast to it does."""
        if self._long:
            self._evidence["left_out"] = "rows of zeros and inputs that are half already: one run takes too long"
        elif not self._faults and self._more():
            names = argument_names(self._context)
            singular = search(self._subject, self._mode, torch.float16, names, self._more, half_inputs=self._cast == 0)
            if singular is not None and self._cast:
                self._faults.append(_of_singular(singular))
            elif singular is not None:
                self._evidence.setdefault("half_inputs", {})["float16"] = _of_singular(singular).text
        return self._verdict()

    def _more(self) -> bool:
        return time.monotonic() < self._context.deadline

    def _verdict(self) -> CheckResult:
        for fault in sorted(self._faults, key=lambda item: not item.sure):
            answer = Answer(
                "fail" if fault.sure else "inconclusive", fault.cause, fault.text, fault.place, fault.numbers
            )
            return answer.result(self._context.resolved.target, self._evidence)
        if not self._rows and self._evidence.get("raised"):
            return CheckResult("inconclusive", "under autocast it can't run on this machine", evidence=self._evidence)
        if not self._cast:
            text = "there is nothing in it that autocast casts"
            said = self._evidence.get("half_inputs", {}).get("float16")
            return CheckResult("skipped", f"{text}; {said}" if said else text, evidence=self._evidence)
        if self._drawn:
            text = f"it draws random numbers in eval mode too ({', '.join(self._drawn)}): only errors were looked for"
            return CheckResult("inconclusive", text, evidence=self._evidence)
        if not any(row.given == "float32" and row.what == "output" for row in self._rows):
            text = "float32 itself is too far from float64 here to ask half precision for more"
            return CheckResult("inconclusive", text, evidence=self._evidence)
        return CheckResult("pass", self._passed(), evidence=self._evidence)

    def _passed(self) -> str:
        said = []
        for dtype in DTYPES:
            name = str(dtype).removeprefix("torch.")
            rows = [row for row in self._rows if row.dtype == name and row.given == "float32" and row.what == "output"]
            said += [f"{name}: outputs off by {row.error:.1e}, rounding alone {row.rounding:.1e}" for row in rows]
        return f"under autocast it is finite and as exact as the type allows ({'; '.join(said)})"

    # -- the runs

    def _choose_mode(self) -> list[str]:
        """Eval where train draws random numbers; what eval draws as well."""
        modes: tuple[Mode, ...] = ("train", "eval")
        for mode in modes:
            self._mode = mode
            found = traced(self._subject, mode)
            self._steps = found.steps
            if not found.random:
                break
        self._evidence["mode"] = self._mode
        return found.random

    def _plain(self, subject: Subject) -> Observation:
        return observe(subject.resolved, subject.recipe, seed=subject.seed, mode=self._mode)

    def _compare_in(
        self, dtype: torch.dtype, plain: Observation, wide: Observation, yardstick: Observation | None
    ) -> list[_Fault]:
        counter = HalfResults()
        narrow = tried(self._subject, self._mode, under_autocast(dtype, counter=counter))
        self._cast += counter.count
        if isinstance(narrow, Raised):
            return self._of_raised(narrow, dtype)
        trusted = _trusted(plain, wide)
        rows = error_rows(narrow, replace_values(wide, trusted), yardstick, dtype, "float32")
        self._rows += rows
        faults = []
        for row in rows:
            if row.not_finite:
                faults += self._of_not_finite(row, dtype)
            elif yardstick is not None and self._is_far(row, dtype):
                faults += self._of_far(row, dtype)
        return faults

    def _note_half_inputs(self, wide: Observation, yardstick: Observation | None, dtype: torch.dtype) -> None:
        narrow = tried(self._subject, self._mode, under_autocast(dtype, half_inputs=True))
        name = str(dtype).removeprefix("torch.")
        if isinstance(narrow, Raised):
            at = "" if narrow.place is None else f" ({narrow.place.path}:{narrow.place.line})"
            self._evidence.setdefault("half_inputs", {})[name] = f"it raises {narrow.text}{at}"
        else:
            self._rows += error_rows(narrow, wide, yardstick, dtype, name)

    # -- what each may mean

    def _of_raised(self, raised: Raised, dtype: torch.dtype) -> list[_Fault]:
        name = str(dtype).removeprefix("torch.")
        self._evidence.setdefault("raised", {})[name] = raised.text
        if raised.place is None or not raised.of_dtypes:
            return []  # torch has no such kernel on this machine
        found = decorated_at(raised.place, self._context.source_root)
        if found is not None:
            return [self._of_function(raised, found, name)]
        cause = "does_not_fit" if "overflow" in raised.text else "mixed_dtypes"
        advice = (
            "take the number from torch.finfo of the tensor's own dtype"
            if cause == "does_not_fit"
            else "what layers give is in half precision there, what factories and parameters give is not; bring the "
            "operands to one dtype"
        )
        text = f"under autocast to {name} this line raises {raised.text}: {advice}"
        return [_Fault(cause, text, raised.place, {"dtype": name})]

    def _of_function(self, raised: Raised, found: Decorated, name: str) -> _Fault:
        where = f"under autocast to {name} the custom Function `{found.name}` raises {raised.text}"
        numbers = {"dtype": name, "function": found.name}
        if found.forward != found.backward:
            missing = "custom_bwd on backward" if found.forward else "custom_fwd on forward"
            text = f"{where}: {missing} is missing, so the two run in different precisions"
            return _Fault("unpaired_custom_autocast", text, raised.place, numbers)
        if found.forward:
            return _Fault("mixed_dtypes", f"{where}, though both methods are decorated", raised.place, numbers)
        spoken = mentions(self._context.source_root, MIXED_PRECISION)
        text = (
            f"{where}: forward runs in mixed types there and backward outside of it; decorate forward with "
            "torch.amp.custom_fwd and backward with torch.amp.custom_bwd"
        )
        if spoken:
            numbers["mixed_precision_at"] = f"{spoken[0].path}:{spoken[0].line}"
        return _Fault("function_without_autocast", text, raised.place, numbers, sure=bool(spoken))

    def _of_not_finite(self, row: Row, dtype: torch.dtype) -> list[_Fault]:
        again = replace(self._subject, seed=self._subject.seed + 1)
        # What a smaller loss cures is no fault: training scales it, and a mean over many outputs does.
        scale = SMALL_LOSS if row.what == "gradient" else 1.0
        narrow = tried(again, self._mode, under_autocast(dtype, scale=scale))
        if isinstance(narrow, Raised):
            return []
        plain = self._plain(again)
        if row.what == "gradient" and dtype == torch.float16 and not all(fits(item) for item in plain.gradients()):
            return []  # they explode by themselves
        if not any(
            name in narrow.values and name in plain.values and lost(narrow.values[name], plain.values[name])
            for name in row.not_finite
        ):
            return []
        with CarefulProducts():
            careful = tried(again, self._mode, under_autocast(dtype, scale=scale))
        if not isinstance(careful, Raised) and not any(
            name in careful.values and lost(careful.values[name], plain.values[name])
            for name in row.not_finite
            if name in plain.values
        ):
            return [_half_kernel(row, "not finite")]
        singular = ordinary(self._subject, self._mode, dtype, argument_names(self._context))
        birth = None if singular is None else singular.birth
        begins = "" if birth is None else f"; it begins in `{birth.operation.lstrip('_')}`"
        text = f"under autocast to {row.dtype} {row.not_finite[0]} is not finite, in float32 it is{begins}"
        place = None if birth is None else birth.place
        return [_Fault("not_finite_under_autocast", text, place, {"dtype": row.dtype, "tensors": row.not_finite})]

    def _is_far(self, row: Row, dtype: torch.dtype) -> bool:
        # Without the scale of the loss that training in float16 has, small gradients vanish there by themselves.
        if row.what == "gradient" and dtype == torch.float16:
            return False
        return math.isfinite(row.rounding) and row.error > max(RATIO * row.rounding, FROM[dtype])

    def _of_far(self, row: Row, dtype: torch.dtype) -> list[_Fault]:
        """If it is as far with other parameters and inputs too."""
        again = replace(self._subject, seed=self._subject.seed + 1)
        try:
            wide, precise = reference(again, self._mode)
        except Exception:
            return []
        narrow = tried(again, self._mode, under_autocast(dtype))
        yardstick = rounded(again, self._mode, precise, dtype)
        if isinstance(narrow, Raised) or yardstick is None:
            return []
        rows = error_rows(narrow, wide, yardstick, dtype, "float32")
        if not any(other.what == row.what and self._is_far(other, dtype) for other in rows):
            return []
        if not self._is_far_by_itself(row, dtype):
            return [_half_kernel(row, f"off by {row.error:.1%}")]
        text = (
            f"under autocast to {row.dtype} {row.name} is off by {row.error:.1%}, where rounding every result to that "
            f"type costs {row.rounding:.1%}: it computes something else there"
        )
        if self._steps:
            text += f". Values jump in it ({', '.join(self._steps[:3])}), so that a rounding can become any difference"
        numbers = {"dtype": row.dtype, "error": row.error, "rounding_alone": row.rounding, "tensor": row.name}
        return [_Fault("differs_under_autocast", text, None, numbers, sure=not self._steps)]

    def _is_far_by_itself(self, row: Row, dtype: torch.dtype) -> bool:
        """Whether it is as far where products are computed in float32 and rounded."""
        try:
            wide, precise = reference(self._subject, self._mode)
        except Exception:
            return True
        with CarefulProducts():
            careful = tried(self._subject, self._mode, under_autocast(dtype))
        yardstick = rounded(self._subject, self._mode, precise, dtype)
        if isinstance(careful, Raised) or yardstick is None:
            return True
        rows = error_rows(careful, wide, yardstick, dtype, "float32")
        return any(other.what == row.what and self._is_far(other, dtype) for other in rows)


def replace_values(seen: Observation, names: Sequence[str]) -> Observation:
    """Only these of its values."""
    return Observation({name: value for name, value in seen.values.items() if name in names}, device=seen.device)


def _trusted(plain: Observation, wide: Observation) -> list[str]:
    """The results that float32 gets right, so that half precision can be asked for them."""
    scale = wide.gradient_norm()
    return [
        name
        for name, true in wide.values.items()
        if name in plain.values
        and plain.values[name].shape == true.shape
        and true.is_floating_point()
        and not bool((plain.values[name].isfinite() != true.isfinite()).any())
        and relative(plain.values[name], true, scale if name.startswith("gradient") else 0.0) <= PLAIN
    ]


def _half_kernel(row: Row, how: str) -> _Fault:
    """`how`: what is wrong with it only where this machine's own kernels multiply."""
    name = row.not_finite[0] if row.not_finite else row.name
    text = (
        f"under autocast to {row.dtype} {name} is {how}, and right where products are computed in float32 and rounded: "
        "this machine's kernel for that type is wrong, not the code"
    )
    return _Fault("half_kernel", text, None, {"dtype": row.dtype, "tensor": name}, sure=False)


def _of_singular(singular: Singular) -> _Fault:
    birth = singular.birth
    begins = "" if birth is None else f", which begins in `{birth.operation.lstrip('_')}`"
    if birth is not None and birth.overflow:
        cause, because = "overflow_in_half", "a value leaves the range of float16, which ends at 65504"
    else:
        cause = "protection_lost_in_half"
        because = "what protects it there is too small for float16 (below 6e-8 it is zero)"
    text = (
        f"in float16 {singular.of} is not finite for {singular.construction.description}{begins}; in float32 it is "
        f"finite: {because}. Compute this in float32"
    )
    numbers = {"dtype": "float16", "input": singular.construction.description}
    return _Fault(cause, text, None if birth is None else birth.place, numbers, sure=False)
