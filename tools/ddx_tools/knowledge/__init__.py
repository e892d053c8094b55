"""Knowledge about torch, NCCL, launchers, messages, variables and GPUs, as data, and the modules that load it."""
