"""Views are cut from one material, in a place whose name tells nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_incidents import copied, recorded

from ddx_evals.incidents import IncidentError, View, load_incident, named_incidents, staged
from ddx_evals.incidents.views import lost_processes, wrapped_ranks
from ddx_evals.incidents.wrapped_records import wrapped, wrapped_answer
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.model.diagnosis import ProbeStatus, Verdict
from ddx_tools.parsers.flight_records.fr_pickle import load
from ddx_tools.sources.bundle import Bundle, Manifest, is_bundle
from ddx_tools.sources.hosts.rank_agent import record_parts


def manifest_of(material: Path) -> Manifest:
    with Bundle(material) as bundle:
        return bundle.manifest


def test_the_whole_view_is_the_bundle_as_it_was_recorded() -> None:
    incident = recorded("fewer-batches")
    with staged(incident, View.FULL) as material:
        assert manifest_of(material) == manifest_of(incident.material)


def test_the_log_alone_holds_what_was_printed_and_no_stack_or_record() -> None:
    with staged(recorded("fewer-batches"), View.LOG_ONLY) as material:
        files = {file.name: file.read_text() for file in material.rglob("*") if file.is_file()}
        assert not is_bundle(material)
        found = investigate([str(material)])
    assert set(files) <= {"train.log", "launcher.log", "stdout.log", "stderr.log"}
    assert "step 3 loss" in files["train.log"]
    assert not any("py-spy" in text or "write_summary" in text for text in files.values())
    assert found.diagnose().verdict is not Verdict.DIAGNOSED


def test_the_partial_view_lacks_one_rank_in_four_and_says_so() -> None:
    incident = recorded("lock-order")
    whole = manifest_of(incident.material)
    lost = lost_processes(whole, incident.id)
    with staged(incident, View.PARTIAL) as material:
        left = manifest_of(material)
        files = {file.relative_to(material).as_posix() for file in material.rglob("*") if file.is_file()}
        results = investigate([str(material)]).results
    assert len(lost) == 1
    about_lost = [e for e in left.journal if e.op in ("stack", "threads") and e.key.split()[0] in lost]
    assert not about_lost
    assert {entry.path for entry in left.journal if entry.path} == files - {"manifest.json"}
    assert len(left.journal) < len(whole.journal)
    assert any(result.status is not ProbeStatus.OK or result.problems for result in results)


def records_of(material: Path) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """The entries of each recorded answer of an agent, by rank and file."""
    found = {}
    with Bundle(material) as bundle:
        for entry in bundle.manifest.journal:
            if entry.op == "agent" and entry.path:
                head, _, payload = bundle.read(entry.path).partition(b"\n")
                header = json.loads(head)
                (record,) = record_parts(header, payload).values()
                found[header["rank"], entry.path] = load(record)["entries"]
    return found


def test_in_the_partial_view_some_records_begin_late_and_end_as_they_did() -> None:
    incident = recorded("lock-order")
    whole = records_of(incident.material)
    with staged(incident, View.PARTIAL) as material:
        left = records_of(material)
        chosen = wrapped_ranks(manifest_of(material), incident.id)
    assert chosen
    assert chosen.keys() < {rank for rank, _ in left}
    for (rank, file), entries in left.items():
        before = whole[rank, file]
        assert entries == before[-len(entries) :]
        assert (len(entries) < len(before)) == (rank in chosen and len(before) > 8)


@given(st.binary(max_size=300), st.floats(0.1, 1.0))
def test_what_is_no_record_is_left_as_it_is(data: bytes, share: float) -> None:
    assert wrapped(data, share) == data
    assert wrapped_answer(data, share) == data
    assert wrapped_answer(b'{"parts": [{"part": "fr", "bytes": %d}]}\n' % len(data) + data, share).endswith(data)


def test_a_view_is_cut_the_same_way_every_time() -> None:
    incident = recorded("lock-order")
    assert lost_processes(manifest_of(incident.material), "a") == lost_processes(manifest_of(incident.material), "a")
    cuts = {tuple(lost_processes(manifest_of(incident.material), seed)) for seed in "abcdefgh"}
    assert len(cuts) > 1


@pytest.mark.parametrize("view", View)
def test_the_place_of_a_view_names_neither_incident_nor_split(view: View) -> None:
    with staged(recorded("lock-order"), view) as material:
        assert re.fullmatch(r"job-\w+/(?:files|bundle|bundle\.tar\.zst)", "/".join(material.parts[-2:]))
        assert not any("truth" in path.name for path in material.parent.rglob("*"))
    assert not material.parent.exists()


def test_brought_files_are_replayed_without_the_truth_beside_them() -> None:
    (incident,) = named_incidents(["public/38-semlock-errno-28"])
    with staged(incident, View.FULL) as material:
        names = {path.name for path in material.parent.rglob("*")}
        assert names == {"files", *(file.name for file in incident.material.iterdir())}
    with pytest.raises(IncidentError, match="have no log-only view"), staged(incident, View.LOG_ONLY):
        pass


def test_an_incident_without_material_is_named(tmp_path: Path) -> None:
    directory = copied(recorded("fewer-batches"), tmp_path)
    (directory / "bundle.tar.zst").unlink()
    with pytest.raises(IncidentError, match="neither bundle"):
        load_incident(directory).material  # noqa: B018


@pytest.mark.long
def test_every_recorded_incident_still_opens_with_all_its_answers() -> None:
    """Most are bundles of version 1, whose files lie under the names of answers."""
    bundles = sorted(incidents_dir().rglob("bundle.tar.zst"))
    assert len(bundles) > 100
    versions = Counter[str]()
    for material in bundles:
        with Bundle(material) as bundle:
            versions[bundle.manifest.schema_] += 1
            kept = [entry.content or entry.path for entry in bundle.manifest.journal]
            assert all(bundle.file(name).is_file() for name in kept if name)
    assert versions["ddx.bundle/1"] > 100
