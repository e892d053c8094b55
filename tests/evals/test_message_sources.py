"""Error strings are found in sources: what is printed as an error, and nothing else."""

from __future__ import annotations

from pathlib import Path

from ddx_evals.messages.catalogue import updated
from ddx_evals.messages.printed_strings import Printed, printed_strings

CPP = """
// WARN("a comment is none");
ncclResult_t connectAll(int n) {
  if (n < 0) {
    WARN("Net : could not connect to %s (%d"
         " attempts)", name, n);
  }
  INFO(NCCL_INIT, "all is well with %d", n);
  TORCH_CHECK(n > 0, "Expected a positive number of peers but got ", n, " of them");
}
"""
PYTHON = '''
def check(rank, size):
    """Raises ValueError."""
    message = f"Rank {rank} lies outside of the group"
    if rank > size:
        raise ValueError(message)
    logger.warning("Only %s of the ranks came", rank)
    logger.info("nothing to see here")
'''


def test_what_a_tree_can_print_is_listed_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "net.cc").write_text(CPP)
    (tmp_path / "check.py").write_text(PYTHON)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_check.py").write_text(PYTHON.replace("Rank", "Test rank"))
    assert printed_strings("deepspeed", tmp_path) == [
        Printed("Rank {} lies outside of the group", "error", "check.py", "check"),
        Printed("Only {} of the ranks came", "warning", "check.py", "check"),
        Printed("Net : could not connect to {} attempts){}", "error", "net.cc", "connectAll"),
        Printed("Expected a positive number of peers but got {} of them", "error", "net.cc", "connectAll"),
    ]


def test_an_update_extends_the_releases_and_keeps_the_class() -> None:
    said = Printed("Net : could not connect to {} here", "error", "net.cc", "connect")
    (first,) = updated([], "nccl", "2.9.9", [said])
    assert (first.speaks_of, first.versions) == ("network", "2.9.9")
    (again,) = updated([first], "nccl", "2.10.3", [said])
    assert (again.id, again.speaks_of, again.versions) == (first.id, "network", "2.9.9..2.10.3")
