"""Devices, precisions and switches that are chosen by name or by the machine instead of by the tensors at hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword, own_attribute
from analyzer.machine_tests import asks_for_machine, under_device_test
from analyzer.placement import DTYPES, placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import dotted_name, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
    "        self.up = nn.Linear(width, width)\n"
)


def _module(body: str, *, setup: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in setup.splitlines())
    forward = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{_HEAD}{_BLOCK}{lines}\n    def forward(self, x):\n{forward}"


# The first line of `body` where there is no setup; that of `setup`.
_FIRST, _SETUP = 12, 10
_SCRIPT_PARTS = re.compile(
    r"(^|_)(tests?|testing|scripts?|benchmarks?|tools?|examples?|demos?|train|training|main|profile|profiling|cli|"
    r"convert|conversion|datasets?|loaders?|quantizers?|integrations?)($|_)"
)
_SCRIPT_FUNCTIONS = re.compile(r"^(main|test|bench|demo|run|train|profile|time)(_|$)")


def _is_script(file: FileContext, node: ast.AST) -> bool:
    """Whether a node belongs to a program that is run on a known machine, not to a model that others use."""
    if any(map(_SCRIPT_PARTS.search, PurePosixPath(file.path).with_suffix("").parts)):
        return True
    return any(
        (isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and _SCRIPT_FUNCTIONS.search(outer.name))
        or (isinstance(outer, ast.If) and "__name__" in {terminal_name(part) for part in ast.walk(outer.test)})
        for outer in file.ancestors(node)
    )


def _runs_with_model(file: FileContext, node: ast.AST) -> bool:
    """Whether a node stands in the `forward` of a module, in what it calls, or where the module is built."""
    code = forward_code(file)
    owner, method = code.module_of(node), code.method_of(node)
    if owner is None or method is None:
        return False
    return method.name == "__init__" or method in code.reached(owner).values()


_OWN_KERNELS = re.compile(r"\btriton\b|cpp_extension|load_inline|cupy|numba")


class HardCodedDevice(Rule):
    """A tensor sent to the default GPU by name, in code that a model runs."""

    id = "GP601"
    name = "hard-coded-device"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare",)
    fix = FixSafety.UNSAFE
    triggers = (".cuda", '"cuda', "'cuda", ".type(")
    documentation = Documentation(
        what_it_does=(
            "Finds `.cuda()`, `.to('cuda')`, `device='cuda'` and `torch.cuda.FloatTensor(…)` in a module's "
            "`__init__`, its `forward` and what that calls. Code that first asks whether there is a GPU or where a "
            "tensor lies, scripts, tests and launchers of GPU kernels are left alone; other functions get a note."
        ),
        why_is_this_bad=(
            "The line raises on a machine without CUDA, and with a model on `cuda:1`, `mps` or `xpu` it brings tensors "
            "of two devices together."
        ),
        faulty_example=_module("mask = torch.ones(4, device='cuda')\nreturn self.up(x) * mask"),
        right_example=_module("mask = torch.ones(4, device=x.device)\nreturn self.up(x) * mask"),
        fix_safety="Unsafe: the device of an input takes the place of the default GPU.",
    )
    valid = (
        _module("mask = torch.ones(4, device=x.device)\nreturn self.up(x) * mask"),
        _module("if torch.cuda.is_available():\n    x = x.cuda()\nreturn self.up(x)"),
        _module("if x.is_cuda:\n    mask = torch.ones(4).cuda()\nelse:\n    mask = torch.ones(4)\nreturn x * mask"),
        _module("torch.cuda.synchronize()\nreturn self.up(x)"),
        _module("if self.kind == 'cuda':\n    x = x.cuda()\nreturn self.up(x)"),
        _module("with torch.autocast('cuda'):\n    return self.up(x)"),
        _module("if x.device.type != 'cuda':\n    return x\nreturn self.up(x) * torch.ones(4, device='cuda')"),
        _HEAD + "def main():\n    model = nn.Linear(2, 2).cuda()\n    return model(torch.ones(2, device='cuda'))\n",
        _HEAD + "if __name__ == '__main__':\n    print(nn.Linear(2, 2).to('cuda'))\n",
        _HEAD + "import triton\n\n\nclass Fast(nn.Module):\n    def forward(self, x):\n"
        "        out = torch.empty(4, device='cuda')\n        kernel[(1,)](x, out)\n        return out\n",
        _HEAD + "class Block(nn.Module):\n    def forward(self, x):\n        return x\n\n"
        "    def cuda(self, device=None):\n        return super().cuda(device)\n",
        _HEAD + "class Pair:\n    def cuda(self):\n        return Pair(self.a.cuda(), self.b.cuda())\n",
    )
    invalid = (
        Invalid(_module("mask = torch.ones(4, device='cuda')\nreturn self.up(x) * mask"), (_FIRST,)),
        Invalid(_module("mask = torch.ones(4).cuda()\nreturn self.up(x) * mask"), (_FIRST,)),
        Invalid(_module("mask = torch.ones(4).to('cuda:0')\nreturn self.up(x) * mask"), (_FIRST,)),
        Invalid(_module("mask = torch.cuda.FloatTensor(4).fill_(1)\nreturn self.up(x) * mask"), (_FIRST,)),
        Invalid(_module("mask = torch.ones(4, device=torch.device('cuda'))\nreturn self.up(x) * mask"), (_FIRST,)),
        Invalid(_module("return self.up(x)", setup="self.gain = nn.Parameter(torch.ones(4).cuda())"), (_SETUP,)),
        Invalid(
            _module("return self.up(x)", setup="self.gain = nn.Parameter(torch.ones(4, device='cuda'))"), (_SETUP,)
        ),
        Invalid(_module("return self.up(x) * (x > 0).type(torch.FloatTensor)"), (_FIRST,)),
        Invalid(_HEAD + "def loss(x: torch.Tensor):\n    return (x * torch.ones(3).cuda()).sum()\n", (7,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every expression that names the default GPU."""
        found = list(self._found(file))
        return [] if found and _OWN_KERNELS.search(file.text) else found

    def _found(self, file: FileContext) -> Iterator[Hit]:
        for node, said in _named_gpus(file):
            if _is_script(file, node) or under_device_test(file, node) or file.enclosing_function(node) is None:
                continue
            function = file.enclosing_function(node)
            if file.enclosing_autograd_function(node) is not None or (function is not None and function.name == "cuda"):
                continue
            certain = _runs_with_model(file, node)
            yield Hit(
                node,
                f"`{said}` sends this to {_place(said)} whatever the device of the model is: it raises without CUDA, "
                "or mixes devices on any other one. Use the device of an input or of a parameter.",
                severity=None if certain else Severity.NOTE,
                confidence=None if certain else Confidence.LOW,
                hypothesis={"expression": said, "symbol": file.symbol(node)},
                fix=_on_device_of_input(file, node),
            )


def _place(said: str) -> str:
    return "the CPU" if said.startswith(".type(torch.") and "cuda" not in said else "the default GPU"


def _named_gpus(file: FileContext) -> Iterator[tuple[ast.expr, str]]:
    """(the expression that chooses a GPU, how it does)."""
    for call in file.calls("cuda"):
        if isinstance(call.func, ast.Attribute) and file.qualified_name(call.func) is None and not _is_super(call.func):
            chosen = call.args[0] if call.args else keyword(call, "device")
            if chosen is None or isinstance(chosen, ast.Constant):
                yield call, ".cuda()"
    for call in file.calls("to"):
        chosen = call.args[0] if call.args else keyword(call, "device")
        if isinstance(call.func, ast.Attribute) and _is_gpu(file, chosen):
            yield call, f".to({file.source(chosen)})" if chosen is not None else ".to()"
    for item in file.nodes(ast.keyword):
        owner = file.parent(item)
        if item.arg == "device" and isinstance(owner, ast.Call) and _is_gpu(file, item.value):
            qualified = file.qualified_name(owner.func) or ""
            if qualified.startswith("torch.") and not qualified.startswith("torch.cuda."):
                yield owner, f"device={file.source(item.value)}"
    yield from _legacy_types(file)


_LEGACY = ("FloatTensor", "LongTensor", "HalfTensor", "DoubleTensor", "ByteTensor", "BoolTensor", "IntTensor")


def _legacy_types(file: FileContext) -> Iterator[tuple[ast.expr, str]]:
    """`torch.cuda.FloatTensor(…)`, and casts to such a type, which move the tensor to its device."""
    for call in file.calls("type"):
        chosen = call.args[0] if call.args else None
        by_name = file.qualified_name(chosen) if chosen is not None else None
        if isinstance(chosen, ast.Constant) and isinstance(chosen.value, str):
            by_name = chosen.value
        if isinstance(call.func, ast.Attribute) and by_name is not None and _LEGACY_TYPE.search(by_name):
            yield call, f".type({by_name})"
    for name in _LEGACY:
        for call in file.calls(name):
            if file.qualified_name(call.func) == f"torch.cuda.{name}":
                yield call, f"torch.cuda.{name}"


_LEGACY_TYPE = re.compile(r"^torch\.(cuda\.)?(Float|Double|Half|Long|Int|Bool|Byte)Tensor$")


def _is_super(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Call) and terminal_name(function.value.func) == "super"


def _is_gpu(file: FileContext, chosen: ast.expr | None) -> bool:
    if isinstance(chosen, ast.Call) and file.qualified_name(chosen.func) == "torch.device" and len(chosen.args) == 1:
        chosen = chosen.args[0]
    return isinstance(chosen, ast.Constant) and isinstance(chosen.value, str) and chosen.value.startswith("cuda")


def _on_device_of_input(file: FileContext, node: ast.expr) -> Rewrite | None:
    """The same with the device of the first tensor that the function is given."""
    function = file.enclosing_function(node)
    name = placement(file).tensor_parameter(function) if function is not None else None
    if name is None or not isinstance(node, ast.Call):
        return None
    chosen = keyword(node, "device")
    if chosen is not None:
        return Rewrite(FixSafety.UNSAFE, (Replacement(chosen, f"{name}.device"),))
    if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and node.args:
        return Rewrite(FixSafety.UNSAFE, (Replacement(node.args[0], f"{name}.device"),))
    if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
        text = f"{file.operand_source(node.func.value)}.to({name}.device)"
        return Rewrite(FixSafety.UNSAFE, (Replacement(node, text),))
    return None


class DeviceByMachine(Rule):
    """A device chosen by what the machine has, in code that a model runs."""

    id = "GP618"
    name = "device-by-machine"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("device_compare", "finding_search")
    triggers = ("is_available",)
    documentation = Documentation(
        what_it_does=(
            "Finds `'cuda' if torch.cuda.is_available() else 'cpu'` as the device of tensors that a module's `forward` "
            "makes or moves, also through an attribute or a constant of the module. Scripts are left alone."
        ),
        why_is_this_bad=(
            "Whether the machine has a GPU says nothing of where the model is: a model kept on the CPU of such a "
            "machine, or on its second GPU, meets tensors on the first, and raises."
        ),
        faulty_example=_module(
            "device = 'cuda' if torch.cuda.is_available() else 'cpu'\nreturn self.up(x) * torch.ones(4, device=device)"
        ),
        right_example=_module("return self.up(x) * torch.ones(4, device=x.device)"),
        fix_safety="No automatic fix: which tensor's device is meant only the author knows.",
    )
    valid = (
        _module("return self.up(x) * torch.ones(4, device=x.device)"),
        _module("if torch.cuda.is_available():\n    torch.cuda.empty_cache()\nreturn self.up(x)"),
        _module("return self.up(x)", setup="self.fast = torch.cuda.is_available()"),
        _HEAD + "device = 'cuda' if torch.cuda.is_available() else 'cpu'\nmodel = nn.Linear(2, 2).to(device)\n",
        _module("device = x.device if torch.cuda.is_available() else 'cpu'\nreturn self.up(x.to(device))"),
    )
    invalid = (
        Invalid(
            _module(
                "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
                "return self.up(x) * torch.ones(4, device=device)"
            ),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "return self.up(x) * torch.ones(4).to(self.device)",
                setup="self.device = 'cuda' if torch.cuda.is_available() else 'cpu'",
            ),
            (_SETUP,),
        ),
        Invalid(
            _HEAD + "DEVICE = 'cuda:0' if torch.cuda.is_available() else 'cpu'\n\n\nclass Block(nn.Module):\n"
            "    def forward(self, x):\n        return x * torch.ones(4, device=DEVICE)\n",
            (11,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every choice between device names by what is available."""
        code = forward_code(file)
        for choice in file.nodes(ast.IfExp):
            if not (asks_for_machine(choice.test) and _is_device_name(choice.body) and _is_device_name(choice.orelse)):
                continue
            if _is_script(file, choice):
                continue
            statement = file.statement(choice)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            owner, method = code.module_of(choice), code.method_of(choice)
            if owner is not None and method is not None and method in code.reached(owner).values():
                yield self._hit(choice, choice)
            elif owner is not None and method is not None and target is not None:
                name = own_attribute(target)
                uses = [u for m in code.reached(owner).values() for u in code.own_uses(m, name or "")]
                placing = next((use for use in uses if _places_tensor(file, use)), None)
                if placing is not None:
                    yield self._hit(choice, placing)
            elif isinstance(target, ast.Name) and file.enclosing_function(choice) is None:
                yield from self._constant(file, choice, target)

    def _constant(self, file: FileContext, choice: ast.IfExp, target: ast.Name) -> Iterator[Hit]:
        """The places of running code that use a constant of the file."""
        code = forward_code(file)
        for name in file.nodes(ast.Name):
            if name.id != target.id or not isinstance(name.ctx, ast.Load):
                continue
            owner, method = code.module_of(name), code.method_of(name)
            if owner is not None and method in code.reached(owner).values() and _places_tensor(file, name):
                yield self._hit(name, choice)

    def _hit(self, node: ast.expr, other: ast.expr) -> Hit:
        return Hit(
            node,
            "This device depends on what the machine has, not on where the model and its input are: on another device "
            "it brings tensors of two devices together. Take the device of an input.",
            related=((other, "chosen or used here"),) if other is not node else (),
        )


def _is_device_name(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call) and terminal_name(expression.func) == "device" and expression.args:
        expression = expression.args[0]
    if isinstance(expression, ast.IfExp):
        return _is_device_name(expression.body) and _is_device_name(expression.orelse)
    names = ("cuda", "cpu", "mps", "xpu")
    return isinstance(expression, ast.Constant) and str(expression.value).partition(":")[0] in names


def _places_tensor(file: FileContext, use: ast.expr) -> bool:
    """Whether a device is handed to a factory or to `.to()`."""
    parent = file.parent(use)
    if isinstance(parent, ast.keyword):
        return parent.arg == "device"
    return isinstance(parent, ast.Call) and use in parent.args and terminal_name(parent.func) == "to"


_HALF = frozenset({"float16", "bfloat16", "half"})


class PrecisionByMachine(Rule):
    """A dtype chosen by what the machine has."""

    id = "GP613"
    name = "precision-by-machine"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("device_compare",)
    triggers = ("is_available", "is_bf16_supported", "get_device_capability", "is_cuda")
    documentation = Documentation(
        what_it_does=(
            "Finds a dtype in a module that depends on `torch.cuda.is_available()`, on what the GPU supports or on "
            "`x.is_cuda`: a conditional between two dtypes, or a cast to half precision under such an `if`. Elsewhere "
            "it is a note."
        ),
        why_is_this_bad=(
            "The precision of the result changes with the machine and not with the weights or the data: the same "
            "model gives float32 in the test and float16 where it is used (errors of 1e-3, overflow above 65504)."
        ),
        faulty_example=_module(
            "kind = torch.float16 if torch.cuda.is_available() else torch.float32\nreturn self.up(x).to(kind)"
        ),
        right_example=_module("return self.up(x).to(self.up.weight.dtype)"),
        fix_safety="No automatic fix: which dtype was meant only the author knows.",
    )
    valid = (
        _module("return self.up(x).to(self.up.weight.dtype)"),
        _module("kind = torch.float16 if self.fast else torch.float32\nreturn self.up(x).to(kind)"),
        _module("kind = torch.float32 if x.device.type == 'mps' else torch.float64\nreturn self.up(x).to(kind)"),
        _module("if torch.cuda.is_available():\n    torch.cuda.empty_cache()\nreturn self.up(x).float()"),
        _module("return self.up(x)", setup="self.fused = 1 if torch.cuda.is_available() else 0"),
    )
    invalid = (
        Invalid(
            _module("kind = torch.float16 if torch.cuda.is_available() else torch.float32\nreturn self.up(x).to(kind)"),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "return self.up(x).to(self.kind)",
                setup="self.kind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16",
            ),
            (_SETUP,),
        ),
        Invalid(
            _module("h = self.up(x)\nif torch.cuda.is_available():\n    h = h.half()\nreturn h"),
            (_FIRST + 2,),
        ),
        Invalid(
            _module(
                "if torch.cuda.is_available():\n    kind = torch.float16\nelse:\n    kind = torch.float32\n"
                "return self.up(x).to(kind)"
            ),
            (_FIRST + 1,),
        ),
        Invalid(_module("h = self.up(x)\nreturn h.half() if h.is_cuda else h"), (_FIRST + 1,)),
        Invalid(
            _HEAD
            + "def load(net):\n    return net.to(torch.float16 if torch.cuda.is_available() else torch.float32)\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every dtype under a condition on the machine."""
        for choice in file.nodes(ast.IfExp):
            either = (choice.body, choice.orelse)
            if _asks(choice.test) and any(_is_half(file, side) for side in either):
                yield from self._hit(file, choice, choice.test)
        for test in file.nodes(ast.If):
            if not _asks(test.test):
                continue
            for statement in test.body:
                value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
                if value is not None and _is_half(file, value):
                    yield from self._hit(file, statement, test.test)

    def _hit(self, file: FileContext, node: ast.expr | ast.stmt, test: ast.expr) -> Iterator[Hit]:
        if _is_script(file, node):
            return
        certain = _runs_with_model(file, node)
        yield Hit(
            node,
            f"The precision depends on the machine (`{file.source(test)}`) instead of on the weights or the input: the "
            "same model computes other numbers elsewhere.",
            severity=None if certain else Severity.NOTE,
            confidence=None if certain else Confidence.LOW,
            hypothesis={"condition": file.source(test), "symbol": file.symbol(node)},
            related=((test, "depends on the machine"),),
        )


def _asks(test: ast.expr) -> bool:
    names = {terminal_name(part) for part in ast.walk(test)}
    return bool(names & {"is_available", "is_bf16_supported", "get_device_capability", "is_cuda"}) and not (
        names & {"mps", "npu", "xpu", "is_npu", "hpu"}
    )


def _is_half(file: FileContext, value: ast.expr) -> bool:
    """`torch.float16`, or a cast to it."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in ("half", "bfloat16") and not value.args:
            return True
        if value.func.attr == "to":
            return any(_is_half(file, argument) for argument in value.args)
    qualified = file.qualified_name(value) or ""
    return qualified.startswith("torch.") and qualified.rpartition(".")[2] in _HALF & DTYPES


_SWITCHES = re.compile(
    r"^torch\.backends\.(cuda\.matmul|cudnn|cudnn\.conv|cudnn\.rnn|mkldnn|mkldnn\.matmul)\."
    r"(allow_tf32|allow_\w+|benchmark|deterministic|enabled|fp32_precision)$|^torch\.backends\.fp32_precision$"
)
_SETTERS = frozenset(
    {
        *("torch.set_float32_matmul_precision", "torch.set_default_dtype", "torch.set_default_device"),
        *("torch.set_default_tensor_type", "torch.use_deterministic_algorithms", "torch.set_num_threads"),
        *(
            "torch.autograd.set_detect_anomaly",
            "torch.set_flush_denormal",
            "torch.manual_seed",
            "torch.random.manual_seed",
        ),
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
    }
)


_RANDOM_STATES = frozenset({"set_rng_state", "get_rng_state", "fork_rng"})


class GlobalSwitch(Rule):
    """A switch of the whole process that a module sets for itself."""

    id = "GP614"
    name = "global-switch-in-module"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "eval_side_effects")
    triggers = (
        "torch.backends",
        "set_float32",
        "set_default",
        "use_deterministic",
        "manual_seed",
        "set_num_threads",
        "set_detect_anomaly",
        "cudnn.",
        "set_flush",
    )
    documentation = Documentation(
        what_it_does=(
            "Finds settings of the whole process in the methods of a module: TF32 and reduced precision, cuDNN's "
            "benchmark and deterministic switches, default dtype and device, determinism, the global random seed. "
            "Settings that are taken back in the same function, and seeds inside `fork_rng`, are left alone."
        ),
        why_is_this_bad=(
            "Building or calling the module changes what all other code of the process computes: with TF32 every "
            "float32 matrix product on a GPU keeps 10 bits of the mantissa (errors near 1e-3), a global seed repeats "
            "the same random numbers at every call."
        ),
        faulty_example=_module("return self.up(x)", setup="torch.backends.cuda.matmul.allow_tf32 = True"),
        right_example=_module("return self.up(x)"),
        fix_safety="No automatic fix: the setting belongs into the program that uses the module.",
    )
    valid = (
        _module("return self.up(x)"),
        _module(
            "before = torch.backends.cudnn.enabled\ntorch.backends.cudnn.enabled = False\nh = self.up(x)\n"
            "torch.backends.cudnn.enabled = before\nreturn h"
        ),
        _module("with torch.random.fork_rng():\n    torch.manual_seed(0)\n    return self.up(x) * torch.rand(4)"),
        _HEAD + "def setup():\n    torch.backends.cuda.matmul.allow_tf32 = True\n    torch.manual_seed(0)\n",
        "import torch\nimport torch.nn as nn\n\ntorch.set_float32_matmul_precision('high')\n\n\n"
        "class Block(nn.Module):\n    def forward(self, x):\n        return x\n\n\n"
        "if __name__ == '__main__':\n    Block()\n",
        _module("if torch.backends.cudnn.enabled:\n    return self.up(x)\nreturn x"),
        _module(
            "state = torch.get_rng_state()\ntorch.manual_seed(0)\nh = torch.rand(4)\n"
            "torch.set_rng_state(state)\nreturn h"
        ),
    )
    invalid = (
        Invalid(_module("return self.up(x)", setup="torch.backends.cuda.matmul.allow_tf32 = True"), (_SETUP,)),
        Invalid(_module("torch.set_float32_matmul_precision('medium')\nreturn self.up(x)"), (_FIRST,)),
        Invalid(
            "import torch\nimport torch.nn as nn\n\ntorch.set_float32_matmul_precision('high')\n\n\n"
            "class Block(nn.Module):\n    def forward(self, x):\n        return x\n",
            (4,),
        ),
        Invalid(_module("torch.manual_seed(0)\nreturn self.up(x) * torch.rand(4)"), (_FIRST,)),
        Invalid(_module("return self.up(x)", setup="torch.set_default_dtype(torch.float64)"), (_SETUP,)),
        Invalid(
            "from torch.backends import cudnn\nimport torch.nn as nn\n\n\nclass Block(nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        cudnn.benchmark = True\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every setting of the process inside a module class."""
        for node, name in self._settings(file):
            if not (_is_at_import(file, node, name) or _runs_with_model(file, node)):
                continue
            if _is_taken_back(file, node, name):
                continue
            yield Hit(
                node,
                f"`{name}` is a setting of the whole process: this module changes the results of all other code, and "
                "on some devices its own. Leave it to the program that uses the module.",
                # A seed that is drawn afresh and kept serves a later recomputation (reformer does so).
                severity=Severity.NOTE if "seed" in name and not _is_literal(node) else None,
                hypothesis={"setting": name, "symbol": file.symbol(node)},
            )

    def _settings(self, file: FileContext) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
        for attribute in file.nodes(ast.Attribute):
            if isinstance(attribute.ctx, ast.Store):
                name = file.qualified_name(attribute) or ""
                statement = file.statement(attribute)
                if _SWITCHES.search(name) and statement is not None:
                    yield statement, name
        for call in file.calls(*{name.rpartition(".")[2] for name in _SETTERS}):
            name = file.qualified_name(call.func) or ""
            if name in _SETTERS and isinstance(file.parent(call), ast.Expr):
                yield call, name


def _is_at_import(file: FileContext, node: ast.expr | ast.stmt, name: str) -> bool:
    """Whether importing a file of modules, which is no program, changes the setting."""
    at_top = file.statement(node) in file.tree.body
    return at_top and "seed" not in name and bool(forward_code(file).modules) and not _is_program(file, node)


def _is_program(file: FileContext, node: ast.AST) -> bool:
    return _is_script(file, node) or "__main__" in file.text or bool(file.calls("parse_args", "backward"))


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and all(isinstance(argument, ast.Constant) for argument in node.args)


def _is_taken_back(file: FileContext, node: ast.AST, name: str) -> bool:
    """Whether the same function sets it more than once, restores a random state, or works in a context that does."""
    function = file.enclosing_function(node)
    if function is None:
        return False
    last = name.rpartition(".")[2]
    words = [terminal_name(part) for part in ast.walk(function)]
    return words.count(last) > 1 or ("seed" in name and not _RANDOM_STATES.isdisjoint(words))


class AutocastForOneDevice(Rule):
    """Autocast switched off, or on, for CUDA alone in a module that runs elsewhere too."""

    id = "GP619"
    name = "autocast-for-one-device"
    severity = Severity.NOTE
    confidence = Confidence.HIGH
    settled_by = ("autocast",)
    fix = FixSafety.UNSAFE
    triggers = ("autocast",)
    documentation = Documentation(
        what_it_does=(
            "Finds `autocast('cuda', enabled=False)` and `torch.cuda.amp.autocast(enabled=False)` in what a module "
            "runs. Switching autocast on for one device is a note."
        ),
        why_is_this_bad=(
            "Autocast is kept per device type. Under `torch.autocast('cpu')` (or `xpu`, `mps`) the block stays in low "
            "precision, though its author wanted it in float32 (measured: a linear layer inside gives bfloat16)."
        ),
        faulty_example=_module("with torch.autocast('cuda', enabled=False):\n    return self.up(x.float())"),
        right_example=_module("with torch.autocast(x.device.type, enabled=False):\n    return self.up(x.float())"),
        fix_safety="Unsafe: on other devices the block is then computed in full precision.",
    )
    valid = (
        _module("with torch.autocast('cuda', enabled=False):\n    return x * x.cos() + x.sin()"),
        _module("with torch.autocast(x.device.type, enabled=False):\n    return self.up(x.float())"),
        _module("if x.is_cuda:\n    with torch.autocast('cuda', enabled=False):\n        return self.up(x)\nreturn x"),
        _HEAD + "def step(model, x):\n    with torch.autocast('cuda'):\n        return model(x)\n",
    )
    invalid = (
        Invalid(_module("with torch.autocast('cuda', enabled=False):\n    return self.up(x.float())"), (_FIRST,)),
        Invalid(_module("with torch.cuda.amp.autocast(enabled=False):\n    return self.up(x.float())"), (_FIRST,)),
        Invalid(
            _module("with torch.amp.autocast(device_type='cuda', enabled=False):\n    return self.up(x)"), (_FIRST,)
        ),
        Invalid(_module("with torch.autocast('cuda', dtype=torch.float16):\n    return self.up(x)"), (_FIRST,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every autocast of running code that names CUDA."""
        for call in file.calls("autocast", "maybe_autocast"):
            name = file.qualified_name(call.func) or dotted_name(call.func) or ""
            chosen = call.args[0] if call.args else keyword(call, "device_type")
            for_cuda = name.endswith("cuda.amp.autocast") or (
                isinstance(chosen, ast.Constant) and str(chosen.value) == "cuda"
            )
            if not for_cuda or not _runs_with_model(file, call) or under_device_test(file, call):
                continue
            if not _computes_in_low_precision(file, call):
                continue
            off = is_constant(keyword(call, "enabled"), value=False) or (
                name.endswith("cuda.amp.autocast") and bool(call.args) and is_constant(call.args[0], value=False)
            )
            state = "off" if off else "on"
            yield Hit(
                call,
                f"This switches autocast {state} for CUDA only: under autocast for another device the block runs "
                f"{'in low precision all the same' if off else 'as if this line were not there'}. Name the device of "
                "the input.",
                hypothesis={"enabled": not off, "symbol": file.symbol(call)},
                fix=_for_device_of_input(file, call, chosen if not name.endswith("cuda.amp.autocast") else None),
            )


# Of the operations of a model these change their precision under autocast; sums and products by element do not.
_LOWERED = frozenset(
    {
        *(
            "matmul",
            "mm",
            "bmm",
            "einsum",
            "linear",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose2d",
            "baddbmm",
            "addmm",
        ),
        *("scaled_dot_product_attention", "mv", "addbmm", "chain_matmul", "multi_dot", "forward"),
    }
)


# Layers that autocast leaves alone.
_KEPT_AS_THEY_ARE = frozenset({"Embedding", "EmbeddingBag", "Dropout", "Identity", "ReLU", "Flatten", "MaxPool2d"})


def _computes_in_low_precision(file: FileContext, call: ast.Call) -> bool:
    """Whether the block or the function that an autocast governs holds operations that autocast lowers."""
    block: ast.AST | None = next(
        (o for o in file.ancestors(call) if isinstance(o, (ast.With, ast.AsyncWith, ast.FunctionDef))), None
    )
    if block is None:
        return False
    for node in ast.walk(block):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return True
        if not isinstance(node, ast.Call):
            continue
        own = own_attribute(node.func) and (file.values.layer(node) or "").rpartition(".")[2] not in _KEPT_AS_THEY_ARE
        if own or terminal_name(node.func) in _LOWERED:
            return True
    return False


def _for_device_of_input(file: FileContext, call: ast.Call, chosen: ast.expr | None) -> Rewrite | None:
    function = file.enclosing_function(call)
    name = placement(file).tensor_parameter(function) if function is not None else None
    if name is None:
        return None
    if chosen is not None:
        return Rewrite(FixSafety.UNSAFE, (Replacement(chosen, f"{name}.device.type"),))
    spelled = file.spelling("torch.autocast")
    if spelled is None or any(not isinstance(item, ast.Constant) for item in call.args):
        return None
    given = [f"enabled={file.source(item)}" for item in call.args[:1]]
    given += [f"{item.arg}={file.source(item.value)}" for item in call.keywords if item.arg is not None]
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{spelled}({', '.join([f'{name}.device.type', *given])})"),))
