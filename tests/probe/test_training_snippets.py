"""The snippets that training code is made of, each right and wrong, found and called with no word of configuration.

They stand in `tests/fixtures/snippets` as a repository of their own: what can be run is read from the source, how it is
called is found by the probe, and the wrong variant fails in the check that is for it, at the line that is marked.
"""

from __future__ import annotations

from typing import Any

import pytest

from analyzer.targets import declare_targets
from tests.probe.checking import marked_faults
from tests.probe.conftest import ROOT, Spoken, speak

SNIPPETS = ROOT / "tests" / "fixtures" / "snippets"
FILES = sorted(path.name for path in SNIPPETS.glob("*.py"))

RIGHT = (
    ("checkpointing:Block", "checkpoint_equivalence"),
    ("checkpointing:train_step", "checkpoint_equivalence"),
    ("clipping:train_step_by_norm", "training_step"),
    ("clipping:train_step_by_value", "training_step"),
    ("mixed_precision:train_step", "training_step"),
    ("mixed_precision:Attention", "autocast"),
    ("accumulation:train_epoch", "accumulation_equivalence"),
    ("averaging:average_gradients", "ddp_consistency"),
    ("averaging:train_step", "ddp_consistency"),
    ("averaging:reduce_mean", "ddp_consistency"),
    ("curvature:energy", "hvp"),
    ("curvature:hessian_vector_product", "hvp"),
    ("curvature:Net", "hvp"),
    ("curvature:Swish", "gradcheck"),
    ("gradient_statistics:Watched", "gradient_flow"),
    ("gradient_statistics:Residual", "gradient_flow"),
    ("gradient_statistics:Vanishing", "gradient_flow"),
    ("gradient_statistics:Exploding", "gradient_flow"),
    ("pictures:Encoder", "portrait"),
    ("pictures:Encoder", "gradient_flow"),
    ("pictures:EncoderCut", "portrait"),
    ("pictures:EncoderOverwritten", "portrait"),
)
# Where the marked line is within another definition than the target, its name.
WRONG = (
    ("checkpointing:BlockWithOtherDropout", "checkpoint_equivalence", ""),
    ("checkpointing:BlockWithoutGradient", "checkpoint_equivalence", ""),
    ("checkpointing:train_step_without_graph", "checkpoint_equivalence", ""),
    ("clipping:train_step_by_norm_too_late", "training_step", ""),
    ("clipping:train_step_by_value_too_early", "training_step", ""),
    ("mixed_precision:train_step_clipped_scaled", "training_step", ""),
    ("mixed_precision:train_step_past_scaler", "training_step", ""),
    ("mixed_precision_without_update:train_step", "training_step", ""),
    ("mixed_precision:AttentionInFloat32Only", "autocast", ""),
    ("accumulation:train_epoch_undivided", "accumulation_equivalence", ""),
    ("accumulation:train_epoch_of_last_batches", "accumulation_equivalence", ""),
    ("accumulation:train_epoch_of_last_batches", "training_step", ""),
    ("accumulation:train_epoch_shifted", "accumulation_equivalence", ""),
    ("averaging:average_gradients_of_matrices", "ddp_consistency", ""),
    ("averaging:train_step_added", "ddp_consistency", ""),
    ("averaging:mean_over_ranks", "ddp_consistency", ""),
    ("curvature:FirstOrderSwish", "gradgradcheck", ""),
    ("curvature:NetOfFirstOrder", "hvp", "FirstOrderSwish"),
    ("gradient_statistics:WatchedAndChanged", "gradient_flow", ""),
    ("gradient_statistics:Lost", "gradient_flow", ""),
    ("pictures:EncoderCut", "gradient_flow", ""),
    ("pictures:EncoderOverwritten", "gradcheck", ""),
)
# What only waits for other ranks is not called by the other checks, and a guess is no harness that could be wrong.
LEFT_OUT = (
    ("averaging:train_step", "training_step", "waits for other ranks"),
    ("averaging:average_gradients", "accumulation_equivalence", "waits for other ranks"),
    ("averaging:reduce_losses", "ddp_consistency", "called with what its parameters suggest"),
)


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    wanted: dict[str, list[str]] = {}
    for name, check, *_ in (*RIGHT, *WRONG, *LEFT_OUT):
        wanted.setdefault(name, []).append(check)
    batch: list[dict[str, Any]] = [
        {
            "job": target.name,
            "target": {
                "name": target.name,
                "kind": target.kind.value,
                "path": target.path,
                "line": target.line,
                "import_root": target.import_root,
                "module": target.module,
                "qualname": target.qualname,
            },
            "declared": None,
            "hypotheses": [],
            "checks": wanted[target.name],
        }
        for target in declare_targets(SNIPPETS, FILES)
        if target.eligible
    ]
    return speak(SNIPPETS, batch)


def test_every_snippet_is_a_target() -> None:
    eligible = {target.name for target in declare_targets(SNIPPETS, FILES) if target.eligible}
    assert eligible == {name for name, *_ in (*RIGHT, *WRONG, *LEFT_OUT)}


def test_every_marked_fault_is_claimed() -> None:
    marked = {(file.removesuffix(".py"), name) for file in FILES for name, _, _ in marked_faults(f"../snippets/{file}")}
    claimed = {(target.partition(":")[0], within or target.partition(":")[2]) for target, _, within in WRONG}
    assert claimed == marked


@pytest.mark.parametrize(("name", "check"), RIGHT)
def test_the_right_variant_passes(spoken: Spoken, name: str, check: str) -> None:
    assert spoken.harness(name)["source"] == "synthesised"
    result = spoken.result(name, check)
    assert result["verdict"] == "pass", result["summary"]


@pytest.mark.parametrize(("name", "check", "within"), WRONG)
def test_the_wrong_variant_fails_at_its_line(spoken: Spoken, name: str, check: str, within: str) -> None:
    module, _, qualname = name.partition(":")
    marked = {
        (cause, f"{module}.py", line)
        for place, cause, line in marked_faults(f"../snippets/{module}.py")
        if place == (within or qualname)
    }
    result = spoken.result(name, check)
    assert result["verdict"] == "fail", result["summary"]
    assert (result["diagnosis"]["cause"], result["path"], result["line"]) in marked


@pytest.mark.parametrize(("name", "check", "why"), LEFT_OUT)
def test_what_can_not_be_called_so_is_left_out_with_the_reason(spoken: Spoken, name: str, check: str, why: str) -> None:
    result = spoken.result(name, check)
    assert result["verdict"] == "skipped", result["summary"]
    assert why in result["summary"]


@pytest.mark.parametrize(
    ("name", "more_or_less", "advice"),
    [("Vanishing", -1, "add residual connections"), ("Exploding", 1, "clip_grad_norm_"), ("Residual", 0, "")],
)
def test_statistics_of_gradients_tell_by_how_much_they_vanish_or_explode(
    spoken: Spoken, name: str, more_or_less: int, advice: str
) -> None:
    scale = spoken.result(f"gradient_statistics:{name}", "gradient_flow")["evidence"]["scale"]
    assert len(scale["layers"]) == 12
    ratio = scale["first_to_last"]
    assert (ratio > 1e4) - (ratio < 1e-4) == more_or_less
    assert advice in " ".join(scale.get("advice", ()))


def test_the_picture_marks_what_a_cut_leaves_without_gradient(spoken: Spoken) -> None:
    whole, cut = (spoken.result(f"pictures:{name}", "portrait") for name in ("Encoder", "EncoderCut"))
    lost = [name for box in cut["evidence"]["graph"]["nodes"] for name in box.get("lost", {}).get("none", ())]
    assert sorted(lost) == ["inner.bias", "inner.weight"]
    assert not any("lost" in box for box in whole["evidence"]["graph"]["nodes"])


def test_the_profile_says_which_module_took_how_long_and_that_a_backward_raises(spoken: Spoken) -> None:
    whole, overwritten = (
        spoken.result(f"pictures:{name}", "portrait")["evidence"] for name in ("Encoder", "EncoderOverwritten")
    )
    assert whole["profile"]["forward_ms"] > 0 < whole["profile"]["backward_ms"]
    assert "backward" not in whole
    assert "modified by an inplace operation" in overwritten["backward"]
