"""Large incidents: the same bytes every time, victims that are louder than the culprit, and one file that decides."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from ddx_evals.baselines import Case
from ddx_evals.baselines.oracle import oracle
from ddx_evals.incidents import Incident, IncidentError, load_incident, staged
from ddx_evals.incidents.validation import problems
from ddx_evals.lab_commands import simulate
from ddx_evals.large import Declaration, declarations, simulate_incident
from ddx_evals.large.material import LargeMaterial, material
from ddx_evals.scoring import Replayed, score
from ddx_evals.simulator.formats.dump_style import Format
from ddx_evals.simulator.running import Wish, run
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.model.errors import UsageError
from ddx_tools.sources.bundle import Bundle

DECLARED = declarations()
CULPRIT = 11
ANSWER = {
    "prompt": "What is wrong?",
    "cause": "rank-crashed",
    "evidence": [{"artefact": "raw/*/*/*rank_11.log*", "pattern": "KeyError: 'mask'"}],
    "full": {"verdict": "diagnosed"},
    "log_only": {"verdict": "diagnosed"},
    "deciding_fact": "the traceback in the log of one rank",
    "deciding_words": "traceback|log",
}
SMALL = Declaration.model_validate(
    {
        "id": "sixteen-ranks",
        "title": "One rank raises",
        "family": "tests",
        "split": "dev",
        "incident": "abcdef",
        "seed": 2,
        "shape": {"dp": 16},
        "job": "rank_dead",
        "rank": CULPRIT,
        "dumps": "json",
        "wording": ["warnings"],
        "says": [{"who": [CULPRIT], "text": "[rank$rank]: KeyError: 'mask'"}],
        "files": [{"name": "kernel/$host.txt", "text": "nothing on $host", "instead": {"node-1": "Xid on $host"}}],
        "stacks": {"instead": {5: ["read (data.py:3)"]}},
        "answer": ANSWER,
    }
)


@pytest.fixture(scope="module")
def small() -> LargeMaterial:
    return material(SMALL)


def shipped(declared: Declaration) -> Incident:
    return load_incident(incidents_dir() / declared.split / declared.incident)


def test_the_same_declaration_makes_the_same_bytes(tmp_path: Path) -> None:
    made = [simulate_incident(SMALL, tmp_path / out) for out in ("one", "a-much-longer-name")]
    for name in ("bundle.tar.zst", "truth.yaml"):
        first, second = ((incident.directory / name).read_bytes() for incident in made)
        assert first == second
    with pytest.raises(IncidentError, match="exists"):
        simulate_incident(SMALL, tmp_path / "one")


def test_victims_print_timeouts_and_the_culprit_none(small: LargeMaterial) -> None:
    logs = {name: data.decode() for name, data in small.files.items() if name.startswith("logs/")}
    loud = {name for name, text in logs.items() if "Watchdog caught collective operation timeout" in text}
    assert loud == set(logs) - {f"logs/rank_{CULPRIT}.log"}
    deciding = [name for name, text in logs.items() if "KeyError: 'mask'" in text]
    assert deciding == [f"logs/rank_{CULPRIT}.log"]
    assert small.culprits.ranks == (CULPRIT,)


def test_the_launcher_calls_a_victim_the_root_cause(small: LargeMaterial) -> None:
    blamed = re.findall(r"rank      : (\d+)", small.files["slurm-48213.out"].decode())
    assert blamed
    assert str(CULPRIT) not in blamed


def test_a_dead_rank_leaves_a_log_and_no_dump(small: LargeMaterial) -> None:
    dumped = {int(re.findall(r"\d+", name)[0]) for name in small.files if name.startswith("dumps/")}
    assert dumped == set(range(16)) - {CULPRIT}


def test_what_differs_between_hosts_and_ranks_is_as_declared(small: LargeMaterial) -> None:
    assert small.files["kernel/node-0.txt"] == b"nothing on node-0"
    assert small.files["kernel/node-1.txt"] == b"Xid on node-1"
    reading = [name for name, data in small.files.items() if name.startswith("stacks/") and b"data.py:3" in data]
    assert reading == ["stacks/rank_5.txt"]
    assert small.hosts == {"node-0": tuple(range(8)), "node-1": tuple(range(8, 16))}


def test_nothing_is_left_of_a_host_that_was_not_collected() -> None:
    lost = SMALL.model_copy(update={"lost_hosts": ("node-1",), "says": ()})
    named = [name for name in material(lost).files if re.search(r"node-1|rank_(?:8|9|1\d)\b", name)]
    assert named == []


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_a_declaration_fills_its_words_and_tells_nothing(declared: Declaration) -> None:
    asked = declared.answer
    assert re.search(asked.deciding_words, asked.deciding_fact, re.I)
    told = " ".join([*(said.text for said in declared.says), asked.prompt]).lower()
    assert declared.id not in told
    assert asked.cause not in told


def test_a_family_belongs_to_one_split_and_an_incident_to_one_declaration() -> None:
    splits = defaultdict(set)
    for declared in DECLARED.values():
        splits[declared.family].add(declared.split)
    assert [family for family, where in splits.items() if len(where) > 1] == []
    assert len({declared.incident for declared in DECLARED.values()}) == len(DECLARED)


def test_a_quarter_or_more_blames_nobody_and_causes_are_many() -> None:
    causes = [declared.answer.cause for declared in DECLARED.values()]
    controls = [cause for cause in causes if cause in ("healthy", "undecided")]
    assert len(controls) >= len(causes) / 4
    assert len(set(causes)) >= 12


@pytest.mark.parametrize("name", ["evaluates-alone", "other-program-was-killed"])
def test_a_shipped_incident_holds_what_its_declaration_makes(name: str) -> None:
    declared = DECLARED[name]
    incident = shipped(declared)
    assert incident.truth.provenance
    assert incident.truth.provenance.command == f"ddx lab simulate {name}"
    with Bundle(incident.material) as bundle:
        read = [entry for entry in bundle.manifest.journal if entry.op == "read" and entry.path]
        kept = {entry.key: bundle.read(entry.path) for entry in read if entry.path and not entry.truncated}
    brought = {path.removeprefix("/data/collected/48213/"): data for path, data in kept.items()}
    assert brought == material(declared).files


def check_oracle(incident: Incident) -> None:
    assert problems(incident) == []
    for view in incident.views:
        with staged(incident, view) as place:
            case = Case(incident, view, place)
            said = oracle(case).diagnosis
            replayed = Replayed([*case.texts.values(), incident.truth.prompt])
        assert score(incident.truth, view, said, replayed).score == 1, view


def test_the_oracle_is_right_about_a_shipped_one() -> None:
    check_oracle(shipped(DECLARED["hot-gpu"]))


@pytest.mark.long
@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_every_shipped_one_may_be_used_and_the_oracle_is_right(declared: Declaration) -> None:
    check_oracle(shipped(declared))


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no large incident") as refused:
        simulate("gremlins", tmp_path)
    assert "hot-gpu" in refused.value.help


def test_a_wish_overrules_the_seed_and_changes_no_other_job() -> None:
    wished = run(7, "skipped_collective", 32, gloo=False, wish=Wish(Format(), (2, 4, 4, 1), 9))
    assert (wished.draft.mesh.sizes, wished.injection and wished.injection.culprits) == (
        {"pp": 2, "dp": 4, "tp": 4},
        (9,),
    )
    drawn = run(7, "skipped_collective", 32, gloo=False)
    assert drawn.draft.rank is None


@pytest.mark.parametrize(
    "changed", [{"job": "gremlins"}, {"id": "another-name"}, {"shape": {"dp": "many"}}, {"seed": None}]
)
def test_a_declaration_that_lacks_something_is_named(tmp_path: Path, changed: dict[str, object]) -> None:
    told = {**SMALL.model_dump(mode="json"), **changed}
    (tmp_path / "sixteen-ranks.yaml").write_text(yaml.safe_dump(told))
    with pytest.raises(UsageError, match=r"sixteen-ranks\.yaml"):
        declarations(tmp_path)
