"""On which host each rank runs, and which one of that host it is, as far as anything that was read says it."""

from __future__ import annotations

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Seat
from ddx_tools.sources.host import UNKNOWN_HOST

# What a process says of itself counts before what stands in a log. Where sources of one kind differ, nothing is said.
_SAID = """
SELECT rank, host, local_rank, 1 AS place FROM ranks WHERE role IN ('rank', 'gone')
UNION ALL SELECT rank, host, NULL, 2 FROM stack_threads WHERE role = 'rank'
UNION ALL SELECT rank, host, NULL, 2 FROM fr_dumps
UNION ALL SELECT rank, coalesce(details->>'node', host), TRY_CAST(details->>'local_rank' AS INTEGER), 3 FROM log_events
"""
_SEATS = f"""
SELECT rank, kind, min(value) AS value FROM (
    SELECT rank, 'host' AS kind, host AS value, place FROM ({_SAID}) WHERE host IS NOT NULL AND host <> ?
    UNION ALL SELECT rank, 'local_rank', CAST(local_rank AS VARCHAR), place FROM ({_SAID}) WHERE local_rank IS NOT NULL
) WHERE rank IS NOT NULL GROUP BY rank, kind, place HAVING count(DISTINCT value) = 1 ORDER BY place DESC
"""


_MOST_ON_A_HOST = 16
# Logs of hosts, each named for its own: a rank runs where the one log lies in which it prints. A log in which more
# ranks print than a host has is one of the whole job.
_HOSTS_OF_LOGS = f"""
WITH printed AS (
    SELECT DISTINCT e.rank, m.host FROM log_events e JOIN materials m ON m.source = e.source
    WHERE e.rank IS NOT NULL AND m.rank IS NULL AND m.host IS NOT NULL AND m.host <> ?
), alone AS (
    SELECT rank, any_value(host) AS host FROM printed GROUP BY rank HAVING count(*) = 1
)
SELECT rank, host FROM alone WHERE (SELECT count(DISTINCT host) FROM alone) > 1
    AND (SELECT max(ranks) FROM (SELECT count(*) AS ranks FROM alone GROUP BY host)) <= {_MOST_ON_A_HOST}
"""


def read_seats(store: Store) -> dict[int, Seat]:
    """The seats of all ranks of which a host or a local rank is known."""
    seats: dict[int, Seat] = {}
    for row in store.query(_SEATS, [UNKNOWN_HOST]):
        seat = seats.setdefault(row["rank"], Seat(rank=row["rank"]))
        setattr(seat, row["kind"], row["value"] if row["kind"] == "host" else int(row["value"]))
    for row in store.query(_HOSTS_OF_LOGS, [UNKNOWN_HOST]):
        seat = seats.setdefault(row["rank"], Seat(rank=row["rank"]))
        seat.host = seat.host or row["host"]
    return seats
