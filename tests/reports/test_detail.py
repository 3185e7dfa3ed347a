"""What the pages of one finding and of one target show: the fix as a diff, the way there, measured errors, marks."""

from __future__ import annotations

from analyzer.findings import Edit, Fix, FixSafety, Region, Related
from services.reports.detail import check_anchor, finding_detail, named_targets, target_detail
from services.reports.document import FindingInfo
from services.reports.fix_diff import fix_diff
from services.reports.measured_errors import measured_errors
from services.reports.sources import NoSources, TreeSources
from tests.reports.samples import check, failing, finding, norm, report_of, target

SOURCE = "import torch\n\n\ndef norm(x):\n    return x / x.norm()\n"
SOURCES = TreeSources({"pkg/a.py": SOURCE.encode()})
PLACE = Region("pkg/a.py", 5, 12, 5, 24)


def info(**changes: object) -> FindingInfo:
    """A finding at the division of SOURCE, as a report has it."""
    values = {"region": PLACE} | changes
    return report_of((finding(**values),), (norm(),)).findings[0]


def test_a_fix_is_a_unified_diff_of_its_file() -> None:
    fix = Fix(FixSafety.SAFE, (Edit(Region("pkg/a.py", 5, 16, 5, 24), "(x.norm() + 1e-8)"),))
    assert fix_diff(info(fix=fix), SOURCES) == (
        "--- a/pkg/a.py",
        "+++ b/pkg/a.py",
        "@@ -2,5 +2,5 @@",
        " ",
        " ",
        " def norm(x):",
        "-    return x / x.norm()",
        "+    return x / (x.norm() + 1e-8)",
        " ",
    )


def test_a_fix_of_several_lines_and_one_without_its_file() -> None:
    fix = Fix(FixSafety.UNSAFE, (Edit(Region("pkg/a.py", 4, 1, 5, 24), "def norm(x):\n    return x"),))
    lines = fix_diff(info(fix=fix), SOURCES)
    assert [line for line in lines if line[:1] in "+-"][2:] == ["-    return x / x.norm()", "+    return x"]
    assert fix_diff(info(fix=fix), NoSources()) == ()
    assert fix_diff(info(), SOURCES) == ()


def test_the_places_on_the_way_are_quoted_in_their_order() -> None:
    related = (
        Related(Region("pkg/a.py", 4, 10, 4, 11), "x may be a row of zeros"),
        Related(Region("gone.py", 1, 1, 1, 2), "a file that is not kept"),
    )
    detail = finding_detail(info(related=related), (), (), SOURCES)
    assert [(step.place, len(step.lines)) for step in detail.steps] == [("pkg/a.py:4", 1), ("gone.py:1", 0)]
    assert detail.steps[0].lines[0].marked == "x"


def test_the_check_that_decided_comes_first_and_brings_the_script() -> None:
    told = norm(
        checks=(
            failing(check="hvp", path="pkg/a.py", line=5, repro=None),
            failing(path="pkg/a.py", line=5),
            check(check="memory"),
        )
    )
    settled = report_of((finding(region=PLACE),), (told,))
    evidence: dict[str, object] = {"target": "pkg.a:Norm", "check": "gradcheck", "device": "cpu"}
    evidence["checks"] = [{"target": "pkg.a:Norm", "check": "hvp", "device": "cpu"}]
    shown = settled.findings[0].model_copy(update={"evidence": evidence})
    detail = finding_detail(shown, settled.targets[:1], settled.findings, SOURCES)
    assert [item.check.info.check for item in detail.telling] == ["gradcheck", "hvp"]
    assert detail.repro == "import torch\nprint(torch.ones(1))\n"
    assert named_targets(shown) == ("pkg.a:Norm",)


def test_evidence_that_names_nothing_names_no_target() -> None:
    odd = info().model_copy(update={"evidence": {"target": 3, "checks": ["x", {"target": ["y"]}, {"target": "t"}]}})
    assert named_targets(odd) == ("t",)
    assert finding_detail(odd, (), (), SOURCES).decisive is None


def test_an_id_on_a_page_is_made_of_harmless_letters() -> None:
    assert check_anchor(check(check="gradcheck", device="<i>cpu 0</i>")) == "gradcheck--i-cpu-0-i-"


def test_a_target_is_quoted_where_it_begins() -> None:
    shown = report_of((), (target(line=4, end_line=5),)).targets[0]
    detail = target_detail(shown, (), SOURCES)
    assert next(line for line in detail.lines if line.marked).marked == "def norm(x):"


def test_errors_are_read_in_their_shape_only_and_beyond_means_six_times_what_rounding_explains() -> None:
    rows = [
        {"dtype": "float16", "inputs": "float16", "of": "output", "worst": "", "error": 5e-3, "rounding_alone": 1e-3},
        {"dtype": "float16", "inputs": "float16", "of": "output", "worst": "y", "error": 7e-3, "rounding_alone": 1e-3},
        {"dtype": "float16", "error": "nan"},
        {"dtype": "float16", "error": 10**400, "rounding_alone": True, "not_finite": "no list"},
        {"error": 1.0},
        7,
    ]
    errors = measured_errors([check(check="autocast", evidence={"errors": rows})])
    assert [(row.what, row.error_text, row.expected_text, row.is_beyond) for row in errors] == [
        ("output", "0.005", "0.001", False),
        ("y", "0.007", "0.001", True),
        ("", "not finite", "not known", True),
        ("", "not known", "not known", False),
    ]
    assert (errors[0].length, errors[2].length, errors[3].length) == (86, 100, 0)
    assert errors[0].mark == 81
    assert measured_errors([check(evidence={"errors": "x", "tensors": {"a": 1}})]) == ()


def test_a_device_is_measured_by_tensor() -> None:
    tensors = [{"tensor": "output", "device_error": 1e-3, "cpu_error": 1e-7}] * 40
    errors = measured_errors([check(check="device_compare", device="cuda", evidence={"tensors": tensors})])
    assert len(errors) == 24
    assert errors[0].device == "cuda"
    assert errors[0].is_beyond
