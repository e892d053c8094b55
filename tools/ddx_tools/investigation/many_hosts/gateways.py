"""Asks hosts through gateways, in a ClusterShell tree: a failed gateway loses only the hosts behind it."""

from __future__ import annotations

import base64
import logging
import os
import pickletools
import re
from collections.abc import Iterable
from typing import Any

import ClusterShell.Task
from ClusterShell.Communication import ACKMessage, ErrorMessage
from ClusterShell.NodeSet import NodeSet
from ClusterShell.Propagation import PropagationChannel, RouteResolvingError
from ClusterShell.Worker.Tree import TreeWorker

from ddx_tools.sources.cluster.targets import MOST_HOSTS, expanded_size

_MOST_AT_ONCE = 256
"""A gateway runs this many ssh processes at a time, within the usual limit of 1,024 open files."""
_WORDS_BYTES = 400


def through_gateways(
    task: Any, topology: Any, nodes: Any, python: str, timeout: float | None = None, **how: Any
) -> Any:
    """A ClusterShell worker that starts a command on hosts through gateways; `python` is the gateways' interpreter."""
    os.environ.setdefault("CLUSTERSHELL_GW_PYTHON_EXECUTABLE", python)
    # A gateway would leave a log in /tmp; if it cannot open one, it goes on without.
    os.environ.setdefault("CLUSTERSHELL_GW_LOG_DIR", os.devnull)
    logging.getLogger("ClusterShell").addHandler(logging.NullHandler())
    ClusterShell.Task.PropagationChannel = _Channel
    task.topology = topology
    task.set_info("fanout", min(task.info("fanout"), _MOST_AT_ONCE))
    return _Tree(nodes, timeout=timeout, **how)


class _Tree(TreeWorker):  # type: ignore[misc]
    """Reports why hosts behind a lost gateway did not answer; ClusterShell's own worker ends the task or is silent."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.said: dict[str, bytes] = {}

    def hear(self, gateway: str, words: bytes) -> None:
        self.said[gateway] = (self.said.get(gateway, b"") + b" " + words)[:_WORDS_BYTES]

    def _relaunch(self, gateway: str) -> None:
        behind = list(self.gwtargets[gateway])
        try:
            super()._relaunch(gateway)
        except RouteResolvingError:
            self._target_count += len(behind)
            self._tell(gateway, behind)
            for node in behind:
                self._on_node_close(node, os.EX_PROTOCOL)
            self._check_fini()

    def _gateway_abort(self, gateway: str) -> None:
        self._tell(gateway, self.gwtargets.get(gateway, ()))
        super()._gateway_abort(gateway)

    def _tell(self, gateway: str, behind: Iterable[str]) -> None:
        words = " ".join(self.said.get(gateway, b"").decode("utf-8", "replace").split()) or "no further output"
        for node in behind:
            self._on_node_msgline(node, f"gateway {gateway} does not answer: {words}".encode(), "stderr")


class _Channel(PropagationChannel):  # type: ignore[misc]
    """Receives from a gateway: it may answer only for its own running hosts, and nothing that it sends is executed."""

    def recv(self, msg: Any) -> None:
        gateway, tree = str(self.gateway), next(iter(self.workers.values()))
        behind = tree.gwtargets.get(gateway, ())
        try:
            if isinstance(msg, ErrorMessage):
                raise ValueError(msg.reason)
            if isinstance(msg, ACKMessage):
                # The gateway works: earlier output came from its login.
                tree.said.pop(gateway, None)
            said = _text(msg.data or b"")
            msg.data_decode = lambda: said
            if named := getattr(msg, "nodes", ""):
                msg.nodes = ",".join(node for node in _nodes(named) if node in behind)
                if not msg.nodes:
                    tree.hear(gateway, said)
                    return
            super().recv(msg)
        except Exception as error:
            tree.hear(gateway, f"its output is not an answer ({error})".encode())
            self._close()


def _text(packed: bytes) -> bytes:
    """The bytes in a gateway's pickle; ClusterShell would load any pickle and run its code."""
    opcodes = pickletools.genops(base64.b64decode(packed)) if packed else ()
    return b"".join(word or b"" for code, word, _ in opcodes if "BINBYTES" in code.name)


def _nodes(text: str) -> Any:
    """A node set that names no group and not more hosts than there can be. Raises ValueError."""
    if not re.fullmatch(r"(?:[\w.:,-]|\[[\d,/-]+])+", text, re.ASCII):
        raise ValueError(f"it names {text[:60]!r}")
    if expanded_size(text) > MOST_HOSTS:
        raise ValueError(f"it names {text[:60]!r}")
    return NodeSet(text)
