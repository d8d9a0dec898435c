"""`python benchmarks`: names and options, input that it cannot take, interrupts, and files that are in the way."""

import ast
import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpbnn.plots.style import panels

ROOT = Path(__file__).parents[2]
MODULES = {file.stem for file in (ROOT / "benchmarks").glob("*.py")} - {"__main__"}
SMALL = '''"""A program that does next to nothing."""

import time
from pathlib import Path

from program import Program, Table, counts


def measure(options):
    Path(__file__).with_name("begun").touch()
    time.sleep(options.seconds)
    return {"rows": [1.0]}


PROGRAM = Program(
    "clipping", __file__, measure, lambda machine, figures: [Table(machine, ["row"], [["1"]])],
    options={"seconds": {"type": int, "default": 0}} | counts(rounds=1),
)
'''


@pytest.fixture
def folder(tmp_path):
    """A copy of the programs, so that nothing here is lost; the first of them does nothing."""
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "speed.md", tmp_path / "docs")
    (tmp_path / "benchmarks" / "clipping.py").write_text(SMALL)
    (tmp_path / "benchmarks" / "clipping.json").unlink()
    return tmp_path / "benchmarks"


@pytest.fixture
def bench(folder, monkeypatch, capfd):
    for name in MODULES:  # of the real folder, if another test has loaded them
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")  # a program sets it
    main = runpy.run_path(str(folder / "__main__.py"))["main"]

    def bench(*arguments):
        try:
            code = main(list(arguments))
        except SystemExit as exit_:
            code = exit_.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    bench.globals = main.__globals__
    yield bench
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_every_program_is_listed_with_the_first_line_of_its_docstring(bench, arguments):
    code, out, err = bench(*arguments)
    assert (code, err) == (0, "")
    for name, (file, _) in bench.globals["PROGRAMS"].items():
        first = ast.get_docstring(ast.parse((ROOT / "benchmarks" / file).read_text())).splitlines()[0]
        assert f"  {name} " in out
        assert file == "clipping.py" or first in out


def test_an_unknown_name_is_answered_with_those_there_are(bench):
    code, out, err = bench("nonsense", "--quick")
    choices = ", ".join([*bench.globals["PROGRAMS"], "all", "report"])
    assert (code, out) == (2, "")
    assert err == f"Error: NAME must be one of {choices}, got 'nonsense'.\n"


def test_options_after_the_name_are_the_programs(bench):
    code, out, _ = bench("methods", "--help")
    assert code == 0
    assert "usage: python benchmarks methods" in out
    assert "--batch-size" in out


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--nope", 2), ("word", 2)])
def test_report_writes_nothing_unless_it_is_called_rightly(folder, bench, option, code):
    page = folder.parent / "docs" / "speed.md"
    page.write_text("<!-- figures: clipping -->\n<!-- end -->")
    assert bench("report", option)[0] == code
    assert page.read_text() == "<!-- figures: clipping -->\n<!-- end -->"
    assert bench("report", "--check")[0] == 1
    assert bench("report")[0] == 0
    assert "No figures were taken yet." in page.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        "report --nope", "all --nope", "all --json file.json", "clipping --nope", "methods --rounds 0",
        "methods --rounds -1", "methods --rounds 1.5", "start --rounds 0", "methods --batch-size 0",
        "prediction --draws 0", "prediction --rows 0", "training --steps 0", "sweep --runs 0", "all --rounds 0",
    ],
)  # fmt: skip
def test_a_bad_option_is_answered_with_one_line(bench, arguments):
    name, option, *_ = arguments.split()
    code, out, err = bench(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert option in err
    assert err.endswith(f"; python benchmarks {name} --help lists the options.\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "target", ["nowhere/x.json", "nowhere/x/", "list.json", "broken.json", "numbers.json", "list.json/"]
)
def test_a_target_that_cannot_be_written_is_noticed_before_anything_is_measured(folder, bench, target):
    (folder / "list.json").write_text("[1]")
    (folder / "broken.json").write_text('{"machine": {')
    (folder / "numbers.json").write_text('{"machine": 1}')
    code, out, err = bench("clipping", "--json", f"{folder}/{target}")
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert target in err
    assert err.count("\n") == 1
    assert not (folder / "begun").exists()
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("name", ["clipping", "report"])
def test_broken_figures_beside_a_program_are_noticed(folder, bench, name):
    (folder / "clipping.json").write_text("[1]")
    code, out, err = bench(name)
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {folder / 'clipping.json'} must hold an object of objects")
    assert not (folder / "begun").exists()


def test_a_folder_for_figures_is_made(folder, bench):
    code, _, err = bench("clipping", "--json", f"{folder}/new/")
    assert (code, err) == (0, "")
    assert [file.name for file in (folder / "new").iterdir()] == ["clipping.json"]
    (figures,) = json.loads((folder / "new" / "clipping.json").read_text()).values()
    assert figures["rows"] == [1.0]


def test_nothing_measured_is_bad_input(bench):
    code, _, err = bench("large", "--quick", "--only", "nonsense")
    assert code == 2
    assert err == "Error: large found nothing to measure; --only must be how one of its names starts.\n"


@pytest.mark.parametrize("name", ["large", "sweep"])
def test_a_program_for_a_gpu_is_bad_input_elsewhere(bench, monkeypatch, name):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = bench(name)
    assert (code, out) == (2, "")
    assert err == f"Error: {name} needs a CUDA device, which is not here; --quick tries it out on a CPU.\n"


def test_all_leaves_out_with_a_line_what_needs_a_gpu_and_gives_the_worst_exit_code(bench, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    asked = []
    monkeypatch.setitem(
        bench.globals, "_run_apart", lambda name, options: asked.append(name) or 3 * (name == "methods")
    )
    code, out, _ = bench("all", "--quick")
    assert code == 3
    assert asked == [name for name in bench.globals["PROGRAMS"] if name not in ("large", "sweep")]
    assert "sweep: left out, as it needs a CUDA device, which is not here\n" in out


@pytest.fixture
def begin(folder):
    """Starts the command line on the copy and waits until the program measures."""
    # A job in the background ignores interrupts, and so would its children.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    everything = []

    def begin(*arguments):
        command = [sys.executable, "-c", code, str(folder), *arguments]
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        everything.append(started)
        while started.poll() is None and not (folder / "begun").exists():
            time.sleep(0.05)
        time.sleep(0.2)  # until it is in the middle of its sleep
        return started

    yield begin
    for started in everything:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clipping", "all"])
@pytest.mark.parametrize("interrupt", [os.kill, os.killpg])
def test_an_interrupt_ends_everything_with_one_line_and_writes_nothing(folder, begin, name, interrupt):
    (folder / "clipping.py").write_text(SMALL.replace('"default": 0', '"default": 60'))
    started = begin(name)
    interrupt(started.pid, signal.SIGINT)
    _, err = started.communicate(timeout=30)  # ends when no child holds the pipe any more
    assert started.returncode == 130
    assert err == "clipping: interrupted; nothing was written\n"
    assert not list(folder.glob("clipping.json*"))


def test_an_interrupt_while_files_are_written_waits(folder, bench):
    bench("report", "--check")
    program, before = sys.modules["program"], signal.getsignal(signal.SIGINT)
    files = {folder / "a": b"1", folder / "b": b"2"}
    with program.uninterrupted():
        program.write({folder / "a": b"1"})
        os.kill(os.getpid(), signal.SIGINT)
        program.write({folder / "b": b"2"})
    assert {file: file.read_bytes() for file in files} == files
    assert not list(folder.glob("*.part"))
    assert signal.getsignal(signal.SIGINT) == before


def test_that_matplotlib_is_not_there_is_said_once(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = bench("report")
    assert code == 0
    assert err == "No picture without matplotlib; pip install -e '.[plots]' adds it.\n"


def test_that_opacus_is_not_there_is_said_once(bench, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "opacus", None)
    bench("report", "--check")
    assert not sys.modules["variants"].opacus_is_there()
    assert not sys.modules["variants"].opacus_is_there()
    assert capfd.readouterr().err == "Opacus is not installed and left out: pip install -e '.[bench]' adds it.\n"


@pytest.mark.parametrize(
    ("values", "are_ratios", "scale"),
    [((1.1, 72.0), True, "log"), ((1.1, 11.0), True, "linear"), ((1.1, 72.0), False, "linear"), ((), True, "linear")],
)
def test_ratios_far_apart_are_shown_on_a_logarithmic_axis(bench, values, are_ratios, scale):
    bench("report", "--check")
    pictures = sys.modules["pictures"]
    _, (axes,) = panels(1, 1)
    pictures.bars(axes, {str(value): value for value in values} | {"failed": None}, "", "time", are_ratios)
    assert axes.get_xscale() == scale
    low, high = axes.get_xlim()
    assert all(low < value < high for value in values)
    assert axes.get_xlabel() == ("time (log)" if scale == "log" else "time")


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_figures_say_on_which_code_and_day_they_were_taken(folder, bench):
    def git(*words):
        who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        return subprocess.check_output(["git", *who, "-C", str(folder), *words], text=True).strip()

    def code():
        assert bench("clipping")[0] == 0
        (figures,) = json.loads((folder / "clipping.json").read_text()).values()
        assert figures["date"][:2] == "20"
        return figures["code"]

    assert code() == "unknown"
    git("init", "--quiet")
    git("add", "*.py")
    git("commit", "--quiet", "--message", "x")
    commit = git("describe", "--always")
    assert code() == commit  # the file of figures changed, and is no code
    (folder / "methods.py").write_text("")
    assert code() == f"{commit}-dirty"
