"""The script for tensors that stay on the CPU: the call with fake CUDA tensors, which needs no device."""

from __future__ import annotations

from typing import Any, Final

_BODY: Final = """
def moved_call(used):
    \"\"\"What a call raises where parameters, buffers and inputs are on CUDA; `used`: after a call on the CPU.\"\"\"
    from torch._subclasses.fake_tensor import FakeTensorMode

    target = make()
    args, kwargs = inputs()
    if used:
        with torch.no_grad():
            target(*each(args, torch.clone), **each(kwargs, torch.clone))
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def on_cuda(tensor):
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda:0")

    for part in target.modules() if isinstance(target, torch.nn.Module) else ():
        for name, tensor in part._parameters.items():
            if tensor is not None:
                part._parameters[name] = torch.nn.Parameter(on_cuda(tensor), requires_grad=False)
        for name, tensor in part._buffers.items():
            part._buffers[name] = None if tensor is None else on_cuda(tensor)
    try:
        with torch.no_grad(), mode:
            target(*each(args, on_cuda), **each(kwargs, on_cuda))
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "no error"


def main():
    error = moved_call(used=False)
    if error == "no error" and isinstance(make(), torch.nn.Module):
        error = moved_call(used=True)
    report("a call with parameters, buffers and inputs on CUDA (fake tensors)", "no error", error,
           failed=error != "no error")
"""


def placing_body(cause: str, text: str) -> tuple[str, dict[str, Any]] | None:
    """The body of the script; None for what fake tensors do not show: generators, and backward."""
    shown = cause in ("left_behind", "factory_without_device", "hard_coded_device", "numpy_round_trip")
    return (_BODY, {}) if shown and " in backward" not in text else None
