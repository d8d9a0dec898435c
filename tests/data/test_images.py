"""Image sets are found, or fetched from a server and checked; whatever goes wrong is one clear line."""

import gzip
import hashlib
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpbnn.data import images, load_images
from dpbnn.errors import DpbnnError

_, TRAIN_LABELS, _, TEST_LABELS = images.FILES
COUNTS = dict(zip(images.FILES, (5, 5, 3, 3), strict=True))


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A small set under the name of MNIST, in a folder of its own; nothing of this machine's is looked at."""
    folder = tmp_path / "published" / "mnist"
    folder.mkdir(parents=True)
    numbers, sums = np.random.default_rng(0), []
    for name, count in COUNTS.items():
        is_image = "images" in name
        shape, top = ((count, 28, 28), 256) if is_image else ((count,), 10)
        contents = bytes(16 if is_image else 8) + numbers.integers(top, size=shape, dtype=np.uint8).tobytes()
        (folder / name).write_bytes(gzip.compress(contents, mtime=0))
        sums.append(hashlib.sha256((folder / name).read_bytes()).hexdigest())
    source = images.Source("http://127.0.0.1:9", 0.1307, 0.3081, tuple(sums))
    monkeypatch.setattr(images, "IMAGE_SETS", {"mnist": source})
    monkeypatch.setenv("DPBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DPBNN_DATA", raising=False)
    monkeypatch.delenv("DPBNN_MIRROR", raising=False)
    return folder


class Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(published, monkeypatch):
    """Serves what is published; gives the list of what was asked for."""
    Quiet.asked = []
    own = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published.parent)))
    threading.Thread(target=own.serve_forever, daemon=True).start()
    monkeypatch.setenv("DPBNN_MIRROR", f"http://127.0.0.1:{own.server_port}/")
    yield Quiet.asked
    own.shutdown()
    own.server_close()


def check(found):
    assert found.x.shape == (5, 1, 28, 28)
    assert found.x_test.shape == (3, 1, 28, 28)
    assert 0 <= float(found.x.min()) < float(found.x.max()) <= 1
    assert found.y.dtype == found.y_test.dtype == torch.int64
    assert found.y.shape == (5,)
    assert int(found.y.max()) < 10


def test_files_of_the_users_own_are_read_where_they_lie(published, monkeypatch):
    monkeypatch.setenv("DPBNN_DATA", str(published.parent))
    check(load_images("mnist"))
    assert not images._cache().exists()


def test_what_is_not_there_is_downloaded_once(published, server):
    check(load_images("mnist"))
    assert sorted(server) == sorted(f"/mnist/{name}" for name in COUNTS)
    check(load_images("mnist"))
    assert len(server) == len(COUNTS)


def test_a_server_with_other_contents_is_not_believed(published, server):
    (published / TEST_LABELS).write_bytes(gzip.compress(bytes(8 + 3)))
    with pytest.raises(DpbnnError, match=r"could not be downloaded .*SHA256|could not be downloaded .*sha256") as error:
        load_images("mnist")
    assert "\n" not in str(error.value)
    assert not (images._cache() / "mnist" / TEST_LABELS).exists()


@pytest.mark.guarantees("A download that fails leaves nothing behind, and the error says how to get the files by hand.")
def test_without_a_server_the_error_says_how_to_get_the_files(published):
    with pytest.raises(
        DpbnnError, match=r"mnist is neither in \$DPBNN_DATA nor in .*set DPBNN_DATA.*DPBNN_MIRROR"
    ) as error:
        load_images("mnist")
    assert "\n" not in str(error.value)


def test_without_pooch_the_error_says_what_to_install(published, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DpbnnError, match=r"pip install 'dpbnn\[experiments\]', or put its four .gz files"):
        load_images("mnist")


@pytest.mark.guarantees("A file whose SHA-256 is not the published one is never read.")
def test_a_file_that_is_not_the_published_one_is_refused(published, monkeypatch):
    monkeypatch.setenv("DPBNN_DATA", str(published.parent))
    (published / TRAIN_LABELS).write_bytes(b"something else")
    with pytest.raises(DpbnnError, match=r"train-labels.* must be the published file, got other contents"):
        load_images("mnist")


def test_an_unknown_name_is_refused_with_the_known_ones(published):
    with pytest.raises(DpbnnError, match="name must be one of 'mnist', got 'digits'"):
        load_images("digits")


def test_standardized_pixels_are_shifted_and_scaled_by_public_constants(published, monkeypatch):
    monkeypatch.setenv("DPBNN_DATA", str(published.parent))
    found = load_images("mnist")
    torch.testing.assert_close(found.standardized().x, (found.x - 0.1307) / 0.3081)
    assert found.standardized().to("cpu").y is found.y
