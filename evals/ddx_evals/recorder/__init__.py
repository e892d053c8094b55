"""From a lab scenario to an incident."""

from ddx_evals.recorder.record import record

__all__ = ["record"]
