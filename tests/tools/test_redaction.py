from __future__ import annotations

import ast
import json
import string
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddx_tools.redaction.structures import redact_argv, redact_environment
from ddx_tools.redaction.text import MARK, redact

ALPHANUMERIC = string.ascii_letters + string.digits

random_secrets = st.text(ALPHANUMERIC, min_size=20, max_size=60).filter(
    lambda text: any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
)
base64_lines = st.lists(st.text(ALPHANUMERIC + "+/", min_size=64, max_size=64), min_size=1, max_size=20)

SHAPES = [
    "export HF_TOKEN={}",
    "WANDB_API_KEY={} python train.py",
    "AWS_SECRET_ACCESS_KEY={}",
    "AWS_ACCESS_KEY_ID={}",
    "AWS_SESSION_TOKEN={} next",
    "env: {{'HF_TOKEN': '{}', 'RANK': '0'}}",
    '{{"api_key": "{}", "rank": 1}}',
    'os.environ["HF_TOKEN"] = "{}"',
    'os.environ.setdefault("WANDB_API_KEY", "{}")',
    "wandb login --api-key {}",
    "train.py --hf-token={} --lr 0.1",
    "train.py --hub_token {}",
    '["--api-key", "{}"]',
    "git clone https://user:{}@example.org/repo.git",
    "git clone https://{}@example.org/repo.git",
    "GET https://example.org/data?access_token={}&part=3",
    "https://bucket.example.org/x?X-Amz-Signature={}",
    "redis://:{}@10.0.0.1:6379/0",
    "Authorization: Bearer {}",
    "{{'Authorization': 'Basic {}'}}",
    "curl -H 'authorization: token {}'",
    "password: {}",
    "password={} user=x",
    "client_secret={}",
    "using hf_{} to log in",
    "key sk-proj-{}",
    "ghp_{}",
    "glpat-{}",
    "eyJhbGciOiJI{0}.eyJzdWIiOiIx{0}.{0}",
]

ORDINARY = [
    "tokens/s: 12345 | loss 2.31 | tokens=4096",
    "pad_token_id=50256 eos_token='</s>' bos_token=\"<s>\" max_tokens: 2048",
    "Token indices sequence length is longer than the specified maximum (1024 > 512)",
    '[rank1]: File "/home/user/train.py", line 41, in step',
    "torch.distributed.DistNetworkError: The server socket has failed to listen. port: 29500, code: -98",
    "tcp://127.0.0.1:29500 rank=3 world_size=8",
    "init_method='env://'",
    "KeyError: 'access'",
    "NCCL INFO ncclCommSplit comm 0x55 rank 0 nranks 2 parent 0x44 color 0 key 0 commId 0x770 - Init START",
    "INFO 2026-11-21 sort_key=lambda x: x.rank, cache key 0x7ffd16d7",
    "torch._inductor.codecache: fx graph cache miss for key fkiesmvhqlojcqicb5kfjmzbhgdapfsghoos6r2uycjg5qxkytq3",
    "PrefixStore get key /default_pg/0//cpu//0/rank_3 timed out after 600000ms",
    "api_key: ~",
    "export HF_TOKEN=${HF_TOKEN:?unset}",
    "git@github.com:user/repo.git and https://example.org:8443/path?page=2",
    "num_key_value_heads=8 key=value secretary@example.org",
    "TOKENIZERS_PARALLELISM=false RANK=0 MASTER_PORT=29500 NCCL_DEBUG=INFO",
    "ProcessGroupGloo: Timed out waiting 4000ms for recv operation to complete",
    "the bearer of this message, bearer bonds",
    "uses: actions/checkout@v4, ghcr.io/org/image@sha256:0123abcd, node_modules/pkg@1.2.3:44 and eth/queue3@node7",
    "PASS test_all_reduce_8 (0.31 s)",
    "        access_token (`str`):\n            The token.",
    'return JSONResponse({"error": "Invalid webhook secret."}, status_code=403)',
    "values beside names, private keys, long random tokens, an access key, 4096 of them",
    "PASS tests/test_x.py::test_8",
    "$ cat token.json\n{",
    "$ cat /etc/hostname\nnode-17a",
    "$ ls\n$ cat tokenizer_config.json\ntokenizer1",
    "keys:\n  layer0",
    "Enter the password:\nLast login: Mon Nov 23 on node7",
    "key for rank: 3x, key for wandb run: abc, token for the step: 12",
    "logged in as root with 3 nodes; logged in as me with ssh",
    "def step(api_key, x86_mode, batch): login(user); set_epoch('epoch12'); set_token_type('type_1')",
    "wandb run / project12, user / group, 3 / 8 ranks",
    'parser.add_argument("--token-dim", type=int, default=64); parser.add_argument("--key", default="value")',
    "the password is 3 times wrong; secret is not set; the token was dropped",
    "token (step 3): 17, tokens (per rank): 4096",
    "SELECT * FROM a WHERE x = TRUE\t/\tFALSE",
    "squeue -u me -p a100; srun -n 4 -p gpu2 train.py; ssh -p 2222 node7",
]

SOURCE = """
def step(batch, token, api_key=None, *, password: str = "", secret: Optional[bytes] = None):
    token = next(tokens)
    api_key = os.environ.get("API_KEY")
    password = getpass.getpass()
    client = Client(token=token, api_key=api_key, password=password)
    parser.add_argument("--api-key", type=str)
    HF_TOKEN = os.environ["HF_TOKEN"]
    SECRET = load_secret()
    return {"token": token, "secret": secret}
"""


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25)
@given(secret=random_secrets)
def test_no_secret_survives_in_any_of_the_usual_shapes(shape: str, secret: str) -> None:
    shown = redact(shape.format(secret))
    assert secret not in shown
    assert MARK in shown


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25)
@given(secret=random_secrets)
@example(secret="DSmKEhmO9iBhwCKxcgMDnr0LYe7tPW")
def test_json_stays_json_and_a_second_pass_changes_nothing(shape: str, secret: str) -> None:
    document = json.dumps({"line": shape.format(secret), "lines": [shape.format(secret) + "\nnext"]})
    shown = redact(document)
    assert secret not in shown
    assert json.loads(shown).keys() == {"line", "lines"}
    assert redact(shown) == shown


@given(lines=base64_lines, whole=st.booleans(), as_json=st.booleans())
def test_private_keys_do_not_survive_even_cut_off(lines: list[str], whole: bool, as_json: bool) -> None:
    end = "\n-----END RSA PRIVATE KEY-----\nafter" if whole else ""
    text = "before\n-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(lines) + end
    shown = redact(json.dumps(text) if as_json else text)
    assert not any(line in shown for line in lines)
    assert "before" in shown
    assert ("after" in shown) == whole


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_log_lines_stay_as_they_are(line: str) -> None:
    assert redact(line) == line


def test_source_that_names_secrets_without_holding_any_stays_source() -> None:
    assert redact(SOURCE) == SOURCE


def test_a_secret_inside_source_leaves_the_source_parsable() -> None:
    source = 'wandb.login(key=None)\nAPI_KEY = "0123456789abcdef"\nlogin(token="hf_abcdefghij0123456789KLMN")\n'
    shown = redact(source)
    assert "0123456789" not in shown
    assert len(ast.parse(shown).body) == 3


@given(st.text(max_size=300))
def test_any_text_can_be_redacted_twice_with_the_same_result(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["train.py", "--api-key", "short", "--lr", "1"], ["train.py", "--api-key", MARK, "--lr", "1"]),
        (["train.py", "--password=short"], ["train.py", f"--password={MARK}"]),
        (["env", "HF_TOKEN=x", "python"], ["env", f"HF_TOKEN={MARK}", "python"]),
        (["train.py", "--token", "--lr", "1"], ["train.py", "--token", "--lr", "1"]),
        (
            ["train.py", "--pad-token", "0", "--tokenizer", "gpt2"],
            ["train.py", "--pad-token", "0", "--tokenizer", "gpt2"],
        ),
    ],
)
def test_a_command_line_hides_the_values_of_secret_options(arguments: list[str], shown: list[str]) -> None:
    assert redact_argv(arguments) == shown


def test_an_environment_is_reduced_to_what_concerns_distributed_training() -> None:
    environment = {
        "RANK": "3",
        "NCCL_DEBUG": "INFO",
        "SLURM_PROCID": "3",
        "SLURM_JOB_ACCOUNT": "physics",
        "HF_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/home/user",
        "RAY_AUTH_TOKEN": "x",
        "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "https://user:pass1@host",
    }
    assert redact_environment(environment) == {
        "MASTER_ADDR": f"https://{MARK}@host",
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "RAY_AUTH_TOKEN": MARK,
        "SLURM_PROCID": "3",
        "TORCHELASTIC_RUN_ID": "none",
    }


@pytest.mark.parametrize(
    ("before", "one"),
    [("\x1b[31m", "password=Tr0ub4dor{}x9Kq "), ("[", '{{"name": "HF_TOKEN", "value": "Tr0ub4dor{}x9Kq"}}, ')],
)
def test_many_secrets_in_one_line_take_time_in_proportion(before: str, one: str) -> None:
    text = before + "".join(one.format(number) for number in range(2000)) + "\n"
    begun = time.process_time()
    assert "Tr0ub4dor" not in redact(text)
    assert time.process_time() - begun < 4
