"""A repository's examples are run, what they call is said as recipes, and none of them can do harm beyond its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.probe.conftest import PROBE

START = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from pathlib import Path
from gradproof_probe.processes import harden_parent
from gradproof_probe.mining.mine import mine
harden_parent()
said = open(sys.argv[2], "w")
def say(line):
    said.write(json.dumps(line) + "\\n")
    said.flush()
mine(Path(sys.argv[3]), sys.argv[5:], float(sys.argv[4]), say)
"""

NET = '''
import torch
from torch import nn
import an_optional_helper_that_is_not_installed

class Net(nn.Module):
    """Widths must be multiples of the heads.

    Example:
        >>> net = Net(48, heads=3)
        >>> net(torch.randn(2, 5, 48)).shape
        torch.Size([2, 5, 48])
    """
    def __init__(self, dim, heads=4):
        super().__init__()
        assert dim % heads == 0
        self.heads, self.mix = heads, Mix(dim // heads)
        self.loss = None
    def forward(self, x):
        assert x.shape[-1] % self.heads == 0
        return self.mix(x.unflatten(-1, (self.heads, -1))).flatten(-2)

class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return self.linear(x)

class Large(nn.Module):
    """Needs 64 points: an example that is made smaller than that raises."""
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 1)
    def forward(self, x):
        if x.shape[1] < 64:
            raise ValueError("too few points")
        return self.linear(x)

def loss(prediction, target, weight=None):
    return ((prediction - target) ** 2).mean()

def from_test(x, power):
    return x ** power

def from_main(x):
    return x * 3

def from_notebook(x):
    return x * 4

def from_case(x):
    return x * 5

def picky(x):
    if not torch.equal(x, torch.eye(3)):
        raise ValueError("only the identity")
    return x * x

def uncalled(x):
    return x

if __name__ == "__main__":
    from_main(torch.randn(2, 3))
'''
README = """# pkg
```python
import torch
from pkg import Net, loss
net = Net(256, heads=8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
images = torch.randn(4, 16, 256).to("cuda")
```

Then train it:

```python
undefined_name.show()
for epoch in range(1000000):
    value = loss(net(images), torch.zeros(4, 16, 256))
    value.backward()
```

```python
from pkg import Large
Large(128)(torch.randn(2, 64, 128))
```

```python
this is no python
```

```python
from pkg import Net
other = Net(256, heads=16)
```

```python
from pkg import picky
picky(torch.eye(3))
open("written.txt", "w").write("x")
data = torch.load("weights.pt")
```
"""
TESTS = """
import unittest
import pytest
import torch
from pkg import from_case, from_test

@pytest.fixture
def power():
    return 3

@pytest.mark.parametrize("size", [4, 5])
def test_power(power, size, device):
    assert from_test(torch.randn(size, device=device), power).shape == (999,)

class Case(unittest.TestCase):
    def test_it(self):
        self.assertTrue(torch.is_tensor(from_case(torch.randn(3))))
"""
NAMES = ("Net", "Mix", "Large", "loss", "from_test", "from_main", "from_notebook", "from_case", "picky", "uncalled")


@dataclass(frozen=True)
class Mined:
    lines: list[dict[str, Any]]
    stdout: str

    def recipes(self, target: str) -> list[dict[str, Any]]:
        return [line["recipe"] for line in self.lines if line["type"] == "mined" and line["target"] == target]

    def example(self, place: str) -> dict[str, Any]:
        (line,) = [line for line in self.lines if line["type"] == "example" and line["place"] == place]
        return line


def mined(root: Path, files: dict[str, str], names: tuple[str, ...], budget_s: float = 120.0) -> Mined:
    source = root / "source"
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    said = root / "said"
    done = subprocess.run(
        [sys.executable, "-I", "-c", START, str(PROBE), str(said), str(source), str(budget_s), *names],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    assert {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()} - set(files) == set()
    return Mined([json.loads(line) for line in said.read_text(encoding="utf-8").splitlines()], done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mined:
    files = {
        "src/pkg/__init__.py": NET,
        "README.md": README,
        "tests/test_power.py": TESTS,
        "start.ipynb": json.dumps(
            {
                "cells": [
                    {"cell_type": "code", "source": "%pip install pkg\nimport torch, pkg"},
                    {"cell_type": "code", "source": "pkg.from_notebook(torch.randn(2))"},
                ]
            }
        ),
    }
    return mined(tmp_path_factory.mktemp("mining"), files, tuple(f"pkg:{name}" for name in NAMES))


def test_a_readme_gives_the_call_made_small_with_its_line(found: Mined) -> None:
    (recipe, *_) = [recipe for recipe in found.recipes("pkg:Net") if recipe["found_by"] == "readme"]
    assert recipe == {
        "constructor": "Net(32, 8)",
        "inputs": ["torch.randn((4, 2, 32))"],
        "provenance": "README.md:14",
        "found_by": "readme",
    }


def test_parts_that_an_example_calls_are_found_with_it(found: Mined) -> None:
    assert found.recipes("pkg:Mix")[0]["constructor"].startswith("Mix(")


@pytest.mark.parametrize(
    ("target", "found_by"),
    [
        ("pkg:loss", "readme"),
        ("pkg:from_test", "test"),
        ("pkg:from_main", "main"),
        ("pkg:from_notebook", "notebook"),
        ("pkg:from_case", "test"),
    ],
)
def test_each_kind_of_example_is_run(found: Mined, target: str, found_by: str) -> None:
    assert {recipe["found_by"] for recipe in found.recipes(target)} == {found_by}


def test_an_example_that_raises_when_small_is_run_less_small(found: Mined) -> None:
    (recipe, *_) = found.recipes("pkg:Large")
    assert recipe["constructor"] == "Large(128)"
    assert found.example("README.md:20")["outcome"] == "ran"


def test_what_an_example_only_builds_is_called_as_another_of_its_class_was(found: Mined) -> None:
    (recipe,) = [recipe for recipe in found.recipes("pkg:Net") if "elsewhere" in recipe["provenance"]]
    assert recipe["constructor"] == "Net(32, 2)"
    assert recipe["provenance"] == "README.md:29, called as elsewhere in README.md"


def test_numbers_are_drawn_unless_only_those_given_run(found: Mined) -> None:
    (recipe,) = found.recipes("pkg:picky")
    assert recipe["inputs"] == ["torch.eye(3).repeat((1, 1))"]
    assert all("torch.zeros" not in text for recipe in found.recipes("pkg:loss") for text in recipe["inputs"])


def test_what_became_of_each_example_is_said(found: Mined) -> None:
    assert found.example("README.md:3")["outcome"] == "ran"
    assert "undefined_name" in found.example("README.md:13")["detail"]
    assert found.example("README.md:25")["outcome"] == "skipped"
    data = found.example("README.md:34")
    assert data["outcome"] == "skipped"
    assert "weights.pt" in data["detail"]


def test_what_nothing_calls_gives_nothing(found: Mined) -> None:
    assert found.recipes("pkg:uncalled") == []


HOSTILE_MODULE = """
import torch
def f(x):
    return x * 2
def g(x):
    return x * 3
"""
HOSTILE = [
    "while 1 + 1 == 2:\n    pass\n",
    "[i for i in iter(int, 1)]",
    "import os\nos._exit(0)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "import os\nos.write(1, b'x' * 10**6)\nfor fd in range(3, 9):\n    os.write(fd, b'{\"type\": \"mined\"}\\n')",
    "print('x' * 10**8)",
    "import sys\nsys.exit(3)",
    "open('here.txt', 'w').write('x')",
    "import torch\ntorch.randn = None",
    "def r():\n    return r()\nr()",
    "import socket\nsocket.create_connection(('192.0.2.1', 80))",
    "import time\ntime.sleep(10**6)",
    "from pkg import f\nf(torch.randn(2, 3))",
]


def test_examples_that_do_their_worst_cost_only_themselves(tmp_path: Path) -> None:
    files = {"pkg.py": HOSTILE_MODULE}
    for number, code in enumerate(HOSTILE):
        files[f"docs/{number:02}.md"] = f"```python\nimport pkg, torch\npkg.g\n{code}\n```\n"
    said = mined(tmp_path, files, ("pkg:f", "pkg:g"), budget_s=150.0)
    outcomes = [said.example(f"docs/{number:02}.md:2") for number in range(len(HOSTILE))]
    by_outcome = {
        "timed_out": {1},
        "raised": {2, 3, 9},
        "skipped": {10},
    }
    for outcome, numbers in by_outcome.items():
        for number in numbers:
            assert outcomes[number]["outcome"] == outcome, outcomes[number]
    assert said.recipes("pkg:f")[0]["inputs"] == ["torch.randn((2, 3))"]
    assert said.recipes("pkg:g") == []
    assert "xxxx" not in said.stdout


def test_a_module_whose_import_ends_the_process_costs_only_its_own_targets(tmp_path: Path) -> None:
    files = {
        "script.py": "import os\nos._exit(0)\n",
        "pkg.py": HOSTILE_MODULE,
        "a.md": "```python\nimport script\nscript.g(1)\n```\n",
        "b.md": "```python\nimport torch\nfrom pkg import f\nf(torch.randn(2, 3))\n```\n",
    }
    said = mined(tmp_path, files, ("script:g", "pkg:f"), budget_s=60.0)
    assert said.example("a.md:2")["outcome"] == "raised"
    assert said.example("b.md:2")["outcome"] == "ran"
    assert said.recipes("pkg:f")[0]["provenance"] == "b.md:4"
    assert said.recipes("script:g") == []
