"""What a repository may configure, and what it is told when that is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.configuration import Configuration, ConfigurationError, read_configuration
from services.gates.policy import GatePolicy, RuleMode

RULES = ("NUM001", "NUM002", "FN001", "unprotected-division")
CHECKS = ("gradcheck", "compile_equivalence", "device_compare")

WHOLE = """\
[project]
name = "model"

[tool.gradproof]
include = ["src/**", "losses.py"]
exclude = ["src/vendored/"]
checks = ["gradcheck", "compile_equivalence"]
rules = { NUM001 = "block", "unprotected-division" = "comment", FN = "off" }

[tool.gradproof.tolerances]
gradcheck_rtol = 1e-4
gradcheck_atol = 0.0

[tool.gradproof.gate]
fail_on = ["error"]
fail_on_failing_check = true
fail_on_incomplete = false

[[tool.gradproof.targets]]
target = "pkg.losses:FocalLoss"
constructor = "FocalLoss(gamma=2.0)"
inputs = ["torch.randn(4, 5)", "torch.randint(0, 5, (4,))"]

# the next one
[[tool.gradproof.targets]]
target = "pkg.blocks:Block.Inner"
inputs = ["torch.randn(2, 8)"]
"""


def read(root: Path, text: str, name: str = "pyproject.toml") -> Configuration:
    (root / name).write_text(text)
    return read_configuration(root, rules=RULES, checks=CHECKS)


def mistake(root: Path, text: str, name: str = "pyproject.toml") -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        read(root, text, name)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"{name}:{caught.value.line}: ")
    return caught.value


def test_everything_that_can_be_configured_is_read(tmp_path: Path) -> None:
    configuration = read(tmp_path, WHOLE)
    assert configuration.file == "pyproject.toml"
    assert configuration.checks == ("gradcheck", "compile_equivalence")
    assert configuration.tolerances == {"gradcheck_rtol": 1e-4, "gradcheck_atol": 0.0}
    assert configuration.gate_policy == GatePolicy(
        no_failing_check=True,
        no_new_error=True,
        no_new_warning=False,
        complete=False,
        modes={"NUM001": RuleMode.BLOCK, "unprotected-division": RuleMode.COMMENT, "FN": RuleMode.OFF},
    )
    first, second = configuration.targets
    assert (first.target, first.constructor) == ("pkg.losses:FocalLoss", "FocalLoss(gamma=2.0)")
    assert first.inputs == ("torch.randn(4, 5)", "torch.randint(0, 5, (4,))")
    assert first.provenance == "pyproject.toml:19"
    assert (second.constructor, second.provenance) == (None, "pyproject.toml:25")


def test_included_and_excluded_files_follow_the_syntax_of_gitignore(tmp_path: Path) -> None:
    configuration = read(tmp_path, WHOLE)
    paths = ("losses.py", "src/pkg/a.py", "src/vendored/a.py", "src/vendored/deep/b.py", "tests/test_a.py")
    assert configuration.files(paths) == ("losses.py", "src/pkg/a.py")


def test_the_own_file_holds_the_same_keys_at_its_top(tmp_path: Path) -> None:
    configuration = read(
        tmp_path, 'exclude = ["tests/"]\n[[targets]]\ntarget = "a:B"\nconstructor = "B()"\n', "gradproof.toml"
    )
    assert configuration.file == "gradproof.toml"
    assert configuration.targets[0].provenance == "gradproof.toml:2"
    assert configuration.files(["a.py", "tests/test_a.py"]) == ("a.py",)


def test_without_a_file_everything_is_analysed_by_default(tmp_path: Path) -> None:
    configuration = read_configuration(tmp_path)
    assert configuration == Configuration()
    assert configuration.file is None
    assert configuration.checks is None
    assert configuration.files(["anything/at/all.py"]) == ("anything/at/all.py",)
    assert configuration.gate_policy == GatePolicy()


def test_a_pyproject_that_is_not_about_us_is_not_judged(tmp_path: Path) -> None:
    assert read(tmp_path, "{{ cookiecutter.name }}\n") == Configuration()
    assert read(tmp_path, '[project]\ndependencies = ["gradproof"]\n') == Configuration()


def test_two_configurations_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "gradproof.toml").write_text("")
    error = mistake(tmp_path, '[project]\nname = "x"\n[tool.gradproof]\n')
    assert error.line == 3
    assert "gradproof.toml configures as well" in error.message


def test_a_single_file_has_no_configuration(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("")
    assert read_configuration(file) == Configuration()


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("[tool.gradproof]\n\nexlude = []\n", 3, "tool.gradproof.exlude", "unknown key; did you mean exclude?"),
        ("[tool.gradproof]\ncolour = 1\n", 2, "tool.gradproof.colour", "unknown key; known are checks, exclude"),
        ("[tool.gradproof.gate]\nfail_un = []\n", 2, "tool.gradproof.gate.fail_un", "did you mean fail_on?"),
        (
            '[[tool.gradproof.targets]]\ntarget = "a:B"\nconstructer = "B()"\ninputs = ["1"]\n',
            3,
            "tool.gradproof.targets[0].constructer",
            "did you mean constructor?",
        ),
        (
            '[[tool.gradproof.targets]]\ntarget = "a:B"\nprovenance = "elsewhere:1"\ninputs = ["1"]\n',
            3,
            "tool.gradproof.targets[0].provenance",
            "unknown key",
        ),
        ("[tool.gradproof]\nrules.NUM001 = 'loud'\n", 2, "tool.gradproof.rules.NUM001", "must be 'off', 'monitor'"),
        ("[tool.gradproof.rules]\nNUM001 = 'off'\nNUM020 = 'off'\n", 3, "tool.gradproof.rules.NUM020", "NUM002?"),
        ("[tool.gradproof.rules]\nXYZ = 'off'\n", 2, "tool.gradproof.rules.XYZ", "there is no such rule"),
        (
            "[tool.gradproof]\nchecks = [\n  'gradcheck',\n  'gradchek',\n]\n",
            4,
            "tool.gradproof.checks[1]",
            "there is no check gradchek; did you mean gradcheck?",
        ),
        ("[tool.gradproof]\nchecks = ['gradcheck', 'gradcheck']\n", 2, "tool.gradproof.checks", "comes twice"),
        ("[tool.gradproof]\nchecks = 'gradcheck'\n", 2, "tool.gradproof.checks", "must be a valid tuple"),
        (
            "[tool.gradproof.tolerances]\ngradcheck_rtol = true\n",
            2,
            "tool.gradproof.tolerances.gradcheck_rtol",
            "number",
        ),
        (
            "[tool.gradproof.tolerances]\ngradcheck_rtol = nan\n",
            2,
            "tool.gradproof.tolerances.gradcheck_rtol",
            "between",
        ),
        (
            "[tool.gradproof.tolerances]\ngradcheck_tol = 0.1\n",
            2,
            "tool.gradproof.tolerances.gradcheck_tol",
            "named after",
        ),
        (
            "[tool.gradproof.tolerances]\ngradchek_rtol = 0.1\n",
            2,
            "tool.gradproof.tolerances.gradchek_rtol",
            "gradcheck_rtol?",
        ),
        (
            "[tool.gradproof.gate]\nfail_on = ['error',\n'note']\n",
            3,
            "tool.gradproof.gate.fail_on[1]",
            "'error' or 'warning'",
        ),
        ("[tool.gradproof.gate]\nfail_on_incomplete = 1\n", 2, "tool.gradproof.gate.fail_on_incomplete", "boolean"),
        ("[tool]\ngradproof = 3\n", 2, "tool.gradproof", "must be a table"),
        (
            "[tool.gradproof]\ntargets = [{ target = 'a.B', inputs = ['1'] }]\n",
            2,
            "tool.gradproof.targets[0].target",
            "module:name",
        ),
        ("[[tool.gradproof.targets]]\ninputs = ['1']\n", 1, "tool.gradproof.targets[0].target", "is required"),
        ("[[tool.gradproof.targets]]\ntarget = 'a:B'\n", 1, "tool.gradproof.targets[0]", "needs a constructor, inputs"),
        (
            "[[tool.gradproof.targets]]\ntarget = 'a:B'\ninputs = [\n'torch.randn(2)',\n'torch.randn(2',\n]\n",
            5,
            "tool.gradproof.targets[0].inputs[1]",
            "not a Python expression",
        ),
        (
            "[[tool.gradproof.targets]]\ntarget = 'a:B'\nconstructor = 'import os'\n",
            3,
            "tool.gradproof.targets[0].constructor",
            "not a Python expression",
        ),
        (
            "[[tool.gradproof.targets]]\ntarget='a:B'\ninputs=['1']\n[[tool.gradproof.targets]]\ntarget='a:B'\ninputs=['2']\n",
            4,
            "tool.gradproof.targets[1].target",
            "a:B is declared at line 1 already",
        ),
        ("[tool.gradproof]\nexclude = ['../**']\n", 2, "tool.gradproof.exclude[0]", "stay inside"),
        ("[tool.gradproof]\nexclude = ['!a']\n", 2, "tool.gradproof.exclude[0]", "can't be negated"),
        ("[tool.gradproof]\nexclude = ['']\n", 2, "tool.gradproof.exclude[0]", "must not be empty"),
        ("[tool.gradproof]\n\nexclude = [\n", 4, "", "not valid TOML"),
        ("[tool.gradproof]\nexclude = [] x\n", 2, "", "not valid TOML"),
        ("[tool.gradproof]\n'a\u202eb' = 1\n", 2, 'tool.gradproof."a\\u202eb"', "unknown key"),
    ],
)
def test_a_mistake_is_named_with_line_and_key(tmp_path: Path, text: str, line: int, key: str, says: str) -> None:
    error = mistake(tmp_path, text)
    assert (error.line, error.key) == (line, key)
    assert says in error.message


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    error = mistake(tmp_path, "[tool.gradproof]\nexlude = []\nchecks = 3\n[tool.gradproof.gate]\nx = 1\n")
    assert [one.line for one in error.mistakes] == [2, 3, 5]
    assert error.message.endswith("(and 2 more)")
    assert error.details["mistakes"][1]["key"] == "tool.gradproof.checks"  # type: ignore[index]


def test_without_the_lists_of_what_exists_any_well_formed_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "gradproof.toml").write_text("checks = ['later_check']\nrules.GP999 = 'block'\n")
    configuration = read_configuration(tmp_path)
    assert configuration.checks == ("later_check",)
    assert configuration.rules == {"GP999": "block"}


@pytest.mark.parametrize("name", ["pyproject.toml", "gradproof.toml"])
def test_a_file_in_another_encoding_is_refused_at_the_line_of_the_first_wrong_byte(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"[tool.gradproof]\n# ok\n# caf\xe9\n")
    with pytest.raises(ConfigurationError, match=rf"{name}:3: is not UTF-8"):
        read_configuration(tmp_path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "gradproof.toml").write_bytes(b"\xef\xbb\xbfexclude = ['a']\n")
    assert read_configuration(tmp_path).exclude == ("a",)


@pytest.mark.parametrize("nesting", [7_900, 3_000, 200])
def test_nesting_that_overflows_the_parser_is_a_mistake_in_the_file(tmp_path: Path, nesting: int) -> None:
    opening, closing = "[\n" * nesting, "]\n" * nesting
    error = mistake(tmp_path, f"[tool.gradproof]\nexclude = {opening}{closing}")
    assert "nested too deeply" in error.message or nesting == 200


def test_a_file_that_is_made_to_keep_the_parser_busy_is_refused(tmp_path: Path) -> None:
    assert "more than" in mistake(tmp_path, "#\n" * (1 << 17) + "\n", "gradproof.toml").message
    dotted = "a." * 3_900 + "a"
    for text in (
        f"\n{dotted} = 1\n",
        f"\n[{dotted}]\n",
        f"\nx = {{ {dotted} = 1 }}\n",
        f"\nx = [{{ {dotted} = 1 }}]\n",
    ):
        error = mistake(tmp_path, text, "gradproof.toml")
        assert (error.line, "a key has more than 100 parts" in error.message) == (2, True)
    error = mistake(tmp_path, "\n\n" + "a" * 8_001 + "= 1\n", "gradproof.toml")
    assert (error.line, "the line has more than 8,000 characters" in error.message) == (3, True)
    parts = "'='." * 1_900
    quoted = "".join(f"k{number}.{parts}a = 1\n" for number in range(30))
    assert "unknown key" in mistake(tmp_path, quoted, "gradproof.toml").message


def test_of_many_mistakes_the_first_twenty_are_told_and_all_counted(tmp_path: Path) -> None:
    error = mistake(tmp_path, "".join(f"unknown{number} = 1\n" for number in range(5_000)), "gradproof.toml")
    assert [one.line for one in error.mistakes] == list(range(1, 21))
    assert error.message.endswith("(and 4999 more)")


def test_patterns_that_take_for_ever_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = ", ".join(f"'{'*a' * 150}{number}*b'" for number in range(100))
    configuration = read(tmp_path, f"[tool.gradproof]\nexclude = [\n{patterns.replace(', ', f',{chr(10)}')}]\n")
    assert configuration.files(["a" * 200 + ".py"]) == ("a" * 200 + ".py",)
    monkeypatch.setattr("services.configuration.model._MATCHING_SECONDS", 0)
    with pytest.raises(ConfigurationError, match="take longer"):
        configuration.files(["a" * 200 + ".py"] * 2)


def test_a_directory_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_configuration(tmp_path)


def test_a_pipe_in_the_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_configuration(tmp_path)


def test_an_expression_that_nests_too_deeply_is_refused_without_harm(tmp_path: Path) -> None:
    text = f"[[tool.gradproof.targets]]\ntarget = 'a:B'\nconstructor = '{'(' * 1500}{')' * 1500}'\n"
    assert "not a Python expression" in mistake(tmp_path, text).message
    text = f"[[tool.gradproof.targets]]\ntarget = 'a:B'\nconstructor = '{'-' * 3900}1'\n"
    assert "not a Python expression" in mistake(tmp_path, text).message


def test_a_configuration_can_not_be_changed_afterwards(tmp_path: Path) -> None:
    configuration = read(tmp_path, WHOLE)
    with pytest.raises(ValueError, match="frozen"):
        configuration.exclude = ()  # type: ignore[misc]
