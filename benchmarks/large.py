"""A step on networks of the sizes that people train: time and memory beside plain PyTorch and Opacus; for a GPU.

    python benchmarks large [--rounds 3] [--only GPT-2] [--batch-size 32] [--quick]

What cannot be done (a refusal, no memory) is reported as such. All variants run in float32, and on some networks again
with torch set to TF32 for products and convolutions. --quick shrinks the networks to try the program on a CPU.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import dpbnn
from dpbnn.device.execution import computing_in
from dpbnn.plots.style import panels
from large_networks import LanguageModel, NextToken, PictureTransformer, WideResNet
from measure import device, peak_megabytes, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts, positive
from variants import OPACUS, Network, Take, Variant, opacus_is_there, plain_step, step_of_fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sequences(Network):
    """Records of tokens, each of which is to be foretold."""

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Synthetic tokens."""
        generator = torch.Generator(device()).manual_seed(0)
        tokens = torch.randint(self.classes, (size, self.shape[0] + 1), generator=generator, device=device())
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def language(sequence: int, tied: bool, **sizes: Any) -> Network:
    """A language model and its likelihood."""
    make = partial(LanguageModel, sequence, tied, **sizes)
    return Sequences(make, (sequence,), sizes.get("vocabulary", 50_257), NextToken())


def pictures(make: Callable[..., nn.Module], side: int, classes: int) -> Network:
    """A network for colour pictures."""
    return Network(make, (3, side, side), classes)


LARGE = {
    "GPT-2 small, 256 tokens": (language(256, tied=False), 64),
    "GPT-2 small, 512 tokens": (language(512, tied=False), 32),
    "GPT-2 small, tied, 256 tokens": (language(256, tied=True), 64),
    "GPT-2 small, tied, 512 tokens": (language(512, tied=True), 32),
    "ViT-S/16, 197 tokens": (pictures(partial(PictureTransformer, 224), 224, 1000), 256),
    "ViT-S/16, 577 tokens": (pictures(partial(PictureTransformer, 384), 384, 1000), 64),
    "WideResNet-16-4": (pictures(WideResNet, 32, 10), 512),
}
"""Each with its batch size."""
ALSO_IN_TF32 = ("ViT-S/16, 197 tokens", "WideResNet-16-4")

TINY = {"width": 32, "depth": 2, "heads": 2}
SMALL = {
    "language model": (language(16, tied=False, vocabulary=50, **TINY), 4),
    "language model, tied": (language(16, tied=True, vocabulary=50, **TINY), 4),
    "picture transformer": (pictures(partial(PictureTransformer, 32, 10, **TINY), 32, 10), 4),
    "residual network": (pictures(partial(WideResNet, 10, 1), 32, 10), 4),
}

PLAIN, OURS = "plain PyTorch", "dpbnn"
FIRST_STEPS = 30
SECONDS = 1.5
"""Of a turn: enough for batches whose sizes differ."""


def ours(model: nn.Module, x: Tensor, y: Tensor, likelihood: Any) -> Take:
    """A step of `fit` itself, on Poisson batches of this size on average.

    The first steps are not timed: each new size of a batch's parts is captured when it comes for the first time.
    """
    take = step_of_fit(model, x, y, likelihood=likelihood)
    for _ in range(FIRST_STEPS if device() == "cuda" else 0):
        take(x, y)
    return take


def attempt(network: Network, variant: Variant, size: int) -> tuple[float, str]:
    """Megabytes that a variant takes, or none and why it cannot be done."""
    try:
        if device() == "cuda":
            return peak_megabytes(partial(network.step, variant), size, []), ""
        network.step(variant, size)()
        return float("nan"), ""
    except torch.OutOfMemoryError:
        return float("nan"), "out of memory"
    except Exception as error:  # whatever a library raises on a network that it does not know
        return float("nan"), f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
    finally:
        gc.collect()


def measure_one(name: str, network: Network, size: int, options: Options) -> list[dict[str, Any]]:
    """All variants on one network."""
    variants: dict[str, Variant] = {PLAIN: plain_step, OURS: partial(ours, likelihood=network.likelihood)}
    variants |= OPACUS if opacus_is_there() else {}
    peaks = {label: attempt(network, variant, size) for label, variant in variants.items()}
    if peaks[PLAIN][1]:
        peaks = {
            label: (megabytes, failure or "nothing to compare with") for label, (megabytes, failure) in peaks.items()
        }
    able = {label: network.step(variants[label], size) for label, (_, failure) in peaks.items() if not failure}
    times = take_turns(able, options.rounds, 0.0 if options.quick else SECONDS, name)
    rows = []
    for label, (megabytes, failure) in peaks.items():
        row = {"network": name, "batch_size": size, "variant": label}
        if failure:
            rows.append(row | {"failure": failure})
        else:
            memory = {"megabytes": megabytes, "memory_ratio": megabytes / peaks[PLAIN][0]}
            rows.append(row | times.beside(label, PLAIN) | (memory if device() == "cuda" else {}))
        if label == OURS and not failure:
            x, y = network.batch(1)
            rows[-1]["engine"] = dpbnn.check_model(network.on_device(), network.likelihood, x[:0], y[:0]).engine
    return rows


def measure(options: Options) -> Figures:
    """All networks."""
    networks = SMALL if options.quick else LARGE
    options.rounds = 1 if options.quick else options.rounds
    rows = []
    for name, (network, size) in networks.items():
        if options.only is None or name.startswith(options.only):
            for precision in ("float32", "tf32") if name in ALSO_IN_TF32 else ("float32",):
                with computing_in(precision, torch.device(device())):
                    found = measure_one(name, network, options.batch_size or size, options)
                rows += [row | {"precision": precision} for row in found]
                gc.collect()
    return {"rounds": options.rounds, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = []
    for row in figures["rows"]:
        label = f"{row['variant']} ({row['engine'].replace('_', '-')})" if "engine" in row else row["variant"]
        if "failure" in row:
            cells = [row["failure"], "", "", ""]
        else:
            times = [f"{row['milliseconds']:.1f}", f"{row['ratio']:.2f}x"]
            has = "megabytes" in row
            memory = [f"{row['megabytes']:.0f}", f"{row['memory_ratio']:.2f}x"] if has else ["", ""]
            cells = times + memory
        rows.append([f"{row['network']}, batch {row['batch_size']}", row["precision"], label, *cells])
    columns = ["network", "precision", "variant", "ms", "time / plain", "MB", "memory / plain"]
    return [Table(f"{machine}, torch {figures['torch']}", columns, rows)]


def picture(results: Results) -> "Figure":
    """Time and memory over plain PyTorch, a row of panels for each network."""
    (machine, figures), *_ = results.items()
    in_float32 = [row for row in figures["rows"] if row["precision"] == "float32"]
    names = list(dict.fromkeys(row["network"] for row in in_float32))
    figure, axes = panels(len(names), 2, height=30)
    for position, name in enumerate(names):
        rows = [row for row in in_float32 if row["network"] == name and row["variant"] != PLAIN]
        for side, key in enumerate(("ratio", "memory_ratio")):
            label = ("time / plain PyTorch", "memory / plain PyTorch")[side]
            bars(axes[2 * position + side], {row["variant"]: row.get(key) for row in rows}, name, label)
    figure.suptitle(f"{machine}, float32", fontsize=9, x=0.01, ha="left")
    return figure


OPTIONS = counts(rounds=3) | {
    "only": {"help": "networks whose name starts so"},
    "batch-size": {"type": positive, "help": "instead of the network's own"},
}
PROGRAM = Program("large", __file__, measure, tables, picture, OPTIONS, gpu_only=True)
