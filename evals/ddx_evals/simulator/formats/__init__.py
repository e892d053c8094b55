"""The files of a job: flight records as pickle or JSON, Kineto traces, CUDA memory snapshots."""
