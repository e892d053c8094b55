"""A model's `config.json` (transformers 4 and 5): the numbers that parallel dimensions have to divide."""

from __future__ import annotations

import json

from ddx_tools.parsers.launch.degree_settings import MeshSetting, settings_of

_MOST_CHARS = 256_000
_NAMES = {
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "num_hidden_layers": "layers",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
}
_PARTS = ("text_config", "llm_config", "language_config")
"""Where models of several parts keep the language model's numbers."""


def model_settings(text: str) -> list[MeshSetting]:
    """Heads, layers and experts; nothing for any other file."""
    if len(text) > _MOST_CHARS or '"num_attention_heads"' not in text or text.lstrip()[:1] != "{":
        return []
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(tree, dict):
        return []
    parts = [tree.get(part) for part in _PARTS if isinstance(tree.get(part), dict)]
    for section in (tree, *parts):
        found = settings_of(section, _NAMES, text)
        if any(one.name == "heads" for one in found):
            return list({one.name: one for one in reversed(found)}.values())
    return []
