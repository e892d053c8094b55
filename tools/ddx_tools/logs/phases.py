"""What a program was doing when it raised, from the functions of its traceback."""

from __future__ import annotations

import re

from ddx_tools.parsers.python.user_frames import module_path

# (module, function): the first that fits a frame says its phase. Names are those of torch and of the frameworks above
# it; a `step` counts in optimizers only, because everybody uses the word.
_FRAMES = (
    ("init", r"^torch/distributed/(?:distributed_c10d|rendezvous)\.py$", r"process_group|new_group|rendezvous|store"),
    ("collective", r"torch/distributed/(?:distributed_c10d|_functional_collectives)\.py$", r"."),
    ("optimizer", r"(?:^|/)(?:torch/optim|[^/]*optim[^/]*)(?:/|\.py$)", r"."),
    ("optimizer", r"^deepspeed/runtime/", r"^_?(?:take_model_)?step$"),
    ("load", r"^(?:torch/serialization\.py|torch/distributed/checkpoint/|safetensors/)", r"."),
    (
        "load",
        r".",
        r"load_state_dict$|^load_\w*(?:checkpoint|model|weights|state)|^(?:from_pretrained|_load_from_state_dict)$",
    ),
    ("backward", r"^torch/(?:_tensor\.py|autograd/)", r"backward"),
    ("backward", r".", r"^backward$"),
    ("init", r"^torch/nn/modules/module\.py$", r"^(?:to|cuda|_apply|convert|half|float|bfloat16|to_empty)$"),
    ("init", r"^(?!torch/utils/data/|multiprocessing/)", r"^(?:__init__|reset_parameters|_lazy_init|fully_shard)$"),
    ("forward", r"^torch/nn/(?:functional|modules/.*)\.py$", r"."),
    ("forward", r".", r"^forward$"),
)
_COMPILED = tuple((phase, re.compile(module), re.compile(function)) for phase, module, function in _FRAMES)
# Recomputing activations is a forward inside backward; moving a module is part of loading it.
_WIDER = {"forward": "backward", "init": "load"}


def phase_of(frames: list[str]) -> str | None:
    """init, load, forward, backward, optimizer or collective; None if no frame tells.

    `frames`: "file:line function", outermost first, as `log_events.frames` holds them. The innermost frame that
    tells decides, unless it is part of something wider.
    """
    phases = [phase for frame in reversed(frames) if (phase := _phase(frame))]
    if not phases:
        return None
    wider = _WIDER.get(phases[0])
    return wider if wider in phases else phases[0]


def _phase(frame: str) -> str | None:
    place, _, function = frame.partition(" ")
    module = module_path(place.rpartition(":")[0])
    return next((phase for phase, file, name in _COMPILED if file.search(module) and name.search(function)), None)
