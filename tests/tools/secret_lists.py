"""Lists of texts that hold a secret or look as if they did, from `tests/fixtures/redaction`."""

from __future__ import annotations

import re
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "redaction"

VALUES = {
    "PW": "Gr4nite-Kestrel71",
    "PW2": "Quarz-Plover82b",
    "SYM": "xK7#m!Vq2%Tz",
    "HEX": "9f3c1a7be04d5826c1f09ab37de5480216fc9e3d",
    "HEX2": "41d7c09be2a86f35d0187bc4e95f2a6380bd1c7e",
    "UUID": "7d1f0c3a-52be-4e86-9a0f-3bc8e4d71265",
    "B64": "q83vEjRWeJq7zN3u/xAhMkNUZXaHmKm6y9zt7g+PECE=",
    "B64S": "wJb8rXUtnFEMIzK7MDENG/bPxRfiCYzQ3kLmTaVe",
    "B64URL": "Zx81Kq-v7Yt_3nWc0Rb5Ud2Jp9Le6Ha4Sg",
    "AKID": "AKIA" + "Z7QW3MXN5PLK2RTV",
    "HFLIKE": "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNmQwEr12Ty",
    "ALNUM36": "a8Kx0Zq2Lm4Nv6Br8Tc1Yd3Wf5Hg7Js9Pk2Q",
    "ALNUM24": "b7Jw1Yp3Kl5Mu9Cq4Xd6Ve8R",
    "KEYLINE": "MIIEpAIBAAKCAQEA7bq0Zx93Lw4uQnV8hTg2YpRk5sJd1fMc6eXo",
    "KEYLINE2": "Kd83jfLq0sVnW2bTz7YxP5cRh9mGa4uE6iJo1tFvBw3yNkZlQpXr",
    "WORD1": "maple",
    "WORD2": "riverbank",
    "WORD3": "tonight",
    "WORD4": "coppersmith",
}
"""What stands for the names between @ signs. Put together, so that no scanner takes them for real ones."""

_NAME = re.compile("@(" + "|".join(sorted(VALUES, key=len, reverse=True)) + ")@")


def read_list(name: str) -> dict[str, str]:
    """The texts of a list by their titles, as they stand there."""
    parts = re.split(r"^=== (.+)\n", (FIXTURES / name).read_text(), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def secret_texts(name: str = "secret_shapes.txt") -> dict[str, tuple[str, list[str]]]:
    """The texts with values in them, and the values of each."""
    return {
        title: (_NAME.sub(lambda found: VALUES[found[1]], text), [VALUES[one] for one in _NAME.findall(text)])
        for title, text in read_list(name).items()
    }
