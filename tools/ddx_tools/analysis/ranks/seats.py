"""Each rank's seat: the host it runs on and its local rank, as far as the evidence shows them."""

from __future__ import annotations

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Seat
from ddx_tools.sources.host import UNKNOWN_HOST

# What a process says about itself takes precedence over logs. If sources of one kind disagree, the value stays unknown.
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
# With one log per host, each named for its host, a rank runs on the host in whose log it prints. A log in which more
# ranks print than a host can have is a log of the whole job.
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
    """The seats of all ranks with a known host or local rank, by rank."""
    seats: dict[int, Seat] = {}
    for row in store.query(_SEATS, [UNKNOWN_HOST]):
        seat = seats.setdefault(row["rank"], Seat(rank=row["rank"]))
        setattr(seat, row["kind"], row["value"] if row["kind"] == "host" else int(row["value"]))
    for row in store.query(_HOSTS_OF_LOGS, [UNKNOWN_HOST]):
        seat = seats.setdefault(row["rank"], Seat(rank=row["rank"]))
        seat.host = seat.host or row["host"]
    return seats
