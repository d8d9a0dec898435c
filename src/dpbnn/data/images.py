"""MNIST and Fashion-MNIST: from your folder, from the cache, or by download.

The files are looked for in this order:

1. ``$DPBNN_DATA/<name>/``, which holds the four files as they were published;
2. the cache of earlier downloads, ``$DPBNN_CACHE`` or the usual place of the operating system;
3. the publisher's server, or ``$DPBNN_MIRROR/<name>/`` where that is set, into the cache.

Guarantees:
    A file whose SHA-256 is not the published one is never read.
    A download that fails leaves nothing behind, and the error says how to get the files by hand.
"""

import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.errors import DpbnnError

__all__ = ["IMAGE_SETS", "Images", "load_images"]

FILES = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)


@dataclass(frozen=True)
class Source:
    """Where a set comes from; `mean` and `deviation` of its pixels are public constants, `sums` the files' SHA-256."""

    url: str
    mean: float
    deviation: float
    sums: tuple[str, ...]


IMAGE_SETS = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        0.1307,
        0.3081,
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        0.2860,
        0.3530,
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
}


@dataclass(eq=False)
class Images:
    """Pixels from 0 to 1, ``[records, 1, 28, 28]``, and labels from 0 to 9."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def standardized(self) -> "Images":
        """The same images, their pixels shifted and scaled by the public constants."""
        source = IMAGE_SETS[self.name]
        x, x_test = ((pixels - source.mean) / source.deviation for pixels in (self.x, self.x_test))
        return Images(self.name, x, self.y, x_test, self.y_test)

    def to(self, device: str) -> "Images":
        """The same images on this device."""
        return Images(self.name, *(part.to(device) for part in (self.x, self.y, self.x_test, self.y_test)))


def load_images(name: str) -> Images:
    """The images of "mnist" or "fashion-mnist", from the first place that has their files.

    Raises:
        DpbnnError: it is nowhere and cannot be downloaded, or a file is not the published one.
    """
    source = IMAGE_SETS[_validate.one_of("name", name, IMAGE_SETS)]
    x, y, x_test, y_test = _on_disk(name, source) or _downloaded(name, source)
    return Images(name, _pixels(x), _labels(y), _pixels(x_test), _labels(y_test))


def _on_disk(name: str, source: Source) -> list[Path]:
    """The user's files, or those of an earlier download; none if one is missing."""
    folders = [Path(data)] if (data := os.environ.get("DPBNN_DATA")) else []
    for folder in [*folders, _cache()]:
        files = [folder / name / file for file in FILES]
        if all(file.is_file() for file in files):
            for file, digest in zip(files, source.sums, strict=True):
                if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                    raise DpbnnError(f"{file} must be the published file, got other contents; remove it or replace it.")
            return files
    return []


def _cache() -> Path:
    """The folder that pooch would use; pooch itself is only needed for a download."""
    if cache := os.environ.get("DPBNN_CACHE"):
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpbnn"


def _downloaded(name: str, source: Source) -> list[Path]:
    by_hand = f"put its four .gz files into a folder {name} and set DPBNN_DATA to the folder around it"
    try:
        import pooch
    except ImportError as error:
        raise DpbnnError(
            f"{name} is neither in $DPBNN_DATA nor in {_cache()}, and pooch, which downloads, is not installed: "
            f"pip install 'dpbnn[experiments]', or {by_hand}."
        ) from error
    mirror = os.environ.get("DPBNN_MIRROR")
    url = f"{mirror.rstrip('/')}/{name}" if mirror else source.url
    registry = {file: f"sha256:{digest}" for file, digest in zip(FILES, source.sums, strict=True)}
    downloads = pooch.create(path=_cache() / name, base_url=f"{url}/", registry=registry, retry_if_failed=1)
    try:
        return [Path(downloads.fetch(file)) for file in FILES]
    except Exception as error:  # whatever the network, the server, the disk or a wrong sum raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DpbnnError(
            f"{name} is neither in $DPBNN_DATA nor in {_cache()}, and could not be downloaded from {url} ({reason}); "
            f"{by_hand}, or set DPBNN_MIRROR to a server that you can reach."
        ) from error


def _pixels(file: Path) -> Tensor:
    return _bytes(file)[16:].reshape(-1, 1, 28, 28).float() / 255


def _labels(file: Path) -> Tensor:
    return _bytes(file)[8:].long()


def _bytes(file: Path) -> Tensor:
    with gzip.open(file) as opened:
        return torch.frombuffer(bytearray(opened.read()), dtype=torch.uint8)
