"""Secrets in the ways that shells, configuration files, tables, messages and tools write them, and what looks alike."""

from __future__ import annotations

import time

import pytest

from ddx_tools.redaction.text import LEFT_OUT, redact

SECRET = "Mapl3Otter"
"""Stands for each `#`."""

QUOTES = [
    "export WANDB_API_KEY=$'#'",
    "train.py --password $'#' --lr 1",
    "train.py --password=$'#'",
    'DB_PASSWORD=$"#"',
    "pw=$'#'",
    "DB_PASSWORD=abc$x'#'",
    "DB_PASSWORD=abc'#'\"#\"",
    "HF_TOKEN=abc\"#\"'#'",
    "DB_PASSWORD='abc'#",
    "DB_PASSWORD='abc'$'#'",
    "password: 'it''s #'",
    "password: 'it''s #'\nuser: bob",
    "password = 'abc' + \\\n    '#'",
    "password='\n#'",
    'password="\n#"\nstep 2',
    "password='first #\n#'",
]
WHOLE_ASSIGNMENTS = [
    'Environment="DB_PASSWORD=correct #"',
    "docker run -e 'DB_PASSWORD=correct #' img",
    "ENTRYPOINT ['docker', 'run', '-e', 'DB_PASSWORD=correct #', 'img']",
    '  - "DB_PASSWORD=correct horse #"',
    'cannot run "DB_PASSWORD=correct #"',
    '["env", "DB_PASSWORD=correct #"]',
    '{"env": ["DB_PASSWORD=correct #", "RANK=0"]}',
    '"password: correct #"',
]
ELEMENTS = [
    "<property>\n  <name>fs.s3a.secret.key</name>\n  <value>#</value>\n</property>",
    "<property><name>fs.s3a.secret.key</name>\n<value>#</value></property>",
    "[rank0]: <name>fs.s3a.secret.key</name>\n[rank0]:   <value>#</value>",
    "<key>password</key>\n<string>#</string>",
    "<dict>\n  <key>api-token</key>\n\n  <string>#</string>\n</dict>",
    "<password>\n  #\n</password>",
    "<server><password>\n#</password></server>",
]
REQUESTS = [
    "curl -sSu bob:# https://y/data.tar",
    "curl -fsSLu bob:# https://y/data.tar",
    "postgresql://:#@/db",
    "connect('postgresql://me:#@/db')",
    "redis://:#@/0",
]
TABLES = [
    "user,password,host\nbob,#,node-1\nann,#,node-2",
    "user;password\nbob;#",
    '"user","password"\n"bob","#"',
    "user\ttoken\nbob\t#\nann\t#",
    "| user | password |\n|------|----------|\n| bob  | # |\n| ann  | # |",
    "| user | token |\n| :--- | ---: |\n| bob | # |",
    "[rank0]: | user | password |\n[rank0]: |---|---|\n[rank0]: | bob  | # |",
    "secret,name\n#,bob",
    "NAME     TOKEN\nbob      #\nann      #",
    "USER  HOST  PASSWORD\nbob  node-1  #",
]
FIELDS = [
    '{"Key":"token","Value":"#"}',
    '{"Key": "auth_token", "Value": "#"}',
    '{"name":"API_TOKEN","value":"#"}',
    '[{"Name": "RANK", "Value": "0"}, {"Name": "password", "Value": "#"}]',
    "password={#}",
    "password=[#]",
    "password=(#)",
    "password: {#}",
    "password: [#]",
    "DB_PASSWORD={correct #}",
    "[rank0]: password:\n[rank0]:   #",
    "12:00:01 INFO password:\n12:00:01 INFO #",
    "2026-11-22 10:00:00,123 INFO train: password:\n2026-11-22 10:00:00,123 INFO train: #",
    "password changed from a to #",
    "password changed from 'a' to '#'",
    "Enter passphrase: maple riverbank #",
    "Enter passphrase for key: maple riverbank #",
    "tokens: [#]",
]
MESSAGES = [
    "token '#' expired",
    'token "#" has expired',
    "with token #",
    "logging in with token # now",
    "Incorrect API key provided: sk-#",
    "Incorrect API key provided: #. You can find your API key at https://platform.example.org",
    "using API key #",
    "Using the api key '#'",
    "invalid access token #",
]
COMMANDS = [
    "etcdctl --user root:# get x",
    "etcdctl --user=root:# get x",
    "mosquitto_pub -h h -u me -P # -t x",
    "mosquitto_sub -h h -u me -P '#'",
    "snmpget -v3 -l authPriv -X # node-1",
    "snmpwalk -v3 -A '#' -X \"#\" node-1",
    "rclone config create x sftp host h user me pass #",
    "rclone config update x pass '#'",
    "rclone obscure #",
    "conda config --set token #",
    "conda config --set anaconda_token #",
    "poetry config pypi-token.pypi #",
    "poetry config pypi-token.internal -- #",
]
LOOK_ALIKES = [
    "world_key = 'default_pg/0//nccl_key'",
    "self.password = password\nstep 2",
    "f(\n    user, password\n),\ng(a, b1)",
    "raise Missing(\n    access_key_id, secret_access_key\n),",
    "One of `'secret'`, `'private'`, or `'public'`.",
    "fmt = 'Cannot refresh credentials: token required.'",
    "store_key = default_pg/0//cuda//0",
    "password='\nstep 2 of 'x' done",
    "password='\ndon't\n",
    "<secret>\n  <name>node12ab</name>\n</secret>",
    "user='DB_PASSWORD' host='node-1x'",
    "bash -c 'export HF_TOKEN=$X' && echo 'step12' 'node-7x'",
    "self.password = password\nloss 2.5",
    "HF_TOKEN=$HF_TOKEN RANK='$RANK'",
    "sh -c 'export HF_TOKEN=$X' && echo 'step12 done'",
    "msg=$'two\\nlines' IFS=$'\\n' read",
    "export PS1=$'token> '",
    "\"RANK=0 of 8\" 'MODE=fast and loose'",
    "'tokens=12 per step' \"key=value pair\"",
    'parser.error("password: expected a string")',
    'raise ValueError("secret: see the manual of the cluster")',
    "<name>fs.s3a.endpoint</name>\n<value>node-1x:9000</value>",
    "<key>RunAtLoad</key>\n<string>yes1</string>",
    "<name>fs.s3a.secret.key</name>\n</property>\n<property>\n<name>x</name>\n<value>node12</value>",
    "<description>the password\nof node-12</description>",
    "curl -sSL https://node-1:9000/data",
    "curl -su https://node-1:9000/data",
    "https://node-1:29500/db and tcp://:29500 and postgresql:///db and redis://@/0",
    "step,tokens,loss\n1,4096,2.5\n2,8192,2.4",
    "step,token,loss\n1,4096,2.5\n2,8192,2.4",
    "token,count\nhello,3\nworld2,4",
    "key,value\nlr,0.1\nnode12,3",
    "| token | loss |\n|---|---|\n| hello | 2.5 |",
    "| name | tokens |\n|---|---|\n| run12ab | 4096 |",
    "| option | secret |\n|---|---|\n| a | no |",
    "NAME     TOKENS\nrun-7a   4096",
    "NAME  SECRET  AGE\nsa-1  registry-login  3d",
    "user, password, token and host are needed\nstep 3, loss 2.5x1234, lr 0.1, x",
    "columns: user,password\nbob, see node-12",
    '{"Key":"Name","Value":"node-12ab"}',
    '{"name":"API_TOKEN"} {"name": "x", "value": "node12"}',
    "password={} token=[] secret=()",
    "password={password} token=[token]",
    "password={self.password}",
    "password: {type: string, minLength: 12}",
    "password: [optional]",
    "password=(str)",
    "tokens: [Hello, world2, swordfish]",
    "tokens: [hello]",
    "token 'else' expected",
    "unexpected token '}' at line3",
    "token 'step12' of the batch",
    "with token embeddings",
    "with token parallelism8",
    "with token_ids 12",
    "Incorrect API key provided: none",
    "using API key authentication, see https://docs.example.org/keys2",
    "using API key from the environment variable HF_TOKEN",
    "password changed from the default to another one",
    "password changed from yesterday to today",
    "Enter passphrase: ",
    "Enter passphrase (empty for no passphrase): ",
    "etcdctl --user root get x1y2",
    "mosquitto_pub -p 1883 -t x/y1",
    "snmpget -v2c node-1 1.3.6.1",
    "rclone copy pass1x remote:x",
    "conda config --set channel_priority strict2",
    "conda config --add channels conda-forge2",
    "poetry config virtualenvs.in-project true1",
    "[rank0]: password:\n[rank0]: step 3 of 4",
    "[rank0]: loading secrets\n[rank0]: step12",
]


@pytest.mark.parametrize(
    "text",
    [*QUOTES, *WHOLE_ASSIGNMENTS, *ELEMENTS, *REQUESTS, *TABLES, *FIELDS, *MESSAGES, *COMMANDS],
)
def test_a_secret_is_redacted_however_it_is_written(text: str) -> None:
    clean = redact(text.replace("#", SECRET))
    assert SECRET not in clean and LEFT_OUT not in clean
    assert clean.count("\n") == text.count("\n") and redact(clean) == clean


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_what_looks_alike_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('"DB_PASSWORD=# python train.py --lr 1"', '"DB_PASSWORD=<redacted> python train.py --lr 1"'),
        ('"DB_PASSWORD=# is wrong for user bob"', '"DB_PASSWORD=<redacted> is wrong for user bob"'),
        ("sh -c 'export DB_PASSWORD=#' && echo 'done'", "sh -c 'export DB_PASSWORD=<redacted>' && echo 'done'"),
        ("['-e', 'DB_PASSWORD=#', 'img']", "['-e', 'DB_PASSWORD=<redacted>', 'img']"),
        ('{"a": "DB_PASSWORD=#", "b": "c"}', '{"a": "DB_PASSWORD=<redacted>", "b": "c"}'),
        ("connect(password='#', user='bob')", "connect(password='<redacted>', user='bob')"),
        ("user,password\nbob,#\n\nstep,loss", "user,password\nbob,<redacted>\n\nstep,loss"),
        ("| user | token |\n|---|---|\n| bob | # |", "| user | token |\n|---|---|\n| bob | <redacted> |"),
        ("password: #\nself.step 2", "password: <redacted>\nself.step 2"),
        ("token '#' expired at 10:00", "token '<redacted>' expired at 10:00"),
    ],
)
def test_only_the_secret_is_redacted(text: str, clean: str) -> None:
    assert redact(text.replace("#", SECRET)) == clean


@pytest.mark.parametrize(
    ("before", "one"),
    [
        ("", "PASSWORD=$'Mapl3Otter{}'\"x\"'y' "),
        ("", '"DB_PASSWORD=correct Mapl3Otter{}" '),
        ("", '{{"Key": "token", "Value": "Mapl3Otter{}"}}, '),
        ("", "password={{Mapl3Otter{}}} "),
        ("", "with token Mapl3Otter{} "),
        ("", "token 'Mapl3Otter{}' expired "),
        ("user,password\n", "bob,Mapl3Otter{}\n"),
        ("", "user,password\nbob,Mapl3Otter{}\n"),
        ("", "<key>password</key>\n<string>Mapl3Otter{}</string>\n"),
        ("", "password='\nMapl3Otter{}'\n"),
    ],
)
def test_many_secrets_take_time_in_proportion(before: str, one: str) -> None:
    text = before + "".join(one.format(number) for number in range(2000)) + "\n"
    begun = time.process_time()
    assert SECRET not in redact(text)
    assert time.process_time() - begun < 5
