"""Each public report that the product answers has its test, in exactly one module."""

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# What each part of the product answers for; a part joins `FINISHED` when it is whole.
HOMES = {
    "engine": "A-1 A-3 A-4 G-1 G-2 G-3 G-4 G-5 G-6 G-7 G-8 H-1 H-2 H-3 H-4 H-6 H-7 H-8 I-1 I-3 I-4 I-7 I-8",
    "ledger": "A-2 A-5 B-1 B-2 B-3 B-4 B-5 B-6 H-5 H-9 I-5 I-6",
    "approvals": "C-1 C-2 C-3 C-4 C-5 C-6 D-1 D-2 D-3 D-4 D-5 D-6 D-8 D-9 D-10 I-2 J-8",
    "admin": "D-7 F-7 F-8 F-9 F-10",
    "streams": "E-1 E-2 E-3 E-4 E-6 E-7 F-1 F-2 F-3 F-4 F-5 F-6 J-3 J-7",
    "agents": "E-5 J-1",
    "trust": "J-2 J-4 J-5 J-6",
}
FINISHED = ("engine", "ledger", "approvals")
_MARK = re.compile(r'mark\.case\("([A-J]-\d+)"\)')


def homes_found() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for case in _MARK.findall(path.read_text()):
            found[case].add(str(path.relative_to(TESTS)))
    return found


def test_each_case_has_one_module() -> None:
    found = homes_found()
    known = {case for cases in HOMES.values() for case in cases.split()}
    assert len(known) == 77
    assert found.keys() <= known
    assert {case: sorted(modules) for case, modules in found.items() if len(modules) > 1} == {}


def test_a_finished_part_answers_every_case_of_its_own() -> None:
    due = {case for part in FINISHED for case in HOMES[part].split()}
    assert due - homes_found().keys() == set()
