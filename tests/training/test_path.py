"""One record's way from `fit` to a layer rule: as CONTRIBUTING draws it, and as the stack shows it in the rule."""

import re
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping.rules.linear import linear_rule
from dpbnn.training import loop
from dpbnn.training.steps import CapturedSteps
from tests.training.steps.replay import Replays

ROOT = Path(__file__).parent.parent.parent
SRC = ROOT / "src" / "dpbnn"
PLAN = dpbnn.PrivacyPlan(60, 20, 4, clip_norm=1.0, noise_multiplier=1.5, delta=1e-3)
X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
MODELS = {
    "one layer": nn.Linear(4, 3),
    "several layers": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "dropout": nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
}
METHODS = {"sgd": dpbnn.SGD(0.1), "joint bbp": dpbnn.BBP(0.1, form="joint", num_draws=2)}
MOST_HOPS = 8


def drawings():
    """Of eager and of captured steps: the lines of the page's drawing as (indent, names, file)."""
    _, page = (ROOT / "CONTRIBUTING.md").read_text().split("## One run, top to bottom")
    section, _ = page.split("\n## ", 1)
    line = re.compile(r"^( *)(\w+(?: or \w+)*) {2,}([\w/]+\.py)\b", re.MULTILINE)
    return [[(len(indent), names.split(" or "), file) for indent, names, file in line.findall(block)]
            for block in section.split("```")[1::2]]  # fmt: skip


def paths_to_the_rule(drawing):
    """The drawn ways from the top to the layer rule: names and files of functions."""
    above = []
    for indent, names, file in drawing:
        above = [hop for hop in above if hop[0] < indent] + [(indent, names, file)]
        if names == ["linear_rule"]:
            break
    files = [file for _, _, file in above]
    return {tuple(zip(names, files, strict=True)) for names in product(*(names for _, names, _ in above))}


def paths_taken(run):
    """For every time that the rule runs in a step: all functions of the package on the stack, from the outermost."""
    paths = set()

    def watch(frame, event, _):
        if event == "call" and frame.f_code is linear_rule.__code__:
            path = []
            while frame is not None:
                file = Path(frame.f_code.co_filename)
                if file.is_relative_to(SRC):
                    path.insert(0, (frame.f_code.co_name, str(file.relative_to(SRC))))
                frame = frame.f_back
            if ("train", "training/loop.py") in path:  # else the model check tries the model out
                paths.add(tuple(path))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)
    assert paths
    return paths


def fit(model="one layer", method="sgd", **options):
    settings = {"plan": PLAN, "likelihood": dpbnn.Categorical(), "progress": False} | options
    dpbnn.fit(MODELS[model], X, Y, method=METHODS[method], **settings)


@pytest.fixture
def captured(monkeypatch):
    """Steps are captured by a recorder that needs no GPU."""
    monkeypatch.setattr(loop, "why_not_captured", lambda *_: None)
    monkeypatch.setattr(loop, "CapturedSteps", partial(CapturedSteps, graphs=Replays()))


@pytest.mark.parametrize(("model", "method"), [*((model, "sgd") for model in MODELS), ("one layer", "joint bbp")])
def test_a_record_goes_from_fit_to_a_layer_rule_as_the_drawing_shows(model, method):
    assert paths_taken(partial(fit, model, method)) == paths_to_the_rule(drawings()[0])


@pytest.mark.parametrize("model", MODELS)
def test_a_record_of_a_captured_step_goes_as_the_second_drawing_shows(captured, model):
    assert paths_taken(partial(fit, model)) == paths_to_the_rule(drawings()[1])


def test_no_way_to_a_layer_rule_has_more_than_eight_hops(tmp_path, request):
    def several():
        setup = dpbnn.Setup(MODELS["one layer"], METHODS["sgd"], PLAN, dpbnn.Categorical())
        dpbnn.fit_many([setup, setup], X, Y, progress=False)

    ways = [fit, several, partial(fit, checkpoint=tmp_path / "run"), partial(fit, unsafe_diagnostics=True)]
    paths = set().union(*map(paths_taken, ways))
    request.getfixturevalue("captured")
    paths |= set().union(*map(paths_taken, [fit, several, partial(fit, checkpoint=tmp_path / "run")]))
    assert {path for path in paths if len(path) > MOST_HOPS} == set()
    assert len(paths) > 4
    assert all(len(path) == MOST_HOPS for drawing in drawings() for path in paths_to_the_rule(drawing))


def test_the_drawings_name_functions_that_are_there():
    hops = [(name, file) for drawing in drawings() for _, names, file in drawing for name in names]
    assert len(hops) >= 20
    for name, file in hops:
        assert f"def {name}(" in (SRC / file).read_text(), (name, file)
