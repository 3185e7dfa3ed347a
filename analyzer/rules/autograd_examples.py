"""Builds the source of custom Functions for the examples of the rules about them. This module must not analyse."""

from __future__ import annotations

IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch.autograd import Function\n"
_HEAD = f"{IMPORTS}\n\n"


def indented(text: str, by: int = 8) -> str:
    """Every line of a text, moved to the right."""
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.splitlines())


def combined(
    forward: str,
    backward: str,
    inputs: str = "x",
    gradients: str = "grad",
    *,
    head: str = "",
    decorator: str = "",
    after: str = "",
    docstring: str = "",
) -> str:
    """A Function `Op` whose forward takes the context. `forward` starts on line 9, backward five lines below its end.

    `head` goes after the imports, `decorator` on backward, `after` below the class.
    """
    extra = f"    @{decorator}\n" if decorator else ""
    text = f'    """{docstring}"""\n\n' if docstring else ""
    return (
        f"{_HEAD}{head}class Op(Function):\n{text}    @staticmethod\n    def forward(ctx, {inputs}):\n"
        f"{indented(forward)}\n"
        f"    @staticmethod\n{extra}    def backward(ctx, {gradients}):\n{indented(backward)}"
        + (f"\n\n{after}" if after else "")
    )


def split(
    forward: str, setup: str, backward: str, inputs: str = "x", *, gradients: str = "grad", after: str = ""
) -> str:
    """The same with `setup_context`: forward does not take the context."""
    return (
        f"{_HEAD}class Op(Function):\n    @staticmethod\n    def forward({inputs}):\n{indented(forward)}\n"
        f"    @staticmethod\n    def setup_context(ctx, inputs, output):\n{indented(setup)}\n"
        f"    @staticmethod\n    def backward(ctx, {gradients}):\n{indented(backward)}"
        + (f"\n\n{after}" if after else "")
    )


def second_derivative_free(source: str) -> str:
    """The same source with `once_differentiable` on backward."""
    return source.replace("    def backward", "    @torch.autograd.function.once_differentiable\n    def backward")
