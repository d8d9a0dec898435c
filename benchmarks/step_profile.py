"""Where the time of a step goes, and which limit of the machine binds it.

    python benchmarks profile [--rounds 5]

Operations are watched by torch.profiler and sorted by name and by the part of the step that they belong to. Arithmetic
and bytes are counted, and compared with a large matrix product and a large copy on the same machine. Bytes are those of
every operation's inputs and results: a bound from above, as caches are not known here.

On a GPU the step of `fit` is there too, as a replayed CUDA graph; its kernels are sorted by name alone.
"""

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dpbnn.plots.style import panels, top_legend
from large import FIRST_STEPS, SMALL, Sequences
from large_networks import LanguageModel, NextToken
from measure import Step, device, take_turns
from pictures import parts
from program import Figures, Options, Program, Results, Table, counts
from variants import NETWORKS as PAPERS
from variants import Network, plain_step, private_step, step_of_fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PART, REPLAYED = "part: ", "private, CUDA graph"
MATRIX, LAYERS, NORMS, NOISE, UPDATE, COPIES, WAITING = CATEGORIES = (
    "matrix products",
    "other layers and loss",
    "norms and clipping",
    "noise",
    "update",
    "copies",
    "launches and Python",
)
PRODUCTS = ("mm", "conv", "attention", "einsum", "linear", "matmul")
COPYING = {"copy_", "clone", "cat", "index_select", "index", "fill_", "zero_", "gather", "empty", "zeros", "contiguous"}
KERNELS = {
    MATRIX: ("gemm", "xmma", "cutlass", "cudnn", "cublas", "convolve", "grad_engine", "fmha"),
    NORMS: ("squares", "products", "factors", "scaled", "weighted_sum", "finite", "nan_to_num"),
    NOISE: ("normal", "distribution"),
    COPIES: ("memcpy", "memset", "copy", "gather", "index", "fill"),
}
"""Words in the names of kernels, looked for in this order; all others are layers and loss, or the update."""
WATCHED_STEPS = 5
CLEAR_SHARE = 0.3


def language() -> nn.Module:
    """A small transformer."""
    return LanguageModel(128, vocabulary=1000, width=256, depth=4, heads=4)


NETWORKS: dict[str, tuple[Network, int]] = {
    "MLP": (PAPERS["MLP"], 256),
    "CNN": (PAPERS["CNN"], 256),
    "transformer": (Sequences(language, (128,), 1000, NextToken()), 16),
}
"""Each with its batch size."""
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or torch.profiler prints two lines whenever it is used


def prepare(network: Network, kind: str, size: int) -> Step:
    """A step whose parts have labels."""
    x, y = network.batch(size)
    model = network.on_device()

    def phase(name: str) -> record_function:
        return record_function(PART + name)

    if kind == "plain":
        take = plain_step(model, x, y, phase)
    elif kind == REPLAYED:
        take = step_of_fit(model, x, y, likelihood=network.likelihood)
        for _ in range(FIRST_STEPS):
            take(x, y)
    else:
        take = private_step(model, x, y, likelihood=network.likelihood, phase=phase)
    return lambda: take(x, y)


def category(event: Any, part: str, after_backward: bool) -> str:
    """What an operation is there for."""
    name = event.name.removeprefix("aten::")
    if part == "noise":
        return NOISE
    if not event.name.startswith("aten::") and device() == "cpu":
        return WAITING
    if any(word in name for word in PRODUCTS):
        return MATRIX
    if part == "update":
        return UPDATE
    if after_backward:
        return NORMS
    return COPIES if name in COPYING else LAYERS


def shares(step: Step) -> dict[str, float]:
    """Milliseconds a step of each category: time on the GPU, or in the operation on a CPU."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device() == "cuda" else [])
    with profile(activities=activities) as watched:
        for _ in range(WATCHED_STEPS):
            step()
    events = [event for event in watched.events() or [] if "CPU" in str(event.device_type)]
    labels = [event for event in events if event.name.startswith(PART)]
    found = dict.fromkeys(CATEGORIES, 0.0)
    for label in labels:
        inside = [e for e in events if label.time_range.start <= e.time_range.start < label.time_range.end]
        backward = [e.time_range.end for e in inside if e.name.startswith("autograd::")]
        part, turned = label.name.removeprefix(PART), max(backward, default=float("inf"))
        for event in inside:
            spent = event.self_device_time_total if device() == "cuda" else event.self_cpu_time_total
            found[category(event, part, event.time_range.start >= turned)] += spent / 1e3 / WATCHED_STEPS
    return found


def kernel_category(name: str) -> str:
    """What a kernel is there for."""
    low = name.lower()
    return next((found for found, words in KERNELS.items() if any(word in low for word in words)), LAYERS)


def shares_of_kernels(step: Step) -> dict[str, float]:
    """Milliseconds a step of each category on a GPU that replays; kernels that overlap share the time."""
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(WATCHED_STEPS):
            step()
        torch.cuda.synchronize()
    kernels = [event for event in watched.events() or [] if "CUDA" in str(event.device_type)]
    found = dict.fromkeys(CATEGORIES, 0.0)
    for kernel in kernels:
        found[kernel_category(kernel.name)] += kernel.time_range.elapsed_us()
    busy = covered([(kernel.time_range.start, kernel.time_range.end) for kernel in kernels])
    return {part: spent / max(1e-9, sum(found.values())) * busy / 1e3 / WATCHED_STEPS for part, spent in found.items()}


def covered(intervals: list[tuple[float, float]]) -> float:
    """How much of the time lies in at least one of them."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class Count(TorchDispatchMode):
    """Counts floating-point operations, and the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        if not func.is_view and "empty" not in str(func):
            for tensor in tree_leaves((args, kwargs, result)):
                if isinstance(tensor, torch.Tensor):
                    whole = tensor.numel() * tensor.element_size()
                    self.bytes += min(whole, tensor.untyped_storage().nbytes())  # one row repeated is read once
        return result


def counted(step: Step) -> tuple[int, int]:
    """Floating-point operations and bytes of a step."""
    with Count() as count:
        step()
    return count.flops, count.bytes


def peaks(quick: bool) -> dict[str, float]:
    """Operations a second of a large matrix product, bytes a second of a large copy."""
    size, numbers = (8192, 2**28) if device() == "cuda" else (1024, 2**24)
    size, numbers = (256, 2**18) if quick else (size, numbers)
    a = torch.randn(size, size, device=device())
    source, target = torch.zeros(numbers, device=device()), torch.zeros(numbers, device=device())
    ways: dict[str, Step] = {"product": lambda: a @ a, "copy": lambda: target.copy_(source)}
    times = take_turns(ways, 2 if quick else 5, 0.0 if quick else 0.25, "limits")
    return {"flops": 2 * size**3 / times.median("product"), "bytes": 8 * numbers / times.median("copy")}


def measure(options: Options) -> Figures:
    """All networks, plain and private."""
    limits, rows = peaks(options.quick), []
    networks = NETWORKS | ({"transformer": SMALL["language model"]} if options.quick else {})
    for name, (network, size) in networks.items():
        records = 4 if options.quick else size
        kinds = ["plain", "private"] + ([REPLAYED] if device() == "cuda" else [])
        steps = {kind: prepare(network, kind, records) for kind in kinds}
        times = take_turns(steps, 1 if options.quick else options.rounds, 0.0 if options.quick else 0.25, name)
        for kind, step in steps.items():
            wall = 1e3 * times.median(kind)
            found = shares_of_kernels(step) if kind == REPLAYED else shares(step)
            if device() == "cuda":
                found[WAITING] = max(0.0, wall - sum(found.values()))
            scale = wall / sum(found.values())  # the profiler itself takes time
            if kind != REPLAYED:  # which does what the private one does
                flops, traffic = counted(step)
            row = {"network": name, "batch_size": records, "step": kind, "milliseconds": wall}
            row |= {"parts": {part: scale * spent for part, spent in found.items()}}
            rows.append(row | {"flops": flops, "bytes": traffic} | bounds(row["parts"], wall, flops, traffic, limits))
    return {"limits": limits, "rows": rows}


def bounds(parts: Any, wall: float, flops: int, traffic: int, limits: dict[str, float]) -> dict[str, Any]:
    """Shares of the step's time that each limit alone would take, and the largest."""
    alone = {
        "arithmetic": 1e3 * flops / limits["flops"] / wall,
        "memory": 1e3 * traffic / limits["bytes"] / wall,
        "launches and Python": parts[WAITING] / wall,
    }
    largest = max(alone, key=alone.__getitem__)
    return {"shares_of_limits": alone, "bound_by": largest if alone[largest] > CLEAR_SHARE else "none of these alone"}


def tables(machine: str, figures: Figures) -> list[Table]:
    """Parts of the step, and limits."""
    rows, bound = [], []
    for row in figures["rows"]:
        case = [f"{row['network']}, batch {row['batch_size']}", row["step"], f"{row['milliseconds']:.2f}"]
        rows.append(case + [f"{100 * row['parts'][part] / row['milliseconds']:.0f} %" for part in CATEGORIES])
        alone = [f"{100 * share:.0f} %" for share in row["shares_of_limits"].values()]
        bound.append([*case, f"{row['flops'] / 1e9:.2f}", f"{row['bytes'] / 1e6:.0f}", *alone, row["bound_by"]])
    speeds = f"{figures['limits']['flops'] / 1e9:.0f} GFLOP/s, {figures['limits']['bytes'] / 1e9:.0f} GB/s"
    limits = ["GFLOP", "MB", "arithmetic", "memory", "launches and Python", "bound by"]
    return [
        Table(f"{machine}, torch {figures['torch']}, parts of a step", ["network", "step", "ms", *CATEGORIES], rows),
        Table(f"{machine}, at most {speeds}, share of each limit", ["network", "step", "ms", *limits], bound),
    ]


def picture(results: Results) -> "Figure":
    """A stacked bar for each step, a panel for each machine."""
    figure, axes = panels(len(results), 1, height=60)
    for one, (machine, figures) in zip(axes, results.items(), strict=True):
        plain = {row["network"]: row["milliseconds"] for row in figures["rows"] if row["step"] == "plain"}
        found = {
            f"{row['network']}, {row['step']}": {part: t / plain[row["network"]] for part, t in row["parts"].items()}
            for row in figures["rows"]
        }
        parts(one, found, CATEGORIES, machine, "time / plain step of the same network")
    top_legend(figure, axes[0], 4)
    return figure


PROGRAM = Program("profile", __file__, measure, tables, picture, counts(rounds=5))
