"""The quick versions of all items, run once and on one worker: what they find is asked of each item's test.

Of two seeds on a few hundred images only large effects are asked; those that need the full size are asked of the
results in the docs.
"""

import json

import pytest
import torch

from dpbnn.data import Images, load_images
from dpbnn.errors import DpbnnError
from dpbnn.experiments import ITEMS, QUICK, training
from dpbnn.experiments.reproducing import FOLDER, page, reproduce
from tests.experiments.doubling import Doubling


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "results" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("reproduce"))


@pytest.fixture(autouse=True)
def _forget_doublings():
    Doubling.done, Doubling.batches, Doubling.fails_at = [], [], set()


@pytest.fixture
def synthetic_images(monkeypatch):
    """Instead of MNIST and Fashion-MNIST: 600 images, in which the place of a bright line tells the class."""

    def load(name):
        y = torch.arange(600) % 10
        x = torch.rand(600, 1, 28, 28) / 2
        x[torch.arange(600), 0, 2 * y] += 1.0
        return Images(name, x, y, x[550:], y[550:])

    for cached in (training.images, training._foreign_images):
        cached.cache_clear()
    monkeypatch.setattr(training, "load_images", load)
    yield
    for cached in (training.images, training._foreign_images):
        cached.cache_clear()


@pytest.fixture(scope="session")
def images_are_there():
    try:
        load_images("mnist"), load_images("fashion-mnist")
    except DpbnnError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def results(tmp_path_factory, images_are_there):
    folder = tmp_path_factory.mktemp("quick")
    first = reproduce(list(ITEMS), QUICK, folder, show=False)
    assert first.written == tuple(ITEMS)
    assert first.left == 0
    again = reproduce(list(ITEMS), QUICK, folder, minutes=-1, show=False)
    assert again == first, "what is done is not done again"
    stored = {name: json.loads((folder / FOLDER / f"{name}.json").read_text()) for name in ITEMS}
    return stored | {"page": page(folder)}
