"""Records lab scenarios as incidents."""

from ddx_evals.recorder.record import record

__all__ = ["record"]
