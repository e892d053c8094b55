"""What each rank of a training job executes: mesh, process groups, the schedule of a step, its collectives."""
