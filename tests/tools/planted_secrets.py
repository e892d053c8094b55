# ruff: noqa: E501
"""Secrets as jobs print, set, pass and keep them: each line with the secret in it. All are made up here."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
from collections.abc import Callable

_RANDOM = random.Random(19)
_LETTERS = string.ascii_letters + string.digits


def some(length: int, letters: str = _LETTERS) -> str:
    """A random text that holds a digit and, where the letters allow it, both cases."""
    while True:
        text = "".join(_RANDOM.choices(letters, k=length))
        if any(c.isdigit() for c in text) and text.upper() != text:
            return text


def _hex(length: int) -> str:
    return some(length, "0123456789abcdef")


def _base64(count: int) -> str:
    return base64.b64encode(_RANDOM.randbytes(count)).decode()


# Known by their look: in any sentence.
TOKENS = [
    "hf_" + some(34), "hf_" + some(34, string.ascii_letters + "7"), "api_org_" + some(34), "wandb_v1_" + some(77),
    "local-" + _hex(40), "ghp_" + some(36), "gho_" + some(36), "ghs_" + some(36),
    "github_pat_" + some(22) + "_" + some(59), "glpat-" + some(20), "glrt-" + some(20), "sk-" + some(48),
    "sk-proj-" + some(64), "sk-ant-api03-" + some(93) + "AA", "sk-or-v1-" + _hex(64), "nvapi-" + some(64),
    "gsk_" + some(52), "r8_" + some(37), "xai-" + some(80), "pplx-" + some(48), "lsv2_pt_" + _hex(32) + "_" + _hex(10),
    "AKIA" + some(16, string.ascii_uppercase + "234567abc").upper(), "ABSK" + _base64(96), "AIza" + some(35),
    "ya29." + some(90), "GOCSPX-" + some(28), "LTAI" + some(20), "dop_v1_" + _hex(64), "dckr_pat_" + some(27),
    "xoxb-1234567890123-1234567890123-" + some(24), "xapp-1-A01ABCDEF-1234567890123-" + _hex(64), "npm_" + some(36),
    "pypi-AgEIcHlwaS5vcmc" + some(80), "dapi" + _hex(32), "glsa_" + some(32) + "_" + _hex(8), "hvs." + some(95),
    "sk_live_" + some(24), "SG." + some(22) + "." + some(43), "tskey-auth-" + some(17) + "-" + some(30),
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiJ4In0" + some(8) + "." + some(43),
    "eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8v" + some(90),
    "MUNGE:" + _base64(120) + ":", "$6$" + some(16) + "$" + some(86), "123456789:AA" + some(33),
    some(3) + "8Q~" + some(34), "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQ" + some(80), some(40), some(64), some(86),
]  # fmt: skip

# Beside a name, a header or in a command: `{}` is the secret.
WEAK, STRONG, HEX = "hunter2", some(30), _hex(40)
STRUCTURES = [
    ("export HF_TOKEN={}", STRONG), ("WANDB_API_KEY={} python train.py", HEX), ("AWS_SECRET_ACCESS_KEY={}", _base64(30)),
    ("AWS_SESSION_TOKEN={} next", _base64(90)), ("COMET_API_KEY: {}", some(25)), ("NEPTUNE_API_TOKEN={}", _base64(80)),
    ("DB_PASSWORD={}", "swordfish"), ("password: {}", "swordfish"), ("password = {}", WEAK), ("pwd={}x;", "Pa$$w0rd"),
    ("  wandb_api_key ................................... {}", HEX), ("│ api_key      │ {} │", STRONG),
    ("MLFLOW_TRACKING_PASSWORD={}", "tiger"), ("KAGGLE_KEY={}", _hex(32)), ("SLURM_JWT={}", some(60)),
    ("env: {{'HF_TOKEN': '{}', 'RANK': '0'}}", STRONG), ('{{"api_key": "{}", "rank": 1}}', "short one"),
    ('{{"apiKey": "{}"}}', WEAK), ('{{"wandbApiKey" : "{}"}}', HEX), ("Namespace(lr=0.1, hf_token='{}')", STRONG),
    ('{{"name": "aws_secret_access_key", "repr": "{}"}}', "'quite short'"), ("<password>{}</password>", WEAK),
    ('{{"name": "HF_TOKEN", "value": "{}"}}', WEAK), ("name: HF_TOKEN, value: {}", WEAK),
    ('os.environ["HF_TOKEN"] = "{}"', STRONG), ('os.environ.setdefault("WANDB_API_KEY", "{}")', HEX),
    ('login(token="{}")', STRONG), ('client_secret = "{}"', WEAK), ('API_KEY = "{}"', "abc def"),
    ("wandb login {}", HEX), ("wandb login --relogin {}", HEX), ("train.py --wandb-key {} --lr 1", WEAK),
    ("train.py --x-key={} --lr 1", WEAK), ("train.py --x-token {} --lr 1", WEAK), ("train.py --hub_token {}", STRONG),
    ('["--api-key", "{}"]', WEAK), ("['train.py', '--wandb-key', '{}']", WEAK), ("--db.password={}", "tiger"),
    ("curl -u someone:{} https://example.org", "tiger"), ("sshpass -p {} ssh node-1", "tiger"),
    ("docker login -u me -p {} registry.example.org", "tiger"), ("mysql -u root -p{} db", "tiger"),
    ("git clone https://user:{}@example.org/repo.git", "tiger"), ("git clone https://{}@example.org/repo.git", STRONG),
    ("redis://:{}@10.0.0.1:6379/0", "tiger"), ("postgresql://me:{}@db.example.org/x", "ti/ger"),
    ("GET https://example.org/data?access_token={}&part=3", STRONG), ("https://x.example.org/y?key={}", some(20)),
    ("https://bucket.example.org/x?X-Amz-Signature={}&x=1", _hex(64)),
    ("https://a.blob.core.windows.net/c?sv=2022&sig={}", some(40) + "%3D"),
    ("https://storage.example.org/b?X-Goog-Signature={}", _hex(80)),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x", _base64(64)),
    ("https://hooks.slack.com/services/{}", "T0123ABCD/B0123ABCD/" + some(24)),
    ("https://discord.com/api/webhooks/{}", "112233445566/" + some(60)),
    ("https://x.webhook.office.com/webhookb2/{}", _hex(32) + "@" + _hex(32)),
    ("Authorization: Bearer {}", STRONG), ("{{'Authorization': 'Basic {}'}}", _base64(20)),
    ("curl -H 'authorization: token {}'", STRONG), ("> Proxy-Authorization: Digest {}", STRONG),
    ("Cookie: session={}; theme=dark", STRONG), ("Set-Cookie: sid={}; Path=/", STRONG), ("X-Api-Key: {}", WEAK),
    ("machine api.wandb.ai login user password {}", HEX), ('{{"auths": {{"x.io": {{"auth": "{}"}}}}}}', _base64(24)),
    ("//registry.npmjs.org/:_authToken={}", STRONG), ("db.example.org:5432:train:me:{}", "tiger"),
    ("my wandb api key is {}", HEX), ("ssh_passphrase => {}", "tiger"), ('<add key="Password" value="{}"/>', "tiger"),
    ("export FOO_PASS={}", "tiger"), ("FOO_PASS='{}' srun x", "ti ger"), ("db_pw: {}", "tiger"), ("ldap_bind_pw={}", "tiger"),
    ("{{'user': 'me', 'pass': '{}'}}", "tiger"), ("requirepass {}", "tiger"), ("hub_token='{}',", "abcdef"),
    ("jdbc:oracle:thin:scott/{}@//h:1521/x", "tiger"), ('auth=("me", "{}")', "tiger"), ("HTTPBasicAuth('me', '{}')", "tiger"),
    ("ssh-keygen -t rsa -N '{}'", "tiger"), ("openssl rsa -passin pass:{} -in k", "tiger"), ("mongo -u u -p {} --host h", "tiger"),
    ("ipmitool -U admin -P {} power", "tiger"), ("echo {} | sudo -S apt", "tiger1x"), ("lftp -u me,{} ftp", "tiger"),
    ("mc alias set s3 http://h:9000 {}", "minioadmin tigertiger1"), ("curl -b 'session={}' u", STRONG), ("using password '{}'", "tiger"),
    ("api key [{}] rejected", HEX), ("token {} is expired", some(30)), ("invalid token '{}'", STRONG), ("hmac secret {}", HEX),
    ('Settings(api_key=SecretStr("{}"))', "tiger x"), ("NTLM {}", _base64(60)), ("otp: {}", "482910"),
    ("AWS4-HMAC-SHA256 Credential=x, Signature={}", _hex(64)), ('{{"username":"u","key":"{}"}}', WEAK),
    ("+trainer.logger.api_key={}", WEAK), ("passwd:\t{}", "tiger"), ("client-key-data: {}", _base64(60)),
]  # fmt: skip

# Shapes that nobody had in mind who wrote the rules: of the first 97 of these, 21 were left at first sight, of the other 79 24.
SHORT = "tiger9"
HELD_OUT = [
    ("export SECRET_KEY_BASE='{}'", _hex(64)),
    ("PIN: {}", "482913"), ("pin={} ok", "4829"), ("password=<{}>", SHORT), ("pw={}", SHORT),
    ("pw={} host=x", "Tiger9"), ('expect "assword:"; send "{}\\r"', SHORT),
    ('expect "*assword*" {{ send "{}\\r" }}', SHORT), ("snmp-server community {} RO", SHORT),
    ("snmpwalk -v2c -c {} node-1", SHORT), ("net use Z: \\\\srv\\share {} /user:me", SHORT),
    ("net use Z: \\\\srv\\share /user:me {}", SHORT), ("access key id: {}", some(20)),
    ('"private_key_id": "{}"', _hex(40)), ('{{"key": "{}"}}', _hex(32)), ('"key": "{}"', _hex(64)),
    ("ansible_become_pass: {}", SHORT), ('ansible-playbook -e "ansible_ssh_pass={}" x.yml', SHORT),
    ("smbclient //h/s -U me%{}", SHORT), ("mount -t cifs //h/s /m -o username=me,password={},vers=3", SHORT),
    ("PGPASSWORD={} psql -h h", SHORT), ("redis-cli -a {} ping", SHORT), ("ldapsearch -D cn=x -w {} -b dc=x", SHORT),
    ('echo "me:{}" | chpasswd', SHORT), ("aws configure set aws_secret_access_key {}", _base64(30)),
    ("az login --service-principal -u id -p {} --tenant t", SHORT),
    ("az storage blob upload --account-key {}", _base64(64)),
    ("kubectl create secret generic x --from-literal=password={}", SHORT),
    ("kubectl create secret docker-registry r --docker-password={}", SHORT),
    ("helm install x ./c --set db.password={}", SHORT), ('docker run -e "DB_PASS={}" image', SHORT),
    ('curl -H "X-Auth-Token: {}" u', some(40)), ('curl -H "PRIVATE-TOKEN: {}" u', SHORT),
    ("curl --oauth2-bearer {} u", SHORT), ("wget --http-password={} u", SHORT), ("http -a me:{} https://h", SHORT),
    ("openssl enc -aes-256-cbc -k {}", SHORT), ("gpg --batch --passphrase {} -c f", SHORT),
    ("zip -P {} a.zip f", SHORT), ("7z x -p{} a.7z", SHORT), ("vault kv put secret/x password={}", SHORT),
    ("Unseal Key 1: {}", _base64(33)), ("Initial Root Token: s.{}", some(24)),
    ("http://127.0.0.1:8888/lab?token={}", _hex(48)), ("ray start --head --redis-password={}", SHORT),
    ("ray.init(_redis_password='{}')", SHORT), ("Server=h;Database=d;User Id=u;Password={};Encrypt=yes", SHORT),
    ("mongodb+srv://u:{}@c.mongodb.net/x", SHORT), ('smtp.login("me", "{}")', SHORT),
    ('{{"AccessKeySecret": "{}"}}', SHORT),
    ("Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey={}", _base64(32)), ("Authorization: ApiKey {}", SHORT),
    ("Ocp-Apim-Subscription-Key: {}", _hex(32)), ('Digest username="u", realm="r", response="{}"', _hex(32)),
    ("wandb: Paste an API key from your profile and hit enter: {}", HEX), ("Enter password for me: {}", SHORT),
    ("Password for user me is {}", SHORT), ("your password has been set to {}", SHORT),
    ("login: me  password: {}", SHORT), ("credentials: me/{}", SHORT), ("user=me pass={} host=h", SHORT),
    ("otpauth://totp/x?secret={}&issuer=x", "JBSWY3DPEHPK3PXP"), ("psk={}", "tiger9tiger"),
    ("enable secret 5 {}", "$1$mERr$hx5rVt7rPNoS4wqbXKX7m0"), ("me:{}", "$2b$12$"+some(53)),
    ("me:$apr1${}", some(8)+"$"+some(22)),
    ("# AGE-SECRET-KEY-1{}", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7LQPZRY9X8GF2TVDW0S3JN54KHCE"),
    ('{{"kty":"oct","k":"{}"}}', some(43)), ("rk_live_{}", some(24)), ("whsec_{}", some(32)),
    ("https://{}@o1.ingest.sentry.io/2", _hex(32)), ("DD_API_KEY={}", _hex(32)), ("hf auth login --token {}", SHORT),
    ("git remote set-url origin https://oauth2:{}@gitlab.example.org/x.git", SHORT),
    ('git config http.extraheader "AUTHORIZATION: basic {}"', _base64(20)), ("GH_PAT={}", SHORT),
    ("AZDO_PAT: {}", SHORT), ("Enter passphrase for key '/home/u/.ssh/id': {}", SHORT), ("OS_PASSWORD={}", SHORT),
    ("fs.s3a.secret.key={}", SHORT), ("fs.azure.account.key.x.dfs.core.windows.net={}", _base64(64)),
    ("--conf spark.x.password={}", SHORT), ("-Djavax.net.ssl.keyStorePassword={} -jar x", SHORT),
    ("('password', '{}')", SHORT), ("[['api_key', '{}']]", SHORT),
    ("Config(wandb=WandbConfig(api_key='{}', entity='e'))", SHORT), ("{{token: {}, x: 1}}", SHORT),
    ("UserWarning: got api key '{}' from env", SHORT),
    ("api_key\n  Input should be shorter [type=string_type, input_value='{}', input_type=str]", SHORT),
    ("train.py: error: unrecognized arguments: --wandb-key={}", SHORT), ("+ export WANDB_API_KEY={}", SHORT),
    ("++ TOKEN={}", SHORT), ("setenv HF_TOKEN {}", SHORT), ("set -gx HF_TOKEN {}", SHORT),
    ('$env:HF_TOKEN = "{}"', SHORT), ('declare -x HF_TOKEN="{}"', SHORT), ("ENV HF_TOKEN {}", SHORT),
    ("#SBATCH --export=ALL,HF_TOKEN={},WANDB_API_KEY=x", SHORT), ("mpirun -x HF_TOKEN={} -np 8", SHORT),
    ("mpiexec -genv HF_TOKEN {} -n 8", SHORT), ("GET /x?a=1%26password%3D{}%26b=2", SHORT),
    ("&quot;password&quot;: &quot;{}&quot;", SHORT), (".dockerconfigjson: {}", "eyJhdXRocyI6"+some(60)),
    ("secret_access_key = {}", SHORT), ("X-Vault-Token: {}", SHORT), ("[('authorization', 'Bearer {}')]", SHORT),
    ("[(b'authorization', b'Bearer {}')]", SHORT), ('<Header name="Authorization">Bearer {}</Header>', SHORT),
    ("htpasswd -b f me {}", SHORT), ("keytool -storepass {} -list", SHORT), ("scrypt passphrase was {}", SHORT),
    ("secret: !vault {}", SHORT), ("LDAP bind failed for cn=x with password {}", SHORT),
    ('comet_ml.Experiment("{}", project_name="p")', some(25)), ('openai.api_key = "{}"', SHORT),
    ("OpenAI(api_key='{}')", SHORT), ('headers = {{"x-api-key": "{}"}}', SHORT),
    ("session.auth = ('me', '{}')", SHORT), ('create_engine("mysql+pymysql://me:{}@h/db")', SHORT),
    ('os.environ.update(WANDB_API_KEY="{}")', SHORT), ("{{'password': b'{}'}}", SHORT),
    ('{{"password":["{}"]}}', SHORT), ("password: ['x1x', '{}']", SHORT),
    ("Secret(name='hf_token', value='{}')", SHORT), ("WARNING:root:Using token {} for hub", "tiger9token123456"),
    ("Login successful with token: {}", SHORT), ("Secret access key: {}", _base64(30)),
    ("Credentials(access_key='a', secret_key='{}', token=None)", SHORT),
    ("ReadOnlyCredentials(access_key='a', secret_key='b', token='{}')", SHORT),
    ("https://s3.example.org/x?AWSAccessKeyId=a&Signature={}&Expires=1", some(27)+"%3D"),
    ("SAS token: ?sv=2020&sp=r&sig={}", some(43)+"%3D"), ('BlobServiceClient(u, credential="{}")', _base64(64)),
    ("rclone copy a b --sftp-pass {}", SHORT), ("AKIAIOSFODNN7EXAMPLE:{}", _base64(30)),
    ("export http_proxy=http://me:{}@proxy:3128", SHORT), ("> AUTH PLAIN {}", _base64(15)),
    ("AUTH default {}", SHORT), ("ALTER USER me WITH PASSWORD '{}'", SHORT),
    ("CREATE USER me IDENTIFIED BY '{}'", SHORT), ("PRAGMA key='{}'", SHORT), ("userPassword: {}", SHORT),
    ("radius shared secret {}", SHORT), ("ip ospf authentication-key {}", SHORT),
    ("neighbor 10.0.0.1 password {}", SHORT), ("username admin password 0 {}", SHORT),
    ("tacacs-server key {}", SHORT), ("crypto isakmp key {} address 10.0.0.1", SHORT),
    ("PrivateKey = {}", _base64(32)), ("ipmitool lan set 1 password {}", SHORT),
    ("node.session.auth.password = {}", SHORT), ("mount.ceph h:/ /m -o name=admin,secret={}", _base64(28)),
    ("[client.admin] key = {}", _base64(28)), ("StoragePass={}", SHORT),
    ("kubeadm join h:6443 --token {} --x", "abcdef.0123456789abcdef"),
    ("docker swarm join --token {} h:2377", "SWMTKN-1-"+some(50)+"-"+some(25)),
    ("jupyter: c.ServerApp.password = 'sha1:{}'", _hex(12)+":"+_hex(40)), ("SM_HPS={{\"hub_token\":\"{}\"}}", SHORT),
    ("--hparams '{{\"api_key\": \"{}\"}}'", SHORT), ("train.py wandb.key={}", SHORT),
    ("pip install --extra-index-url https://__token__:{}@pypi.example.org/simple x", SHORT),
    ("https://conda.example.org/t/{}/main", "tk-"+_hex(20)), ('//npm.example.org/:_password="{}"', _base64(12)),
    ("poetry config http-basic.x me {}", SHORT), ("Authorization=Bearer%20{}", SHORT),
    ('"Authorization","Bearer {}"', SHORT), ("<Cookie session={} for x.org/>", STRONG),
    ("JSESSIONID={}; Path=/", _hex(32)), ("csrftoken={}", some(32)), ("Fernet(b'{}')", _base64(32)),
    ("fernet key: {}", _base64(32)), ("ENV PASSWORD {}", SHORT), ("mot de passe : {}", SHORT),
    ("password=Ab,{} user=x", "cd!ef9"), ("password={}", "größe9tiger"), ("user=me, pw {}", SHORT),
    ("recovery code: {}", "ABCD-1234-EFGH"),
    ("mnemonic: {}", "abandon ability able about above absent absorb abstract"),
    ("spack mirror set --s3-access-key-secret {}", SHORT), ("nmcli dev wifi connect x password {}", SHORT),
    ("docker secret create db_pass <<< {}", SHORT), ("printf '%s' {} | docker login --password-stdin", SHORT),
    ("[http \"x\"]\n\textraheader = Authorization: Basic {}", _base64(20)),
    ("password => [REDACTED], old_password => {}", SHORT), ("The temporary password for admin is: {}", SHORT),
    ("generated root password: {}", SHORT), ("auth_basic me:{}", "{SHA}"+_base64(20)),
]  # fmt: skip

# Of 120 more, written down before the rules were looked at, 18 were left in some form (15 of them plain), of the next
# 68 twelve.
HELD_OUT_LATER = [
    ("Your one-time password is {}", "482913"), (".hub.int\tTRUE\t/\tTRUE\t1790000000\tsessionid\t{}", "z8x7c6v5b4n3m2"),
    ("password:\n    {}\nlr: 0.1", "lilyPond88"), ('    login("{}")', "basaltCliff8x9Lq"), ('set_api_key("{}")', "greenRoof6"),
    ('    parser.add_argument("--hf-token", default="{}")', "hollyBush71"),
    ('    api_key: str = Field(default="{}")', "sandDollar38"),
    ('    client = OpenAI(api_key=os.getenv("KEY", "{}"))', "sandDollar39"),
    ("login with me / {}, the pw is the same everywhere", "harvestMoon7"), ("token (expires friday): {}", "cactusBloom9"),
    ("root pw for the BMC = {}", "calvin77"), ("密码：{}", "tulip43x"), ("пароль: {}", "zima2024"),
    ("contraseña: {}", "verano77"), ("รหัสผ่าน: {}", "tulip43x"), ("wachtwoord: {}", "tulip"),
    ("I used my wandb key, {}, on all nodes", "fjordIce28"), ("https%3A%2F%2Fme%3A{}%40hub.int%2Fx", "snowCap77"),
    ("connecting as trainer/{}@ora-db0:1521/metrics", "velvetPaw5"), ("sqlplus trainer/{}@metrics", "velvetPaw"),
    ("PASS {}", "gooseFeather3"), ("ftp user me {}", "gooseFeather"), ("$ cat .vault_pass\n{}\n$ ls", "birchBark19"),
    ("restic --password-command 'echo {}' backup /ck", "deepWell"), ("rsync --password-file=<(echo {}) a b", "tallTree"),
    ("beeline -u jdbc:hive2://h:10000 -n ml -p {}", "greyWolf"), ("vault login {}", "s." + some(24)),
    ("cookie jar: {{'session_id': '{}'}}", "softHail48"), ("secret_bytes = b'{}'", "lostKey"),
    ("    s3 = boto3.Session('id', '{}')", "hardOak88xYz123"), ("you can log in as ml with {}", "sharpPin8"),
    ("key for wandb: {}", HEX), ("der Token lautet {}", "grünGras77x"),
    ("https://drive.int/file?resourcekey={}", "0-" + some(18)),
]  # fmt: skip

# Of 232 more nineteen were left: values of manifests, two words that nobody has parted (`sshpass`), pairs, passwords
# in sentences, a `#` in the password of a URL; of the next 108 sixteen: tables, cells, calls named as a secret.
HELD_OUT_LAST = [
    ('{{"apiVersion":"v1","data":{{"conn":"{}"}},"kind":"Secret"}}', _base64(24)),
    ("apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\nstringData:\n  conn: {}", "quietPlum6"),
    ("- data:\n    conn: {}\n  kind: Secret", "quietPlum6"), ("clickhouse://me:{}@h/db", "quiet#Plum6"),
    ("kubectl create secret generic x --from-literal=a=b --from-literal=c={}", "quietPlum6"),
    ('{{"routing_key": "{}"}}', some(32)), ("the password of the old lab machine is {}, as ever", "quietPlum6"),
    ("/runs/api_key-{}/out.txt", _hex(40)), ("credentials me/{} for the bus", "quietPlum6"),
    ("https://api.weather.int/v2?appid={}", _hex(32)), ("BasicAuthentication('me', '{}')", "quietPlum6"),
    ("export SSHPASS={}; sshpass -e ssh n1", "quietPlum"), ("WANDBKEY={}", "quietPlum6"),
    ("    user, password = 'me', '{}'", "quietPlum6"), ("root pw is {}", "quietPlum6"),
    ("my password's {}, please change it", "quietPlum6"), ("# pass phrase => {}", "quietPlum"),
    ("Connection(user=me, auth=Password({}))", "quiet+Plum6"), ("Conn(token=Token(value='{}'))", some(20)),
    ("│ password │ str │ {} │", "quietPlum6"), ("<tr><td>API key</td><td>{}</td></tr>", some(28)),
    ("connect(user='me', password = \\\n    '{}')", "quietPlum6"), ("buildah login -u me -p {} reg", "quietPlum"),
    ("cqlsh -u me -p {} host", "quietPlum"), ("yes {} | kinit me", "quietPlum"), ("ldap_default_authtok = {}", "quietPlum"),
    ("IPMI user ADMIN pass {}", "quietPlum6"), ("Password for 'https://me@git.int': {}", "quietPlum6"),
    ("mc admin user add lab me {}", "quietPlum6"),
]  # fmt: skip

PLANTED = [(f"logging in with {token} now", token) for token in TOKENS]
PLANTED += [(line.format(secret), secret) for line, secret in [*STRUCTURES, *HELD_OUT, *HELD_OUT_LATER, *HELD_OUT_LAST]]


def coloured(line: str, secret: str) -> bytes:
    return line.replace(secret, f"\x1b[32m{secret[:3]}\x1b[1;31m{secret[3:]}\x1b[0m").encode()


FORMS: dict[str, Callable[[str, str], bytes]] = {
    "plain": lambda line, _: line.encode(),
    "coloured": coloured,
    "behind a colour": lambda line, secret: line.replace(secret, f"\x1b[32m{secret}").encode(),
    "rank": lambda line, _: f"[rank0]: {line}\n[rank1]: fine".encode(),
    "default": lambda line, _: f"[default0]:{line}".encode(),
    "timestamp": lambda line, _: f"2026-11-22T10:00:00.123Z stdout F {line}".encode(),
    "json": lambda line, _: json.dumps({"rank": 1, "line": line}).encode(),
    "json behind a newline": lambda line, _: json.dumps("before\n" + line).encode(),
    "colours in json": lambda line, secret: json.dumps({"line": coloured(line, secret).decode()}).encode(),
    "NULs in json": lambda line, secret: json.dumps(line.replace(secret, f"{secret[:5]}\0{secret[5:]}")).encode(),
    "json in json": lambda line, _: json.dumps({"text": json.dumps({"line": line})}).encode(),
    "repr": lambda line, _: repr("\x1b[1mx\n" + line).encode(),
    "repr of bytes": lambda line, _: repr(line.encode()).encode(),
    "utf-16": lambda line, _: f"one\n{line}\nthree\n".encode("utf-16"),
    "utf-16 without a mark": lambda line, _: f"{line}\n".encode("utf-16-be"),
    "behind a hole": lambda line, _: b"\0" * 500 + line.encode() + b"\0" * 7 + b"\n",
    "with NULs": lambda line, secret: line.replace(secret, f"{secret[:5]}\0{secret[5:]}\0").encode(),
    "zero width": lambda line, secret: line.replace(secret, f"{secret[:5]}\u200b{secret[5:]}").encode(),
}


def seen(data: bytes) -> str:
    text = data.replace(b"\0", b"").decode("utf-8", "replace").replace("\u200b", "")
    return re.sub(r"(?:\x1b|\\u001b)\[[0-9;]*m|\\u0000", "", text).replace("\\'", "'").replace("\\", "")


KEY_LINES = [_base64(48) for _ in range(12)] + [_base64(20)]
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "\n".join(KEY_LINES) + "\n-----END OPENSSH PRIVATE KEY-----"


def leaks(secret: str, text: str) -> bool:
    """Whether a text holds a secret, or so much of a long one that it helps."""
    parts = {secret[at : at + 12] for at in range(max(1, len(secret) - 11))}
    return any(part in text for part in parts)


def ordinary_lines(count: int) -> list[str]:
    """What jobs print that looks like secrets and is none: hashes, ids, addresses, shapes, stacks, symbols."""
    made = random.Random(7)
    number = made.randrange

    def digest(name: str) -> str:
        return hashlib.new(name, str(number(1 << 60)).encode()).hexdigest()

    def uuid() -> str:
        text = digest("md5")
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    kinds: list[Callable[[], str]] = [
        lambda: f"[rank{number(64)}]: step {number(10**5)} | loss {made.random():.4f} | tokens/s {number(10**5)} "
        f"| tokens: {number(10**9)} | num_tokens={number(10**7)} | lr {made.random():.2e}",
        lambda: f"commit {digest('sha1')} (HEAD -> main, tag: v{number(9)}.{number(9)})",
        lambda: f"sha256:{digest('sha256')}  model-{number(99):05d}-of-00099.safetensors",
        lambda: f"node-{number(99)}:{number(9**6)}:{number(9**6)} [{number(8)}] NCCL INFO comm 0x{number(1 << 46):x} "
        f"rank {number(64)} nranks 64 commId 0x{number(1 << 63):x} - Init COMPLETE",
        lambda: f"torchrun rdzv_id={uuid()} rdzv_endpoint=node-{number(9)}:29500 run_id={uuid()}",
        lambda: f"  size mismatch for layers.{number(80)}.mlp.weight: torch.Size([{number(9999)}, {number(9999)}])",
        lambda: f'  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line {number(5000)}, '
        "in all_reduce",
        lambda: f"#{number(60)} 0x{number(1 << 47):016x} in _ZN4c10d16ProcessGroupNCCL{number(30)}WatchdogHeartbeatMonitorEv () "
        "from /usr/lib/libtorch_cuda.so",
        lambda: f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x{number(256)}_32x3_tn_align8>(Params)",
        lambda: f"pad_token_id={number(99999)} eos_token='</s>' bos_token=\"<s>\" max_tokens: {number(9999)}",
        lambda: f"Added key: store_based_barrier_key:{number(99)} to store for rank: {number(64)}",
        lambda: f"triton cache key: {digest('sha256')} for kernel triton_poi_fused_add_mul_{number(99)}",
        lambda: f"Missing key(s) in state_dict: \"model.layers.{number(80)}.self_attn.q_proj.weight\"",
        lambda: f"key_value_heads={number(99)} sort_key=lambda x: x.rank, num_key_value_heads: {number(64)}",
        lambda: f"TCPStore key {number(9)}/default_pg/0//cuda//{number(9)} get(timeout={number(99)}s)",
        lambda: f"wandb: Syncing run astute-river-{number(99)} https://wandb.ai/team/project/runs/{digest('md5')[:8]}",
        lambda: f"x-amz-id-2: {base64.b64encode(digest('sha256').encode()).decode()[:60]} HostId: {digest('md5')}",
        lambda: f"Cloning git+https://github.com/team/train.git@{digest('sha1')} see http://node-1:8265/#/jobs@{number(9)}",
        lambda: f"etag: \"{digest('md5')}\" Last-Modified: Mon, 09 Nov 2026 10:{number(60):02d}:00 GMT",
        lambda: "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TOKENIZERS_PARALLELISM=false NCCL_IB_HCA=mlx5_0,mlx5_1 RANK=0",
        lambda: f"{uuid()} GPU-{uuid()} UUID of device {number(8)}",
        lambda: f"RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:{number(5000)}, unhandled system error, NCCL version 2.21.5",
        lambda: f"Token indices sequence length is longer than the specified maximum ({number(9999)} > 512)",
        lambda: f"pod train-7c9d8f6b5-x2k4q on ip-10-0-{number(255)}-{number(255)}.ec2.internal, image @sha256:{digest('sha256')}",
        lambda: f"client = Client(token=token, api_key=api_key, password=args.password)  # line {number(999)}",
        lambda: '    wsgi_cookie = ";".join(headers.getlist("Cookie"))',
        lambda: '    headers["Proxy-Authorization"] = _basic_auth_str(username, password)',
        lambda: f"backward_pass: {number(99)} ms, dead_code_elimination_pass={number(99)} forward pass {number(9)} of {number(9)}",
        lambda: "ENV_GITHUB_TOKEN = 'GITHUB_TOKEN'; headers['Authorization'] = f'token {token}'",
        lambda: f"KeyError: 'secret_{number(99)}' while the secretary keeps the keys of the author",
    ]  # fmt: skip
    return [kinds[at % len(kinds)]() for at in range(count)]
