"""The programs of the benchmarks folder run, and the page that shows their figures agrees with them."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
PROGRAMS = runpy.run_path(str(FOLDER / "__main__.py"))["PROGRAMS"]


def bench(*arguments):
    return subprocess.run([sys.executable, str(FOLDER), *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_and_files_its_figures_under_the_machine(tmp_path, name):
    others = {"another machine": {"rows": []}}
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(others))
    finished = bench(name, "--quick", "--json", str(file))
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(file.read_text())
    (machine,) = set(figures) - set(others)
    assert figures["another machine"] == others["another machine"]
    assert figures[machine]["rows"]
    assert {"torch", "code", "date"} <= set(figures[machine])
    assert "profiler_start" not in finished.stdout + finished.stderr  # torch.profiler's own lines


def test_the_page_shows_the_figures_that_were_written_down():
    finished = bench("report", "--check")
    assert finished.returncode == 0, finished.stderr


def test_the_page_has_a_place_for_every_program():
    page = (ROOT / "docs" / "speed.md").read_text()
    for file, _ in PROGRAMS.values():
        assert f"<!-- figures: {Path(file).stem} -->" in page


def test_kernels_of_a_replayed_step_are_sorted_and_overlaps_count_once(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    program = runpy.run_path(str(FOLDER / "step_profile.py"))
    for name, category in {
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)": "matrix products",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>": "matrix products",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int)": "matrix products",
        "void cublasLt::splitKreduce_kernel<32, 16, int, double>": "matrix products",
        "weighted_sum": "norms and clipping",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<double, 2>": "noise",
        "Memcpy DtoD (Device -> Device)": "copies",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)": "copies",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4>": "other layers and loss",
        "largest": "other layers and loss",
    }.items():
        assert program["kernel_category"](name) == category
    assert program["covered"]([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.0)]) == 4.0


def test_a_figure_typed_by_hand_is_noticed():
    sys.path.insert(0, str(FOLDER))
    try:
        report = runpy.run_path(str(FOLDER / "report.py"))
        page = (ROOT / "docs" / "speed.md").read_text()
        place = page.index("| model |") + page[page.index("| model |") :].index("x |")
        tampered = page[:place] + "9" + page[place:]
        assert report["filled"](tampered) == page
        assert report["filled"](tampered) != tampered
    finally:
        sys.path.remove(str(FOLDER))
