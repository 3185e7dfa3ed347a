"""The custom `autograd.Function`s that a call goes through, with the arguments that each was given."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import relative
from gradproof_probe.gradients.oracle import separate_context
from gradproof_probe.gradients.replacing import replaced
from gradproof_probe.trees import transform

MOST_CALLS: Final = 3  # recorded argument sets per Function: a Function in a loop is called a hundred times

# Words by which authors say that the gradient isn't the derivative on purpose: straight-through estimators, surrogate
# spikes, quantisers, gradient reversal, scaling and clipping, guided backpropagation, CompressAI's LowerBound.
BY_DESIGN: Final = re.compile(
    r"straight|(^|[^a-z])ste([^a-z]|$)|surrogate|spik(e|ing)|quanti[sz]|(^|_|\b)quant(_|\b)|binari|ternari|revers|"
    r"(^|_|\b)grl(\b|_)|grad(ient)?s?_?(scal|clip|mask|stop|block|multipl|filter|noise)|"
    r"(scal|clip|stop|mask)(e|ed|es|ing|p|ped|ping|s)?[ _]?grad|guided|deconv|estimator|lower_?bound",
    re.IGNORECASE,
)
# Words that only explain a gradient where the forward is locally constant.
STEPLIKE: Final = re.compile(
    r"round|sign(?!al|atur)|clamp|clip|hard|heaviside|floor|ceil|argmax|one_?hot|fake|pseudo|gumbel|bounded|thresh|step",
    re.IGNORECASE,
)


@dataclass(slots=True)
class RecordedCall:
    """One call of a Function's `apply`, arguments detached but with their dtype and need of gradient."""

    function: type
    args: list[Any]


class Recorder:
    def __init__(self, source_root: Path) -> None:
        self._root = source_root
        self.calls: list[RecordedCall] = []

    def functions(self) -> list[type]:
        return list(dict.fromkeys(call.function for call in self.calls))

    @contextmanager
    def watching(self, candidates: list[type]) -> Iterator[Recorder]:
        """Wrap `forward` of each candidate class while open; the wrapper only looks."""
        with ExitStack() as stack:
            for function in candidates:
                self._wrap(function, stack)
            yield self

    def _wrap(self, function: type, stack: ExitStack) -> None:
        static = inspect.getattr_static(function, "forward", None)
        if not isinstance(static, staticmethod):
            return
        original = static.__func__
        skip = 0 if separate_context(function) else 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            if sum(1 for call in self.calls if call.function is function) < MOST_CALLS:
                self.calls.append(RecordedCall(function, [transform(item, _copy) for item in args[skip:]]))
            return original(*args, **kwargs)

        stack.enter_context(replaced(function, "forward", staticmethod(forward)))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    return copied.requires_grad_(tensor.requires_grad) if tensor.is_floating_point() or tensor.is_complex() else copied


def submitted_functions(source_root: Path) -> list[type]:
    """Every autograd.Function class that is defined in the submitted source and loaded."""
    found: list[type] = []
    queue: list[type] = [torch.autograd.Function]
    while queue:
        parent: Any = queue.pop()
        for child in parent.__subclasses__():
            queue.append(child)
            filename = _file(child)
            if filename is not None and relative(filename, source_root) is not None:
                found.append(child)
    return found


def _file(cls: type) -> str | None:
    forward = inspect.getattr_static(cls, "forward", None)
    code = getattr(getattr(forward, "__func__", None), "__code__", None)
    return code.co_filename if code is not None else None


def documented(function: type) -> list[str]:
    """What the author calls the Function: its name in separate words, and what its documentation says of it."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", function.__name__)
    own = [vars(cls).get(name) for cls in function.__mro__ for name in ("forward", "backward") if _is_submitted(cls)]
    texts = [spaced, function.__doc__, *(getattr(method, "__doc__", None) for method in own if method is not None)]
    return [text for text in texts if text]


def _is_submitted(cls: type) -> bool:
    return not cls.__module__.startswith("torch.") and cls is not object


def speaks_of_design(function: type, words: re.Pattern[str] = BY_DESIGN) -> str | None:
    """The word in the Function's name, documentation or source that says its gradient is meant to differ."""
    texts = documented(function)
    with contextlib.suppress(OSError, TypeError):
        texts.append(inspect.getsource(function))
    for text in texts:
        match = words.search(text)
        if match:
            return match[0].strip(" _.,:;()")
    return None
