"""Notebooks are analysed cell by cell as one module, and places are told in cells and their lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from analyzer.engine import analyze_source
from analyzer.findings import Finding
from analyzer.notebooks import read_notebook, source_lines

FAULT = "y = x / x.norm(dim=-1)"


def notebook(cells: Sequence[str | tuple[str, str]], **metadata: object) -> str:
    """A notebook of these cells; a pair is (kind, text)."""
    made = [("code", cell) if isinstance(cell, str) else cell for cell in cells]
    return json.dumps(
        {
            "cells": [{"cell_type": kind, "source": text.splitlines(keepends=True)} for kind, text in made],
            "metadata": metadata,
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
    )


def findings(text: str | bytes) -> tuple[Finding, ...]:
    return analyze_source(text, "n.ipynb").findings


def places(text: str | bytes) -> list[tuple[str, str]]:
    return [(finding.rule, finding.region.place) for finding in findings(text)]


def test_a_finding_is_told_by_cell_and_line_and_text_cells_count() -> None:
    text = notebook(["import torch", ("markdown", "# Norms\n"), f"def f(x):\n    {FAULT}\n    return y\n"])
    (finding,) = findings(text)
    region = finding.region
    assert (finding.rule, region.place) == ("GP102", "n.ipynb:cell 3:2")
    assert (region.cell, region.start_line, region.start_column, region.end_line, region.end_column) == (3, 2, 9, 2, 27)


def test_names_of_earlier_cells_are_known() -> None:
    assert places(notebook(["import torch\nfrom torch.nn.functional import normalize as n", "z = n(x)", FAULT])) == [
        ("GP102", "n.ipynb:cell 3:1")
    ]


def test_the_source_may_be_one_string_and_the_format_an_old_one() -> None:
    whole = {"cells": [{"cell_type": "code", "source": f"import torch\n{FAULT}"}]}
    assert places(json.dumps(whole)) == [("GP102", "n.ipynb:cell 1:2")]
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["import torch\n", FAULT]}]}]}
    assert places(json.dumps(old)) == [("GP102", "n.ipynb:cell 1:2")]


MAGICS = [
    "%matplotlib inline\n",
    "!pip install torch \\\n  numpy it's\n",
    "?torch.norm\n",
    "torch.norm?\n",
    "torch.norm??\n",
    "files = !ls *.py\n",
    "a, b = %sql select 'it\n",
    "if True:\n    !ls\n",
    "for i in a:\n    %time f(i)\n    g(i)\n",
    "%%time\n",
    "\n%%capture out\n%%timeit\n",
    "%cd a\n%cd b\n\n%cd c\n",
]


@pytest.mark.parametrize("magic", MAGICS)
def test_magics_move_nothing(magic: str) -> None:
    lines = magic.count("\n")
    text = notebook(["import torch", f"{magic}{FAULT}\n"])
    assert places(text) == [("GP102", f"n.ipynb:cell 2:{lines + 1}")]


def test_what_looks_like_a_magic_inside_strings_and_brackets_is_none() -> None:
    code = f'import torch\ntext = """\n%d of\n!important\n"""\nn = (a\n  % b)\n{FAULT}\n'
    notebook_text = read_notebook(notebook([code, "%ls"])).text
    assert notebook_text == code + "()\n".replace("()", "() ")
    assert places(notebook([code, "%ls"])) == [("GP102", "n.ipynb:cell 1:8")]


def test_cells_of_other_languages_are_passed_over() -> None:
    assert places(notebook(["import torch", "%%bash\nfor x in *; do\n", f"%%javascript\n{FAULT}", FAULT])) == [
        ("GP102", "n.ipynb:cell 4:1")
    ]


def test_a_notebook_of_another_language_is_passed_over() -> None:
    assert places(notebook(["library(torch)\nx <- 1"], language_info={"name": "R"})) == []
    assert places(notebook(["using Torch; x = 1 |> f"], kernelspec={"language": "julia"})) == []


def test_a_cell_that_is_no_python_is_reported_and_the_others_are_read() -> None:
    text = notebook(["import torch", "x = 1\ndef f(:\n", FAULT, "print 'x'"])
    assert places(text) == [
        ("GP001", "n.ipynb:cell 2:2"),
        ("GP102", "n.ipynb:cell 3:1"),
        ("GP001", "n.ipynb:cell 4:1"),
    ]
    assert "cell 2, line 2" in findings(text)[0].message
    assert len({finding.fingerprint for finding in findings(text)}) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ('{"cells": [\n{,', "not valid JSON"),
        ("[1]", "no JSON object"),
        ("{}", "no list of cells"),
        ('{"cells": 3}', "no list of cells"),
        ('{"cells": [3]}', "cell 1"),
        ('{"cells": [{"cell_type": "code", "source": 3}]}', "cell 1"),
        ('{"cells": [{"cell_type": "code", "source": ["a", 3]}]}', "cell 1"),
        ('{"cells": [{"cell_type": "code", "source": "\\u0000"}]}', "null character"),
        ("[" * 100_000, "can't be read"),
        (b"\xff\xfe\x00", "not utf-8"),
    ],
)
def test_a_damaged_notebook_is_a_note(text: str | bytes, said: str) -> None:
    (finding,) = findings(text)
    assert finding.rule == "GP002"
    assert said in finding.message


def test_the_line_of_damaged_json_is_told() -> None:
    assert findings('{"cells": [\n{,')[0].region.start_line == 2


def test_suppressions_count_in_cells_and_unused_ones_are_told_there() -> None:
    comment = "# gradproof: ignore[GP102] never zero"
    analysis = analyze_source(notebook(["import torch", f"{FAULT}  {comment}", f"z = 1  {comment}"]), "n.ipynb")
    assert [(finding.rule, finding.region.place) for finding in analysis.findings] == [("GP003", "n.ipynb:cell 3:1")]
    assert [item.finding.region.place for item in analysis.suppressed] == ["n.ipynb:cell 2:1"]


def test_related_places_and_fixes_are_told_in_cells() -> None:
    text = notebook(["import torch", f"\n\n{FAULT}"])
    for finding in findings(text):
        assert finding.region.cell == 2
        assert {edit.region.cell for edit in finding.fix.edits} <= {2}
        assert {related.region.cell for related in finding.related} <= {1, 2}


def test_the_fingerprint_survives_cells_inserted_above() -> None:
    before = findings(notebook(["import torch", FAULT]))
    after = findings(notebook(["%ls", "import torch", "z = 1\nz = 2", FAULT]))
    assert [finding.fingerprint for finding in before] == [finding.fingerprint for finding in after]


def test_nothing_of_a_notebook_is_a_target() -> None:
    text = notebook(["import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n"])
    assert analyze_source(text, "n.ipynb").targets == ()


def test_an_empty_notebook_is_fine() -> None:
    assert findings(notebook([])) == ()
    assert findings(notebook(["", "\n\n", ("raw", "x")])) == ()


@pytest.mark.parametrize("piece", ["%%time\n", "f'{\n", "'''\n", "%x\n", "x?\n", "a = (\n", "   \n", "= \n"])
def test_hostile_cells_end(piece: str) -> None:
    assert {finding.rule for finding in findings(notebook([piece * 5000]))} <= {"GP001", "GP002"}


def test_lines_of_cells_are_found_in_the_file() -> None:
    text = notebook(["import torch\n\nx = 1\n", ("markdown", "a\nb"), "y = 2\nz = 3"])
    lines = text.split("\n")
    for number, count in ((1, 3), (3, 2)):
        found = source_lines(text)[number]
        cell = json.loads(text)["cells"][number - 1]["source"]
        assert len(found) == count
        assert [json.loads(lines[line - 1].strip().rstrip(",")) for line in found] == cell


def test_lines_of_cells_in_one_string_or_in_pieces_are_found_too() -> None:
    whole = '{"cells": [\n{"source": "a\\nb\\n"},\n{"cell_type": "code", "source": [\n"a", "b\\nc",\n"d"]}]}'
    assert source_lines(whole) == {1: (2, 2), 2: (4, 4)}


def test_a_cell_that_can_not_be_parsed_does_not_take_the_others_along() -> None:
    cells = ["import torch\ndef f(x):\n    return x / x.norm()", "y = '\ud800'", "z = " + "(" * 300 + ")" * 300]
    document = json.dumps({"cells": [{"cell_type": "code", "source": source} for source in cells]})
    findings = analyze_source(document, "n.ipynb").findings
    assert [(finding.rule, finding.region.cell) for finding in findings] == [("GP102", 1), ("GP001", 2), ("GP001", 3)]
