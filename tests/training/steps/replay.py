"""What a CUDA graph does, on a CPU: it holds operations with their tensors, and replays them without any Python.

While it is captured nothing happens: whatever was written to is put back afterwards. What Python had decided by then
stays decided.
"""

import math
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from dpbnn._internals import ThreadMode
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.training.steps import CapturedSteps
from dpbnn.training.steps.graphs import WAITING, NotCapturable


class Replays:
    """Captures operations; counts graphs and how often they run."""

    def __init__(self):
        self.captured = self.replayed = 0

    @contextmanager
    def capture(self, host_state):
        self.captured += 1
        before = host_state()
        operations = Operations()
        with operations:
            yield Graph(self, operations)
        operations.undo()
        if before != host_state():
            raise NotCapturable("the model draws random numbers on the host, or changes itself while it runs")


class Graph:
    def __init__(self, recorder, operations):
        self.recorder, self.operations = recorder, operations

    def replay(self):
        self.recorder.replayed += 1
        self.operations.replay()


def never_captured(runs, states, first_step=0):
    """Captured steps whose work runs as Python in every step: with the parts, padding and sums of a captured step."""
    steps = CapturedSteps(runs, states, first_step, Replays())
    steps._captured_from = math.inf
    return steps


class Operations(ThreadMode):
    """The operations of one piece of work. Noise, which NumPy writes on a CPU, is one of them."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.made = set()
        self.overwritten = {}
        self.held = []
        self.generators = {}

    def __enter__(self):
        self._add = GraphNoise.add

        def add(noise, sums, sensitivity, std, step):
            for values in sums:
                self._before_writing(values)
            self.held.append(sums)
            self.operations.append(lambda: self._add(noise, sums, sensitivity, std, step))

        GraphNoise.add = add
        return super().__enter__()

    def __exit__(self, *exception):
        GraphNoise.add = self._add
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if WAITING.intersection(func.tags):
            raise NotCapturable(f"{func} makes the host wait for the device")
        if func is torch.ops.aten.lift_fresh.default:
            raise NotCapturable("numbers of the host become a tensor, which a CUDA graph cannot copy to the device")
        generator = kwargs.get("generator")
        if generator is not None and generator not in self.generators:
            self.generators[generator] = generator.get_state()
        args, kwargs = tree_map(_alias, (args, kwargs))
        for argument, value in [*zip(func._schema.arguments, args, strict=False), *_named(func, kwargs)]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for values in tree_leaves(value):
                    self._before_writing(values)
        result = func(*args, **kwargs)
        given = {_storage(values) for values in tree_leaves((args, kwargs)) if isinstance(values, Tensor)}
        fresh = [v for v in tree_leaves(result) if isinstance(v, Tensor) and _storage(v) not in given]
        self.made.update(map(_storage, fresh))
        self.held.append((args, kwargs, fresh))
        self.operations.append(lambda: self._again(func, args, kwargs, fresh))
        return result

    def _before_writing(self, values):
        if isinstance(values, Tensor) and _storage(values) not in self.made | self.overwritten.keys():
            with _disable_current_modes():
                whole = values.detach().untyped_storage()
                self.overwritten[_storage(values)] = whole, whole.clone()

    def _again(self, func, args, kwargs, fresh):
        given = {_storage(values) for values in tree_leaves((args, kwargs)) if isinstance(values, Tensor)}
        result = [v for v in tree_leaves(func(*args, **kwargs)) if isinstance(v, Tensor) and _storage(v) not in given]
        for place, values in zip(fresh, result, strict=True):
            place.copy_(values)

    def undo(self):
        """Put everything back that was there before."""
        for storage, values in self.overwritten.values():
            storage.copy_(values)
        for generator, state in self.generators.items():
            generator.set_state(state)

    def replay(self):
        with torch.no_grad():
            for operation in self.operations:
                operation()


def _alias(value):
    return value.detach() if isinstance(value, Tensor) else value


def _named(func, kwargs):
    by_name = {argument.name: argument for argument in func._schema.arguments}
    return [(by_name[name], value) for name, value in kwargs.items() if name in by_name]


def _storage(values):
    return values.untyped_storage()._cdata
