"""Which ranks were seen alive and getting on: what such a rank wrote of an exception, it caught."""

from __future__ import annotations

from ddx_tools.stacks.view import rank_views
from ddx_tools.store import Store

_OUTSIDE_PROGRAM = "shutdown"


def living_ranks(store: Store) -> frozenset[int]:
    """The ranks whose main thread was seen in the program, and moved between looks; none unless all of them did.

    A rank that failed may live on in a thread or in its clean-up, where its peers or it stand still.
    """
    views = rank_views(store)
    if all(view.moved and view.user_stack and view.activity != _OUTSIDE_PROGRAM for view in views):
        return frozenset(view.rank for view in views)
    return frozenset()


def all_live(store: Store, living: frozenset[int]) -> bool:
    """Whether these are all ranks of the job, by the size that its processes tell."""
    size = store.query("SELECT max(world_size) AS size FROM ranks")[0]["size"]
    return size is not None and len(living) >= size
