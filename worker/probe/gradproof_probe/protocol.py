"""The lines spoken between the worker and the probe.

The worker writes one JSON request, which the probe reads from a file; the probe answers with one JSON object a line
on a file descriptor. Everything the probe writes is untrusted text to its parent, which validates it again
(`worker.execution.messages`); these types only keep the probe itself honest.

Request (`/job/request.json`)::

    {"protocol": 1, "source_root": "/source", "device": "cpu" | "cuda" | "sim", "seed": 0, "isolated": true,
     "limits": {"harness_s": 20, "check_s": 60, "target_s": 180, "inductor_s": 60, "batch_s": 0},
     "tolerances": {"gradcheck_rtol": …},
     "batch": [{"job": "<id>",
                "target": {"name": "pkg.a:Norm", "kind": "module", "path": "pkg/a.py", "line": 3,
                           "import_root": "", "module": "pkg.a", "qualname": "Norm", "guessed": false},
                "declared": {"constructor": "Norm(dim=8)" | null, "inputs": ["torch.randn(4, 8)"],
                             "provenance": "pyproject.toml:12"} | null,
                "mined": [{"constructor": "Norm(8)", "inputs": ["torch.randn(2, 8)"], "provenance": "README.md:12",
                           "found_by": "readme"}],
                "hypotheses": [{"rule": "GP101", "fingerprint": "…", …}],
                "checks": ["gradcheck", "compile_equivalence", "device_compare"]}]}

Answers, in order; `job` repeats the id of the batch entry::

    {"type": "ready", "torch": "2.13.0", "python": "3.11.7", "devices": ["cpu"], "import_torch_s": 1.2}
    {"type": "target_started", "job": "…"}
    {"type": "harness", "job": "…", "harness": {"source": …, "grade": …, "constructor": …, "inputs": […],
                                                "provenance": …, "reason": null, "found_by": …, "code": "…",
                                                "variants": [{"constructor": …, "inputs": […], "option": …}]} | null,
     "not_run": null | {"reason": "missing dependency", "detail": "No module named 'einops' …"},
     "kind": null | "module" | "function" | "autograd_function"}
    {"type": "check_started", "job": "…", "check": "gradcheck"}
    {"type": "check", "job": "…", "result": {"check": "gradcheck", "verdict": "fail", "device": "cpu",
        "summary": "…", "diagnosis": {"cause": "scaled_gradient", "text": "…", "numbers": {…}} | null,
        "path": "pkg/a.py" | null, "line": 3 | null, "evidence": {…}, "repro": "…" | null, "duration_s": 0.01}}
    {"type": "target_waiting", "job": "…", "not_run": {"reason": "inputs unsolved", "detail": "…"}}
    {"type": "target_finished", "job": "…"}
    {"type": "done"}

`target_waiting` stands between two `target_started` of an entry that is tried once more at the end of the batch, in
case the others show how it is called; its `harness` line is only said then. Its reason holds if nothing comes after it.

A request may ask for the repository's own examples to be run instead, with `"mine"` in the place of `"batch"`::

    "mine": {"budget_s": 60, "targets": ["pkg.a:Norm", …]}

and is answered between `ready` and `done` by one line for each example and for each call that was recorded::

    {"type": "example", "place": "README.md:12", "kind": "readme", "detail": "…",
     "outcome": "ran" | "raised" | "timed_out" | "skipped"}
    {"type": "mined", "target": "pkg.a:Norm", "recipe": {"constructor": …, "inputs": […], "provenance": "README.md:12",
                                                         "found_by": "readme"}}

Between its own process and the supervisor alone, a target that runs tells how its parts were called::

    {"type": "parts", "parts": {"pkg.a:Inner": [{"constructor": …, "inputs": […], "provenance": …}]}}

and one that runs a fixed source tells what became of the suspicions that the fix is for::

    {"type": "fix", "fix": {"<fingerprint>": {"verified": true, "reason": "…"}}}

`not_run.reason` is one of `NOT_RUN_REASONS`: a few stable words that are counted over targets.
"""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1

# What became of one of the repository's own examples.
EXAMPLE_OUTCOMES: Final = ("ran", "raised", "timed_out", "skipped")

# How a harness was come by, in rising order of cost; counted over targets.
FOUND_BY: Final = (
    "declared",
    "readme",
    "docstring",
    "main",
    "notebook",
    "test",
    "parent",
    "defaults",
    "names",
    "usage",
    "values",
    "layers",
    "source",
    "guards",
    "repair",
)

NOT_RUN_REASONS: Final = (
    "import failed",
    "missing dependency",
    "name absent after import",
    "not a target after all",
    "abstract",
    "no forward",
    "needs files",
    "constructor unsolved",
    "inputs unsolved",
    "no differentiable output",
    "training code",
    "crashed",
    "timed out",
    "out of memory",
    "budget spent",
)
# What other targets of the batch may mend, by showing how this one is called.
UNSOLVED: Final = ("constructor unsolved", "inputs unsolved")
