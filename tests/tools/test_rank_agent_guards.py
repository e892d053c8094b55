"""Which of a job's processes is a rank: command lines and environments as launchers make them."""

import pytest

from ddx_tools.payloads.rank_agent import OWNER, part_of, program_of

RANK = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
PYTHON = "/venv/bin/python"


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        ([PYTHON, "-u", "train.py", "-m", "x"], ("script", "train.py")),
        ([PYTHON, "-m", "torch.distributed.run", "train.py"], ("module", "torch.distributed.run")),
        ([PYTHON, "-um", "pkg.train"], ("module", "pkg.train")),
        ([PYTHON, "-W", "ignore", "-Xdev", "-B", "train.py"], ("script", "train.py")),
        ([PYTHON, "-Wignore", "-c", "import x"], ("code", "import x")),
        ([PYTHON, "-cimport x"], ("code", "import x")),
        ([PYTHON, "-"], ("script", "-")),
        ([PYTHON], ("", "")),
        ([], ("", "")),
    ],
)
def test_the_program_is_found_behind_the_options_of_the_interpreter(argv: list[str], program: tuple[str, str]) -> None:
    assert program_of(argv) == program


def test_a_process_with_a_rank_in_its_environment_is_a_rank() -> None:
    assert part_of([PYTHON, "-u", "train.py"], RANK, 100) == "rank"


def test_a_bare_environment_launch_needs_no_local_rank() -> None:
    assert part_of([PYTHON, "train.py"], {"RANK": "0", "WORLD_SIZE": "2"}, 100) == "rank"


def test_a_rank_that_replaces_itself_with_another_program_stays_the_rank() -> None:
    assert part_of([PYTHON, "train.py"], {**RANK, OWNER: "100:3/1"}, 100) == "rank"


def test_a_subprocess_of_a_rank_is_not_that_rank() -> None:
    assert part_of([PYTHON, "tool.py"], {**RANK, OWNER: "100:3/1"}, 101) == "candidate"


def test_ranks_below_a_process_that_has_a_rank_of_its_own_are_ranks() -> None:
    # Kubeflow gives a pod RANK (of the node), and the launcher in it gives each rank another one.
    assert part_of([PYTHON, "train.py"], {**RANK, OWNER: "100:0/"}, 101) == "rank"


@pytest.mark.parametrize(
    "argv",
    [
        [PYTHON, "-B", "-c", "from multiprocessing.resource_tracker import main;main(3)"],
        [PYTHON, "-c", "from multiprocessing.forkserver import main; main(5, 6, ['__main__'])"],
        [PYTHON, "-c", "from multiprocessing.semaphore_tracker import main;main(3)"],
        [
            PYTHON,
            "/venv/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py",
            "--workers=2",
        ],
        [PYTHON, "-m", "torch.distributed.run", "train.py"],
        [PYTHON, "-m", "accelerate.commands.launch", "train.py"],
        [PYTHON, "-u", "-m", "deepspeed.launcher.launch", "train.py"],
        [PYTHON, "/venv/bin/torchrun", "--nproc_per_node=2", "train.py"],
    ],
)
def test_trackers_compile_workers_and_launchers_are_never_ranks(argv: list[str]) -> None:
    assert part_of(argv, RANK, 100) == "helper"


@pytest.mark.parametrize("environ", [{}, RANK])
def test_a_spawned_child_may_become_a_rank_whatever_its_environment_says(environ: dict[str, str]) -> None:
    argv = [
        PYTHON,
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(4, 6)",
        "--multiprocessing-fork",
    ]
    assert part_of(argv, environ, 100) == "candidate"


@pytest.mark.parametrize("rank", ["", "node-3", "-1", "٣x"])
def test_a_rank_that_is_no_number_makes_no_rank(rank: str) -> None:
    assert part_of([PYTHON, "train.py"], {**RANK, "RANK": rank}, 100) == "candidate"
