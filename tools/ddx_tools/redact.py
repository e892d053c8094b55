"""Secrets are replaced before anything is written: in free text, in command lines, in environments.

Everything a live host answers passes through `redact`, also JSON and Python source. So a replacement never
takes a quote or a backslash with it (JSON stays JSON), source that only *names* a secret (`token = next(it)`)
stays as it is, and redacting twice changes nothing more. What cannot be told from ordinary text stays: in prose,
an unquoted password without a digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ddx_tools.formats.log_text import DIGITS_AS_ZERO

MARK = "<redacted>"

# What a variable, an option or a key is called if its value is a secret. A bare "token" is the vocabulary of
# training more often than a secret ("pad_token", "token: 17"): it counts only where the value looks like one.
_SECRET = (
    r"(?:api|access|account|auth|encryption|master|private|secret|signing|storage)[_-]?key(?:[_-]?id)?"
    r"|(?:access|api|auth|bearer|gh|git|github|gitlab|hf|hub|huggingface|id|refresh|security|session)[_-]?token"
    r"|credentials?|passphrase|passwd|password|secret|x-amz-signature"
)
_VOCABULARY = ("bos", "cls", "eos", "eot", "mask", "next", "pad", "sep", "special", "unk")
_TOKEN = "".join(rf"(?<!{word}[_-])" for word in _VOCABULARY) + "token"
_NAME_END = r"(?![A-Za-z0-9_-])"
_STRONG = rf"(?:{_SECRET}){_NAME_END}"
_ANY = rf"(?:{_SECRET}|{_TOKEN}){_NAME_END}"
_PREFIXED = rf"[a-z0-9_-]{{0,40}}?{_ANY}"

# A value ends at white space, quotes and backslashes, and at what separates arguments.
_VALUE = r"[^\s\"'\\,;&(){}\[\]<>]"
_SECRET_LOOK = rf"(?=[^\s\"'\\]{{0,200}}[0-9]){_VALUE}{{6,}}+(?![(\[])"
_QUOTE = r"(?:\\?[\"'])"
_ASSIGN = rf"{_QUOTE}?[\])]?\s{{0,8}}[:=,]\s{{0,8}}"
_WORD_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"

# A private key, also inside JSON (newlines as two characters), also if its end was cut off.
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:(?:[A-Za-z0-9+/=:,. \t\r\n]|-(?!-)|\\[nrt]){1,20000}?(?=-----END )"
    r"|(?:(?:\s|\\[nrt])*[A-Za-z0-9+/=]{8,}+)+)"
)

# Each searched in the lines that hold a hint. Group 1 is kept, the rest of the match is the secret.
_RULES = [
    re.compile(pattern)
    for pattern in (
        # scheme://user:password@host, scheme://long-token@host
        r"(://)(?:[^\s/@:\"'\\<>]{0,256}:[^\s/@\"'\\<>]{1,256}|[^\s/@:\"'\\<>]{20,256})(?=@)",
        # HTTP headers
        rf"(?i)(\bauthorization{_ASSIGN}{_QUOTE}?(?:bearer|basic|token|digest)\s{{1,8}})[^\s\"'\\<>]+",
        r"(?i)(\bbearer\s{1,8})(?=[A-Za-z_.~+/-]{0,200}[0-9])[A-Za-z0-9._~+/-]{16,}=*",
        # tokens that are known by their look: Hugging Face, OpenAI, NVIDIA, GitHub, GitLab, AWS, Google, Slack, JWT …
        r"((?<![A-Za-z0-9]))(?:hf_[A-Za-z0-9]{20,}|(?:sk|nvapi)-[A-Za-z0-9_-]{20,}|gh[oprsu]_[A-Za-z0-9]{20,}"
        r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"
        r"|AIza[A-Za-z0-9_-]{30,}|xox[abeprs]-[A-Za-z0-9-]{10,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}"
        r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)",
        # password="…", "api_key": "…", environ["HF_TOKEN"] = "…", "--api-key", "…"
        rf"(?i)({_STRONG}{_ASSIGN}[bru]?{_QUOTE})(?![-<])[^\"'\\\n]+(?=\\?[\"'])",
        rf"(?i)({_ANY}{_ASSIGN}[bru]?{_QUOTE})(?=[^\"'\\\s]{{0,200}}[0-9])[^\"'\\\s]{{8,}}(?=\\?[\"'])",
        # HF_TOKEN=…, --token=…, ?access_token=…: written without blanks, by a shell or in a URL
        rf"((?:{_WORD_START}(?=[A-Z0-9_]{{1,80}}=)|(?<![\w-])--|[?&;])(?i:{_PREFIXED})=){_VALUE}++(?![(\[])",
        # password=…, api_key: … in prose and configuration, where a digit tells it from a type or a variable
        rf"(?i)({_STRONG}\s{{0,8}}[:=]\s{{0,8}}){_SECRET_LOOK}",
        rf"(?i)((?<![\w-])--{_PREFIXED}\s{{1,8}})(?!-){_SECRET_LOOK}",
    )
]

# What a line must hold, in lower case and whatever its digits are, for a rule to match it. Looking for plain words
# first makes megabytes of ordinary log cost next to nothing.
_HINTS = [
    re.compile(pattern)
    for pattern in (
        r"://[^\s/@]{1,512}@", r"bearer\s", "authorization", r"hf_[a-z0-9]{20}", r"sk-[a-z0-9_-]{20}", "nvapi-",
        r"gh[oprsu]_[a-z0-9]{20}", "github_pat_", "glpat-", r"akia[a-z0-9]{16}", r"asia[a-z0-9]{16}",
        "aiza", r"xox[abeprs]-",
        "npm_", "pypi-", r"eyj[a-z0-9_-]{8}", r"token(?![a-z0-9])", r"key(?:[_-]?id)?(?![a-z0-9])",
        "passw", "passphrase",
        "secret", "credential", "x-amz-signature",
    )
]  # fmt: skip

_BLOCK_CHARS = 1 << 20

_OPTION = re.compile(rf"(?i)^--?{_PREFIXED}$")
_ASSIGNMENT = re.compile(rf"(?is)^(-{{0,2}}{_PREFIXED}=)(.+)$")

# Variables that decide how ranks find each other and what they leave behind; the rest of an environment stays
# where it is.
_ALLOWED_PREFIXES = (
    "ACCELERATE_", "CUBLAS_", "CUDA_", "DDX_", "DEEPSPEED_", "DS_", "FI_", "FSDP_", "GLOO_", "HIP_VISIBLE_", "HSA_",
    "KMP_", "MASTER_", "MKL_", "NCCL_", "OMPI_COMM_", "OMP_", "PET_", "PMIX_", "PMI_", "PYTORCH_", "RAY_",
    "RCCL_", "ROCR_VISIBLE_", "TORCH", "UCX_", "VLLM_", "XCCL_",
)  # fmt: skip
_ALLOWED = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "CROSS_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "CROSS_SIZE", "LOCAL_SIZE", "ROLE_NAME", "ENABLE_INTRA_NODE_COMM",
    "USE_LIBUV", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PYTHONFAULTHANDLER",
    "PYTHONHASHSEED", "PYTHONPATH", "PYTHONUNBUFFERED", "SLURMD_NODENAME", "SLURM_JOB_ID", "SLURM_JOB_NODELIST",
    "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_PROCID",
    "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE", "TMPDIR", "VIRTUAL_ENV",
}  # fmt: skip


def redact(text: str) -> str:
    """The text with every secret of a known shape replaced by `<redacted>`."""
    redacted = "".join(_lines_without_secrets(block) for block in _blocks(text))
    return _PRIVATE_KEY.sub(rf"\1{MARK}", redacted) if "PRIVATE KEY" in text else redacted


def redact_argv(arguments: Iterable[str]) -> list[str]:
    """A command line: here an option says for certain that the next argument is its value."""
    shown: list[str] = []
    value_expected = False
    for argument in arguments:
        if value_expected and not argument.startswith("--"):
            shown.append(MARK)
        else:
            shown.append(_ASSIGNMENT.sub(rf"\1{MARK}", redact(argument)))
        value_expected = bool(_OPTION.match(argument))
    return shown


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to distributed training, values redacted, in alphabetical order."""
    return {
        name: MARK if _ASSIGNMENT.match(f"{name}=x") else redact(value)
        for name, value in sorted(environment.items())
        if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)
    }


def _blocks(text: str) -> Iterator[str]:
    """The text in stretches of whole lines."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _BLOCK_CHARS) + 1 or len(text)
        yield text[start:end]
        start = end


def _lines_without_secrets(text: str) -> str:
    """Most lines of a log differ in numbers only: what holds no hint when each digit is a 0 never holds one."""
    shapes = text.lower().encode("utf-8", "surrogatepass").translate(DIGITS_AS_ZERO).split(b"\n")
    suspects = _suspects(b"\n".join(set(shapes)))
    if not suspects:
        return text
    lines = zip(text.split("\n"), shapes, strict=True)
    return "\n".join(_without_secrets(line) if shape in suspects else line for line, shape in lines)


def _suspects(shapes: bytes) -> set[bytes]:
    """The lines with a hint."""
    text = shapes.decode("utf-8", "surrogatepass")
    suspects, end = set(), -1
    for hit in sorted({match.start() for hint in _HINTS for match in hint.finditer(text)}):
        if hit > end:
            start, end = text.rfind("\n", max(0, end), hit) + 1, text.find("\n", hit)
            end = len(text) if end < 0 else end
            suspects.add(text[start:end].encode("utf-8", "surrogatepass"))
    return suspects


def _without_secrets(line: str) -> str:
    for rule in _RULES:
        line = rule.sub(rf"\1{MARK}", line)
    return line
