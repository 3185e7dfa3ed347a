"""Examples are found by reading, and made small by changing their text."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from gradproof_probe.mining.examples import Document, document_blocks, find_documents
from gradproof_probe.mining.shrinking import (
    FEW_NAME,
    MORE_NAME,
    More,
    few,
    input_sizes_of,
    shrink,
    size_map,
    sizes_of,
)

TARGETS = ("pkg.net:Net", "pkg.net:loss")


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def only(documents: list[Document]) -> Document:
    (document,) = documents
    return document


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("# Net\n\n```python\nNet(4)\n```\n", 4, "Net(4)"),
        ("  ```py\n  Net(4)\n  ```\n", 2, "Net(4)"),
        ("~~~python\nNet(4)\n~~~\n", 2, "Net(4)"),
        ("```\nimport pkg\nNet(4)\n```\n", 2, "import pkg\nNet(4)"),
        ("Use it::\n\n    import pkg\n    Net(4)\n\nand so on\n", 2, "\nimport pkg\nNet(4)\n"),
        (".. code-block:: python\n   :linenos:\n\n   Net(4)\n", 3, "\nNet(4)"),
        (">>> net = Net(4)\n>>> net(\n...     1)\n2\n", 1, "net = Net(4)\nnet(\n    1)\n"),
        ("```python\nnet = Net(4)\nprint(net)\n>>> Net()\nnet(1)\n```\n", 2, "net = Net(4)\nprint(net)\n\nnet(1)"),
        ("```python\n!pip install pkg\n%matplotlib inline\nNet(4)\n```\n", 2, "\n\nNet(4)"),
    ],
)
def test_code_of_documents_is_found_with_its_line(text: str, line: int, code: str) -> None:
    (block,) = document_blocks(text, "README.md")
    assert (block.place, block.source) == (f"README.md:{line}", code)


@pytest.mark.parametrize(
    "text", ["```bash\npip install pkg\n```\n", "```\nsome output 1 2 3\n```\n", "Note::\n\n    just words here\n"]
)
def test_what_is_no_python_is_left_out(text: str) -> None:
    assert list(document_blocks(text, "README.md")) == []


def test_the_description_of_a_wheel_is_its_readme_with_the_lines_of_the_file(tmp_path: Path) -> None:
    text = "Metadata-Version: 2.1\nName: pkg\n\n# pkg\n```python\nNet(4)\n```\n"
    document = only(find_documents(tree(tmp_path, {"pkg-1.dist-info/METADATA": text}), TARGETS))
    assert document.kind == "readme"
    assert document.blocks[0].place == "pkg-1.dist-info/METADATA:6"
    assert document.mentions == {"pkg.net:Net"}


def test_the_same_example_in_two_documents_is_taken_once(tmp_path: Path) -> None:
    fence = "```python\nNet(4)\n```\n"
    found = find_documents(tree(tmp_path, {"README.md": fence, "docs/start.md": f"# Start\n{fence}"}), TARGETS)
    assert sum(len(document.blocks) for document in found) == 1


def test_docstrings_main_blocks_notebooks_and_tests_are_found(tmp_path: Path) -> None:
    module = '''class Net:
    """A net.

    >>> Net(4)(1)
    """

def loss(x):
    """A loss.

    Example::

        loss(Net(4)(1))
    """

if __name__ == "__main__":
    print(Net(8))
'''
    cells = [{"cell_type": "markdown", "source": "Net"}, {"cell_type": "code", "source": ["%time 1\n", "Net(16)"]}]
    files = {
        "src/pkg/net.py": module,
        "start.ipynb": json.dumps({"cells": cells}),
        "tests/test_net.py": "def test_net():\n    Net(4)\n",
        "examples/run.py": "Net(5)\n",
        "other/unrelated.md": "```python\nprint(1)\n```\n",
    }
    found = {(d.kind, d.path): d for d in find_documents(tree(tmp_path, files), TARGETS)}
    assert set(found) == {
        ("docstring", "src/pkg/net.py"),
        ("main", "src/pkg/net.py"),
        ("notebook", "start.ipynb"),
        ("test", "tests/test_net.py"),
        ("main", "examples/run.py"),
    }
    docstrings = found["docstring", "src/pkg/net.py"]
    assert docstrings.separate
    assert [block.place for block in docstrings.blocks] == ["src/pkg/net.py:4", "src/pkg/net.py:11"]
    assert {block.module for block in docstrings.blocks} == {"pkg.net"}
    assert "Net(4)(1)" in docstrings.blocks[0].source
    assert found["main", "src/pkg/net.py"].blocks[0].source == "print(Net(8))"
    assert found["notebook", "start.ipynb"].blocks[0].source.strip() == "Net(16)"


def test_documents_that_name_a_target_come_first_and_a_long_file_is_left_out(tmp_path: Path) -> None:
    files = {
        "README.md": "```python\nimport pkg\n```\n",
        "zz.md": "```python\nNet(4)\n```\n",
        "long.md": "```python\nNet(5)\n```\n" + "x" * 2**20,
    }
    assert [document.path for document in find_documents(tree(tmp_path, files), TARGETS)] == ["zz.md", "README.md"]


def shrunk(source: str, strength: int = 16) -> str:
    return ast.unparse(shrink(source, size_map(sizes_of(ast.parse(source)), strength), strength=strength))


def test_sizes_keep_their_ratios_and_equal_ones_stay_equal() -> None:
    source = "v = ViT(image_size=256, patch_size=32, dim=1024, heads=8)\nx = torch.randn(1, 3, 256, 256)"
    assert shrunk(source) == "v = ViT(image_size=16, patch_size=2, dim=64, heads=8)\nx = torch.randn(1, 3, 16, 16)"


def test_different_sizes_stay_different_and_odd_ones_make_way() -> None:
    mapping = size_map({64, 65, 1000, 1024}, 16)
    assert mapping[64] == 4
    assert mapping[1024] == 64
    assert len(set(mapping.values())) == 4


def test_widths_shrink_without_the_sizes_of_the_inputs() -> None:
    source = "v = Net(image_size=224, dim=384, heads=(4, 8))\nx = torch.randn(1, 3, 224, 224)"
    tree = ast.parse(source)
    assert input_sizes_of(tree) == {224}
    small = size_map(sizes_of(tree), 16, kept=input_sizes_of(tree))
    assert small == {384: 24}
    assert ast.unparse(shrink(source, small, strength=16)) == source.replace("384", "24")
    assert 24 not in size_map({384, 512}, 16, kept={24}).values(), "a size that stays is nobody else's"


def test_nothing_is_resized_at_strength_zero() -> None:
    source = "Net(512, depth=12)"
    assert shrunk(source, 0) == source
    assert shrunk(source, 4) == "Net(128, depth=12)"
    assert shrunk(source, 16) == "Net(32, depth=2)"


@pytest.mark.parametrize(
    ("source", "small"),
    [
        ("net = Net(3).cuda()", "net = Net(3)"),
        ("net.to('cuda:0')", "net.to('cpu')"),
        ("torch.device('cuda')", "torch.device('cpu')"),
        ("vgg(pretrained=True)", "vgg(pretrained=False)"),
        ("Unet(encoder_weights='imagenet')", "Unet(encoder_weights=None)"),
        ("Loader(num_workers=4)", "Loader(num_workers=0)"),
        ("torch.manual_seed(1234)", "torch.manual_seed(1234)"),
        ("assert net(x).shape == (2, 3)", "net(x).shape == (2, 3)"),
    ],
)
def test_devices_downloads_and_assertions_are_taken_out(source: str, small: str) -> None:
    assert shrunk(source) == small


def test_long_loops_end_after_two_rounds_and_short_ones_are_kept() -> None:
    source = """
for step in range(100000): long.append(step)
for layer in [1, 2, 3]: short.append(layer)
while True: forever.append(1)
"""
    names: dict[str, object] = {"long": [], "short": [], "forever": [], FEW_NAME: few, MORE_NAME: More()}
    exec(compile(shrink(source, {}, strength=16), "example", "exec"), names)
    assert (names["long"], names["short"], names["forever"]) == ([0, 1], [1, 2, 3], [1, 1])
