"""The programs of a training job's ranks: mesh, process groups, the schedule of a step, its collectives."""
