"""A sealed place with only an agent's material and programs: no checkout, no truth, no other process."""

from ddx_evals.sealed.place import SealedPlace, run_beside, run_in, sealing_fails

__all__ = ["SealedPlace", "run_beside", "run_in", "sealing_fails"]
