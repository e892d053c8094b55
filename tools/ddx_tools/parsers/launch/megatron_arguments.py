"""What Megatron-LM's arguments say of the model, wherever they stand: in a command, a script or a printed list of them.

Names: Megatron-LM core 0.16 training/arguments.py. The degrees among them are read with every other command line
(`ddx_tools.parsers.launchers.launch_command`).
"""

from __future__ import annotations

import re

from ddx_tools.parsers.launch.degree_settings import MeshSetting

_NAMES = {
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "num-layers": "layers",
    "num-experts": "experts",
    "seq-length": "seq_len",
}
_OPTION = re.compile(rf"--(?P<name>{'|'.join(_NAMES)})[= ]+(?P<value>[0-9]{{1,9}})(?![\w.])")
_ORDER = re.compile(r"--use-tp-pp-dp-mapping(?![\w-])")


def megatron_model(text: str) -> list[MeshSetting]:
    """What of the model a text sets; what it sets twice, differently, is not known."""
    found: dict[str, list[MeshSetting]] = {}
    for match in _OPTION.finditer(text):
        name = _NAMES[match["name"]]
        line = text.count("\n", 0, match.start()) + 1
        found.setdefault(name, []).append(MeshSetting(name, int(match["value"]), match[0], line))
    return [same[0] for same in found.values() if len({one.value for one in same}) == 1]


def stages_vary_before_replicas(text: str) -> bool:
    """Whether ranks are numbered through pipeline stages before data parallel replicas."""
    return bool(_ORDER.search(text))
