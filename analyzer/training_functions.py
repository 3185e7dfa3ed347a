"""Whether a function trains, or averages something among ranks: it is run for what it does, whatever it returns.

What only a command line can call is told apart: it reads arguments, files or data sets, or starts processes. In doubt
a function trains, and the probe finds out whether it can be called. This module must not know other files.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.tensor_flow import flow_of
from analyzer.training_steps import is_optimizer, is_scaler, is_scheduler

_COLLECTIVES: Final = frozenset({"all_reduce", "reduce", "all_reduce_coalesced"})
_DISTRIBUTED: Final = "torch.distributed."
# A function that is called so is what a script starts with.
_ENTRY: Final = re.compile(r"^(main|cli)(_|$)|^run$|_(main|worker)$|^(demo|example|benchmark|profile|setup)(_|$)")
# What a function of a library doesn't do, by the last name of what it calls.
_OF_SCRIPTS: Final = frozenset(
    {
        *(
            "open",
            "read_csv",
            "load_dataset",
            "load_data",
            "get_data",
            "from_pretrained",
            "makedirs",
            "mkdir",
            "listdir",
        ),
        *("ArgumentParser", "parse_args", "parse_known_args", "input", "exit", "getenv", "system", "Popen", "fire"),
        *("DataLoader", "ImageFolder", "MNIST", "CIFAR10", "CIFAR100", "ImageNet", "FashionMNIST"),
        *("spawn", "Process", "init_process_group", "destroy_process_group", "set_device", "SummaryWriter"),
        *("Accelerator", "savefig", "imshow"),
    }
)
_WHOLE_OF_SCRIPTS: Final = (
    "argparse.",
    "subprocess.",
    "multiprocessing.",
    "torch.multiprocessing.",
    "wandb.",
    "mlflow.",
)
_FILES: Final = frozenset({"torch.load", "torch.save", "numpy.load", "numpy.save", "pickle.load", "pickle.dump"})
# Calling the object runs these, which are targets by themselves.
_OF_MODULES: Final = frozenset({"forward", "step"})
# Frameworks call these themselves, with a trainer behind the object.
_FRAMEWORKS: Final = re.compile(
    r"(LightningModule|Optimizer|LightningLite|Fabric|Callback|Strategy|TrainingArguments)$"
)


def trains(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function goes backward and steps an optimizer, or reduces something among ranks, as a library does."""
    if not parameters(function) or not (_steps(file, function) or _averages(file, function)):
        return False
    return _ENTRY.search(function.name) is None and not _is_of_script(file, function)


def training_methods(file: FileContext, node: ast.ClassDef) -> list[FunctionNode]:
    """The public methods of a class that train, of objects that nobody but the repository drives."""
    if any(_FRAMEWORKS.search(terminal_name(base) or "") for base in node.bases):
        return []
    return [
        method
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and method.name not in _OF_MODULES
        and not method.decorator_list
        and [item.arg for item in parameters(method)][:1] == ["self"]
        and _steps(file, method)
        and not _is_of_script(file, method)
    ]


def _steps(file: FileContext, function: FunctionNode) -> bool:
    if not (file.calls("backward") and file.calls("step")):
        return False
    backward = stepped = False
    for call in file.nodes_in(function, ast.Call):
        if not isinstance(call.func, ast.Attribute):
            continue
        receiver = call.func.value
        if call.func.attr == "backward":
            # `MyFunction.backward(ctx, grad)` and `super().backward()` go backward for somebody else.
            name = terminal_name(receiver.func if isinstance(receiver, ast.Call) else receiver) or ""
            backward = backward or not (name == "super" or name[:1].isupper())
        elif call.func.attr == "step":
            is_step = is_optimizer(file, receiver) or is_scaler(file, receiver)
            stepped = stepped or (is_step and not is_scheduler(file, receiver))
    return backward and stepped


def _averages(file: FileContext, function: FunctionNode) -> bool:
    """Whether gradients of a model are reduced among ranks, or a value that is given and comes back."""
    if not file.calls(*_COLLECTIVES):
        return False
    reduces = any(
        (file.qualified_name(call.func) or "").startswith(_DISTRIBUTED)
        for call in file.nodes_in(function, ast.Call)
        if terminal_name(call.func) in _COLLECTIVES
    )
    if not reduces:
        return False
    of_gradients = any(node.attr == "grad" for node in file.nodes_in(function, ast.Attribute))
    return of_gradients or flow_of(file, function).carries


def _is_of_script(file: FileContext, function: FunctionNode) -> bool:
    for call in file.nodes_in(function, ast.Call):
        qualified = file.qualified_name(call.func) or ""
        if terminal_name(call.func) in _OF_SCRIPTS or qualified in _FILES or qualified.startswith(_WHOLE_OF_SCRIPTS):
            return True
    return False
