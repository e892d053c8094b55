"""Point-to-point operations in constructed records (provenance: constructed; Gloo records none)."""

from constructed_jobs import Job
from test_alignment_constructed import codes, of


def p2p(job: Job, key: str, rank: int, op: str, peer: str) -> None:
    job.call(rank, key, 0, op, is_p2p=True, peer=peer, done=False)


def test_two_ranks_that_send_first_wait_in_a_circle() -> None:
    job = Job(2)
    key = job.group("0", range(2))
    p2p(job, key, 0, "send", "0->1")
    p2p(job, key, 1, "send", "1->0")
    finding = of(job.findings(), "p2p.circular_wait")
    assert finding.ranks == [0, 1] and finding.attributes["operations"] == {"0": "send 0->1", "1": "send 1->0"}


def test_a_receive_that_nobody_sends_is_unmatched_and_ranks_count_within_the_group() -> None:
    job = Job(8)
    key = job.group("pp", (4, 6), "mesh_pp")
    p2p(job, key, 6, "recv", "0->1")
    finding = of(job.findings(), "p2p.unmatched")
    assert finding.ranks == [6] and finding.attributes["peers"] == {"6": 4}


def test_a_send_and_its_receive_are_in_flight() -> None:
    job = Job(2)
    key = job.group("0", range(2))
    p2p(job, key, 0, "send", "0->1")
    p2p(job, key, 1, "recv", "0->1")
    assert not {"p2p.circular_wait", "p2p.unmatched"} & codes(job.findings())


def test_a_longer_circle_is_found_and_who_waits_on_it_is_not_in_it() -> None:
    job = Job(4)
    key = job.group("0", range(4))
    for rank in range(3):
        p2p(job, key, rank, "send", f"{rank}->{(rank + 1) % 3}")
    p2p(job, key, 3, "recv", "0->3")
    found = job.findings()
    assert of(found, "p2p.circular_wait").ranks == [0, 1, 2]
    assert "p2p.unmatched" not in codes(found), "rank 3 waits for one that is held up itself"
    assert of(found, "rank.waited_for").ranks == [0, 1, 2]
