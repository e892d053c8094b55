"""Hosts behind gateways: real ones of ClusterShell, on this machine, with a stand-in for ssh that starts them."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from test_many_hosts import answers, asked, printing

from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.errors import UsageError
from ddx_tools.sources.cluster.targets import reach_of

pytestmark = pytest.mark.slow

HERE = socket.gethostname().partition(".")[0]

_SPEAKS = """\
import base64, os, pickle, re, sys
class Evil:
    def __reduce__(self):
        return os.mkdir, ({directory!r} + "/executed",)
evil = base64.b64encode(pickle.dumps(Evil())).decode()
print("<channel version='1'>", flush=True)
for line in sys.stdin:
    for message in re.findall("<message ([^>]*)>", line):
        has = dict(re.findall('(\\\\w+)="([^"]*)"', message))
        print(f"<message type='ACK' msgid='1' ack='{{has['msgid']}}'></message>", flush=True)
        if has.get("action") == "shell":
            print({says!r}.format(source=has["srcid"], evil=evil), flush=True)
"""
"""A gateway that takes the command, and then says something else than what hosts said."""


def through(directory: Path, gates: str, gate_2: str, monkeypatch: pytest.MonkeyPatch) -> Investigation:
    """host-[0-2] are asked through `gates`, host-3 through gate-1 in any case; `gate_2` is what ssh to gate-2 does."""
    routes = "gate-1: host-3\ngate-2: host-[0-2]" if gates == "gate-2" else f"{gates}: host-[0-3]"
    (directory / "topology.conf").write_text(f"[routes]\n{HERE}: gate-[1-2]\n{routes}\n")
    (directory / "ssh").write_text(
        "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\n"
        f'case $1 in gate-2) {gate_2};; gate-1) exec sh -c "$2";; *) cat {directory}/$1;; esac\n'
    )
    (directory / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setenv("CLUSTERSHELL_GW_PYTHON_EXECUTABLE", sys.executable)
    monkeypatch.setenv("CLUSTERSHELL_GW_LOG_DIR", "/dev/null")
    reach = reach_of(hosts="host-[0-3]", gateways=str(directory / "topology.conf"), total_s=12.0)
    return investigate([], reach=reach)


@pytest.mark.parametrize("other", ['exec sh -c "$2"', "echo 'ssh: Connection refused' >&2; exit 255"])
def test_gateways_make_no_difference_also_where_another_one_steps_in(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = asked(answers("stopped", tmp_path), printing(tmp_path)).diagnose()
    assert through(tmp_path, "gate-[1-2]", other, monkeypatch).diagnose() == direct


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("echo 'ssh: connect to host gate-2 port 22: Connection timed out' >&2; exit 255", "Connection timed out"),
        ("echo Welcome", "syntax error"),
        ("exec sleep 60", "no further output"),
        (
            "<message type='OUT' msgid='2' srcid='{source}' nodes='host-0'>{evil}</message></channel>",
            "no further output",
        ),
        ("<message type='TIM' msgid='2' srcid='{source}' nodes='x[1-999999999]'></message>", "it names 'x"),
        (
            "<message type='RET' msgid='2' srcid='{source}' nodes='host-3' retcode='0'></message></channel>",
            "no further output",
        ),
        ("<message type='ERR' msgid='2' reason='no luck'></message>", "no luck"),
        ("<message type='RET' msgid='2' srcid='1' nodes='host-0' retcode='0'></message>", "is not an answer"),
    ],
    ids=["unreachable", "banner", "hangs", "pickle", "too-many", "of-another", "error", "misdirected"],
)
def test_a_gateway_that_fails_is_named_and_costs_only_the_hosts_behind_it(
    does: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers("stopped", tmp_path)
    if does.startswith("<"):
        (tmp_path / "gate.py").write_text(_SPEAKS.format(directory=str(tmp_path), says=does))
        does = f"exec {sys.executable} {tmp_path}/gate.py"
    found = through(tmp_path, "gate-2", does, monkeypatch)
    unanswered = {host: f.attributes for f in found.findings if f.code == "host.unanswered" for host in f.hosts}
    assert sorted(unanswered) == ["host-0", "host-1", "host-2"]
    for attributes in unanswered.values():
        assert attributes["state"] == "not_asked", "they may be well: nobody knows"
        assert attributes["reason"].startswith("gateway gate-2 does not answer: ")
        assert words in attributes["reason"]
    said = found.diagnose()
    assert said.looked_at == ["1 of 4 hosts answered"]
    assert not {0, 1, 2} & {rank for suspect in said.suspects for rank in suspect.ranks}
    assert not (tmp_path / "executed").exists(), "what a gateway sends is not executed"


def test_gateways_are_for_ssh_and_begin_here(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    file.write_text(f"[routes]\n{HERE}: gate\ngate: node-[1-2]\n")
    assert (found := reach_of(hosts="node-[1-2]", gateways=str(file)))
    assert str(found.gateways).split() == [HERE, "`-", "gate", "`-", "node-[1-2]"]
    with pytest.raises(UsageError, match="only with ssh"):
        reach_of(hosts="a", via="rsh %host", gateways=str(file))
    for text in (None, "", "[routes]\nelsewhere: gate\ngate: node\n", "[routes]\nnode[: gate\n", "[routes\n"):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(UsageError, match=r"--gateways .*topology\.conf: ") as error:
            reach_of(hosts="a", gateways=str(file))
        assert f"{HERE}: gate" in (error.value.help or "")
