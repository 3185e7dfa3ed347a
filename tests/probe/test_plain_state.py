"""What a module keeps beside what is registered: found once, copied, and called changed only where it is."""

from __future__ import annotations

import torch
from gradproof_probe.training.plain_state import Attribute, changed, leaves


class Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.tied = [self.layer.weight, self.layer.weight.detach().t()]
        self.table = torch.arange(3.0)
        self.names = {"step": 0, "loss": float("nan")}


def test_what_shares_memory_with_a_parameter_is_not_kept_beside_it() -> None:
    found = leaves(Keeps())
    assert set(found[Attribute("", "tied")]) == {"len()"}
    assert list(found[Attribute("", "table")]) == [""]


def test_a_layer_out_of_reach_is_found_with_its_tensors() -> None:
    module = Keeps()
    module.hidden = [torch.nn.Linear(2, 1)]  # type: ignore[assignment]
    assert {"[0].weight", "[0].bias"} <= set(leaves(module)[Attribute("", "hidden")])


def test_only_what_holds_something_else_has_changed() -> None:
    module = Keeps()
    before = leaves(module)
    assert changed(before, leaves(module)) == []
    module.names["step"] = 1  # type: ignore[index, operator]
    assert changed(before, leaves(module)) == [Attribute("", "names")]
    module.table.add_(1)
    module.later = "new"  # type: ignore[assignment]
    assert changed(before, leaves(module)) == [Attribute("", n) for n in ("table", "names", "later")]


def test_what_is_gone_has_changed_too() -> None:
    module = Keeps()
    before = leaves(module)
    del module.table
    assert changed(before, leaves(module)) == [Attribute("", "table")]
