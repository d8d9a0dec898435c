"""The command line as a whole: what it lists, what it loads, and how it ends."""

import subprocess
import sys

import pytest

import dpbnn
from dpbnn.cli import main as cli

PLAN = "plan --dataset-size 1000 --batch-size 10 --steps 50 --epsilon 1"


@pytest.fixture
def run(monkeypatch, capsys):
    def run(arguments):
        monkeypatch.setattr(sys, "argv", ["dpbnn", *arguments.split()])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def test_help_lists_commands_by_purpose_each_on_one_line(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    _, *sections = out.replace("Options:", "").split(":\n")
    lines = [line for section in sections for line in section.splitlines() if line.startswith("  ")]
    names = [command.__name__ for commands in cli.COMMANDS.values() for command in commands]
    assert [line.split()[0] for line in lines] == names
    assert all(line.endswith(".") and len(line) < 80 for line in lines)
    assert all(f"\n{title}:\n" in out for title in cli.COMMANDS)


def test_without_a_command_there_is_help_and_the_version_can_be_asked_for(run):
    assert run("") == run("--help")
    assert run("--version") == (0, f"dpbnn {dpbnn.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "missing", "needed", "share"),
    [
        ("--help", "torch numpy scipy dp_accounting rich.table", "numpy", 3.0),
        ("fit --help", "torch numpy scipy dp_accounting rich.table", "numpy", 3.0),
        (PLAN, "torch", "dp_accounting.pld", 3.5),
    ],
)
def test_a_command_waits_for_no_library_that_it_does_not_use(arguments, missing, needed, share):
    """Its processor time is at most so many times that of importing one library: machines differ, and are busy."""
    code = f"""
import sys, time
from dpbnn.cli.main import main
sys.argv = {["dpbnn", *arguments.split()]}
try:
    main()
except SystemExit as end:
    assert end.code == 0
print("loaded:", *set({missing.split()}) & set(sys.modules))
print(time.process_time())
"""
    for _ in range(3):
        *_, loaded, spent = output_of(code)
        (at_least,) = output_of(f"import time, {needed}; print(time.process_time())")
        if float(spent) < share * float(at_least):
            break
    assert loaded == "loaded:"
    assert float(spent) < share * float(at_least)


def output_of(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_bug_is_not_passed_off_as_bad_input(monkeypatch):
    def broken(**_):
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize("arguments", ["", "all", "clipping --quick --rounds 2"])
def test_dpbnn_bench_says_where_it_went_and_is_not_listed(run, arguments):
    assert run(f"bench {arguments}") == (
        2,
        "",
        "Error: dpbnn bench has moved: run make bench, or python benchmarks NAME, in a clone of the repository.\n",
    )
    assert "bench" not in run("--help")[1]
