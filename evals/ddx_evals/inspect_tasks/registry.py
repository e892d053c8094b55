"""The entry points for Inspect: the task `ddx_evals/incidents` and the model `ddx/scripted`."""

from ddx_evals.inspect_tasks.scripted_model import scripted_model
from ddx_evals.inspect_tasks.task import incidents

__all__ = ["incidents", "scripted_model"]
