"""What the plans of all scenarios leave out. A plan that leaves out more compares less, and the case passes all the same.

LOCKSTEP_RESULTS names the results of a run of all scenarios on cpu; CTest runs them before.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

# Collectives that no plan has, and those of cases without a plan.
EXPECTED = re.compile(r"(user|checkpoint|steps that must fail): |\d+ other collectives?: the plan was not judged$")
# Scenarios in which the layout of a tensor gets lost, and the operation after which it is unknown.
UNKNOWN_LAYOUTS = {
    "beyond/plan_beside_unknown_layouts": "`transpose` of",
    "beyond/states_of_other_layouts": "`matmul` of",
    "bugs/weights_on_sharded_activations": "`add` of",
}
JUDGED_SHARE = 0.6  # of the cases that pass, at least


@pytest.fixture(scope="module")
def cases():
    path = Path(os.environ["LOCKSTEP_RESULTS"])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in lines if row.get("kind") == "case" and row["status"] == "PASS"]


def test_plans_follow_every_layout_but_the_stated_ones(cases):
    lost: dict[str, set[str]] = {}
    for row in cases:
        for text in row.get("not_planned", []):
            if not EXPECTED.match(text):
                lost.setdefault(row["scenario"], set()).add(text)
    for scenario, operation in UNKNOWN_LAYOUTS.items():
        assert any(operation in text for text in lost.get(scenario, ())), f"{scenario} loses no layout any more: take it out"
    more = {scenario: sorted(texts) for scenario, texts in lost.items() if scenario not in UNKNOWN_LAYOUTS}
    assert not more, f"the plans leave out more than before: {more}"


def test_cases_without_a_plan_say_why(cases):
    reasons = [row["plan"]["reason"] for row in cases if isinstance(row["plan"], dict) and not row["plan"]["judged"]]
    kinds = {reason.split(":")[0] for reason in reasons}
    assert kinds <= {"nothing to plan", "unplanned", "ended early"}, kinds
    assert len(cases) - len(reasons) >= JUDGED_SHARE * len(cases)
