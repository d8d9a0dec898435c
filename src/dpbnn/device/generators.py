"""Where torch's random numbers come from: the caller's generators, in place of those of the whole process.

A model draws its dropout masks from torch's default generators, which every thread shares and anybody may seed. Inside
`drawing_from`, all draws of this thread come from generators that the caller holds:

    >>> import torch
    >>> with drawing_from(Generators.seeded(7)):
    ...     masks = torch.nn.functional.dropout(torch.ones(4))
    >>> with drawing_from(Generators.seeded(7)):
    ...     again = torch.nn.functional.dropout(torch.ones(4))
    >>> torch.equal(masks, again)
    True

A call that names its generator stays as it is.

Guarantees:
    Inside, torch's default generators are neither read nor changed.
    Seeding the default generators, in any thread, changes nothing that is drawn inside.
    What draws in a way that cannot be redirected is refused.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from dpbnn._internals import ThreadMode, arguments_of
from dpbnn.device.decompositions import DecomposedDropout
from dpbnn.errors import DpbnnError

__all__ = [
    "Generators",
    "default_generators",
    "drawing_from",
    "set_default_generators",
    "without_fast_path",
]

aten = torch.ops.aten
CPU = torch.device("cpu")


class Generators:
    """A generator for each device, made and put into its first state by `seed` when it is first needed.

    `num_draws` counts the operations that have drawn from them.
    """

    def __init__(self, seed: Callable[[torch.Generator], object]) -> None:
        self._seed = seed
        self._made: dict[torch.device, torch.Generator] = {}
        self.num_draws = 0

    @staticmethod
    def seeded(seed: int) -> "Generators":
        """The same seed on every device."""
        return Generators(lambda generator: generator.manual_seed(seed))

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        return self.num_draws > 0

    def reseed(self, seed: Callable[[torch.Generator], object]) -> None:
        """Bring the same generators into another state: a CUDA graph knows the generators that it draws from."""
        self._seed = seed
        for generator in self._made.values():
            seed(generator)

    def on(self, device: torch.device) -> torch.Generator:
        """The generator of this device."""
        if device == torch.device("cuda"):  # whichever is current
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._made:
            self._made[device] = torch.Generator(device)
            self._seed(self._made[device])
        return self._made[device]

    def draw_from(self, device: torch.device) -> torch.Generator:
        """The generator of this device, for one draw."""
        self.num_draws += 1
        return self.on(device)


@contextmanager
def drawing_from(generators: Generators) -> Iterator[Generators]:
    """Inside, this thread draws from `generators` wherever it would from torch's default ones."""
    outer: _Redirected | None = getattr(_this_thread, "mode", None)
    with ExitStack() as stack:
        if outer is None:
            if torch.cuda.is_initialized():
                stack.enter_context(DecomposedDropout())
            _this_thread.mode = stack.enter_context(_Redirected(generators))
            stack.callback(vars(_this_thread).pop, "mode")
        else:  # one mode is enough: every one takes time for every operation
            stack.callback(setattr, outer, "generators", outer.generators)
            outer.generators = generators
        yield generators


_this_thread = threading.local()


_put_back = 0
"""How often `set_default_generators` has brought an earlier state back."""


def default_generators(device: torch.device) -> tuple[bytes | int, ...]:
    """The states of torch's default generators, of the CPU and of a CUDA device, and how often one was put back.

    The count is read last: what is the same before and after has not moved meanwhile.
    """
    states = [torch.default_generator.get_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return *(state.numpy().tobytes() for state in states), _put_back


def set_default_generators(device: torch.device, states: tuple[bytes | int, ...]) -> None:
    """Bring them into the states that `default_generators` gave."""
    global _put_back
    _put_back += 1  # first: another thread that finds its state again must not take that for stillness
    known = (state for state in states if isinstance(state, bytes))
    cpu, *cuda = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in known)
    torch.default_generator.set_state(cpu)
    for state in cuda:
        torch.cuda.set_rng_state(state, device)


def without_fast_path() -> AbstractContextManager[Any]:
    """Without the fast path of transformer layers, which in evaluation mode leaves out the dropout layers inside them.

    Torch takes no fast path in a thread in which a `TorchFunctionMode` is active.
    """
    return BaseTorchFunctionMode()


class _Redirected(ThreadMode):
    """Hands one of our generators to every operation that draws."""

    def __init__(self, generators: Generators) -> None:
        super().__init__()
        self.generators = generators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _may_draw(func) or _device(args, kwargs).type == "meta":
            return func(*args, **kwargs)
        if _takes_generator(func):
            if kwargs.get("generator") is None:
                kwargs = kwargs | {"generator": self.generators.draw_from(_device(args, kwargs))}
            return func(*args, **kwargs)
        if func in WITH_GENERATOR:
            return WITH_GENERATOR[func](*args, generator=self.generators.draw_from(_device(args, kwargs)), **kwargs)
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        with self:  # in inference mode, compound operations come here whole
            result = func.decompose(*args, **kwargs)
        return result if result is not NotImplemented else _refuse(func)


@cache
def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


@cache
def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in arguments_of(func))


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((value.device for value in args if isinstance(value, Tensor)), CPU)


def _draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws: attention and recurrent layers do so in training with dropout only."""
    arguments = arguments_of(func)
    given = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    rate = given.get("dropout_p", given.get("dropout", given.get("p")))
    return rate is None or (rate > 0 and bool(given.get("train", given.get("training", True))))


def _refuse(func: Any) -> Any:
    raise DpbnnError(
        f"The model draws random numbers by {func}, which takes no generator: its draws could not be kept secret. Use "
        "nn.Dropout layers, and for recurrent layers dropout=0 with nn.Dropout between them."
    )


def _dropout(x: Tensor, p: float, train: bool | None = None, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def _like(fill: str) -> Callable[..., Tensor]:
    def draw(like: Tensor, *limits: int, generator: torch.Generator, **how: Any) -> Tensor:
        return getattr(torch.empty_like(like, **how), fill)(*limits, generator=generator)

    return draw


WITH_GENERATOR: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.rand.default: aten.rand.generator,
    aten.randn.default: aten.randn.generator,
    aten.randint.default: aten.randint.generator,
    aten.randint.low: aten.randint.low_generator,
    aten.randperm.default: aten.randperm.generator,
    aten.rand_like.default: _like("uniform_"),
    aten.randn_like.default: _like("normal_"),
    aten.randint_like.default: _like("random_"),
    aten.randint_like.low_dtype: _like("random_"),
}
"""What takes a generator and does the same as an operation that takes none."""
