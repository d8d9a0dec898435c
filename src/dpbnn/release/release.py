"""`Release(posterior, guarantee)`: all that leaves the machine, and how it is saved and loaded.

A saved release is a folder. ``posterior.safetensors`` (numbers alone) and ``release.json`` are loaded, which executes
nothing; ``card.md`` says in words what is promised. A network of `dpbnn.networks` is rebuilt; any other model is passed
in and checked by names and shapes.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.clipping.objective import Objective
from dpbnn.data.arrays import as_tensor
from dpbnn.errors import DpbnnError
from dpbnn.files.json_values import or_null, unless_null
from dpbnn.models.dropout import dropout_layers
from dpbnn.models.likelihoods import LIKELIHOODS, Likelihood
from dpbnn.models.networks import NETWORKS, rebuild
from dpbnn.models.replica import Pool, replica, structure_of
from dpbnn.posterior import POSTERIORS, Posterior
from dpbnn.prediction import Prediction
from dpbnn.prediction.memory import Measurements
from dpbnn.prediction.predict import Predictor
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.release.card import CARD, card

__all__ = ["FORMAT_VERSION", "Release", "guarantee_of", "load", "objective_of", "settings_of"]

FORMAT_VERSION = 1


@dataclass(eq=False, repr=False)
class Release:
    """A posterior with its guarantee.

    `settings` says how it was trained; `history` holds the measures on public data, if any was given. `diagnostics`
    is empty unless the run was made with `unsafe_diagnostics`: then it holds values without noise, is not saved, and
    the guarantee says so.
    """

    posterior: Posterior
    guarantee: PrivacyGuarantee
    model: nn.Module
    likelihood: Likelihood
    settings: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, float], ...] = ()
    diagnostics: tuple[Mapping[str, float], ...] = ()

    def predict(
        self,
        X: Any,
        *,
        num_draws: int = 100,
        seed: int | None = None,
        keep_draws: bool = False,
        memory_limit: int | None = None,
        precision: str | None = None,
    ) -> Prediction:
        """The predictive distribution for new inputs; takes no private data and spends no budget.

        Args:
            X: inputs, records first: a tensor or an array, mapped from disk if it is large.
            num_draws: how many draws of the weights to average; all of them where the posterior holds fewer.
            seed: makes the draws repeatable.
            keep_draws: keep the probabilities of each draw, as ``prediction.draws``.
            memory_limit: bytes to work with, beside the inputs, the posterior and the result; None for 256 MiB on a
                CPU and an eighth of a device's memory.
            precision: of the networks' products, "float32", "tf32" or "bfloat16"; None leaves torch's settings.
        """
        return self._predictor(num_draws, seed, keep_draws, memory_limit, precision)(X)

    def predict_in_parts(
        self,
        X: Any,
        *,
        rows: int,
        num_draws: int = 100,
        seed: int | None = None,
        keep_draws: bool = False,
        memory_limit: int | None = None,
        precision: str | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for `rows` records after another, from the same draws: for results too large to hold at once."""
        return self._predictor(num_draws, seed, keep_draws, memory_limit, precision).in_parts(X, rows)

    def _predictor(
        self, num_draws: int, seed: int | None, keep_draws: bool, memory_limit: int | None, precision: str | None
    ) -> Predictor:
        convert = partial(as_tensor, "X", dtype=next(self.model.parameters()).dtype)
        how = num_draws, seed, keep_draws, memory_limit, convert, precision
        return Predictor(self._networks.lent, self.posterior, *how, measurements=self._measurements)

    def __repr__(self) -> str:
        kept = f"epsilon={self.guarantee.epsilon:g}" if self.guarantee.holds else "no privacy guarantee"
        return f"Release({self.posterior.kind} of {type(self.model).__name__}, {kept})"

    @cached_property
    def _networks(self) -> Pool[Objective]:
        """Replicas of the model, for one thread each."""
        objective = partial(objective_of, self.model, self.likelihood, self.posterior)
        return Pool(objective, key=lambda: structure_of(self.model))

    @cached_property
    def _measurements(self) -> Measurements:
        """The memory that predictions have measured the networks to need."""
        return Measurements()

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: networks and measurements for predictions are made again."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the release into the folder `path`, whole or not at all.

        A release has cost budget: another one that is there already is replaced with `overwrite` alone.
        """
        target = Path(path)
        if (target / "release.json").exists():
            if not overwrite:
                raise DpbnnError(f"{target} holds a release already; choose another path, or pass overwrite=True.")
        elif target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DpbnnError(f"{target} exists and is no release; choose another path.")
        try:
            self._write(target)
        except OSError as error:
            text = f"The release cannot be written to {target}: {error}; nothing there was changed."
            raise DpbnnError(text) from error

    def _write(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            fresh = Path(scratch) / "release"
            fresh.mkdir()
            tensors = {name: values.detach().cpu().contiguous() for name, values in self.posterior.tensors().items()}
            save_file(tensors, fresh / "posterior.safetensors")
            (fresh / "release.json").write_text(json.dumps(self._description(), indent=2, allow_nan=False))
            (fresh / CARD).write_text(card(self.guarantee, self.settings))
            shutil.copymode(fresh / "release.json", fresh / "posterior.safetensors")  # which is written for its owner
            if target.exists():
                target.replace(Path(scratch) / "old")
            fresh.replace(target)

    def _description(self) -> dict[str, Any]:
        name, likelihood = type(self.model).__name__, type(self.likelihood).__name__
        settings = self.model.settings if NETWORKS.get(name) is type(self.model) else None
        of_likelihood = asdict(self.likelihood) if likelihood in LIKELIHOODS else None  # type: ignore[call-overload]
        return {
            "format_version": FORMAT_VERSION,
            "posterior": self.posterior.kind,
            "likelihood": {"name": likelihood, "settings": of_likelihood},
            "network": {"name": name, "settings": settings, "structure": repr(self.model)},
            "weights": _shapes(self.model),
            "settings": dict(self.settings),
            "history": [{name: or_null(value) for name, value in entry.items()} for entry in self.history],
            "guarantee": json.loads(self.guarantee.to_json()),
        }


def load(path: str | os.PathLike[str], model: nn.Module | None = None, likelihood: Likelihood | None = None) -> Release:
    """Read what `Release.save` wrote.

    Args:
        path: the release's folder.
        model: the network that was trained, unless it is one of `dpbnn.networks`. Only its trained weights are in
            the release: what was frozen, and its buffers, must be as they were.
        likelihood: the likelihood, if it is one of your own.
    """
    description = _read(Path(path))
    try:
        tensors = load_file(Path(path) / "posterior.safetensors")
    except (SafetensorError, OSError) as error:
        raise DpbnnError(f"{path}/posterior.safetensors cannot be read: {error}.") from error
    if model is not None and not isinstance(model, nn.Module):
        _validate.refuse("model", "a torch.nn.Module", model)
    network = model if model is not None else _network(description["network"])
    _check_weights(network, description["weights"])
    posterior = POSTERIORS[_validate.one_of("posterior", description["posterior"], POSTERIORS)]
    if posterior.keeps_dropout and not dropout_layers(network):
        raise DpbnnError("model must have the dropout layers that it was trained with, got none; pass that network.")
    _check_structure(network, description["network"])
    history = description["history"]
    return Release(
        posterior.from_tensors(tensors),
        PrivacyGuarantee.from_json(json.dumps(description["guarantee"])),
        network,
        _likelihood(description["likelihood"], likelihood),
        description["settings"],
        tuple({name: unless_null(value, math.nan) for name, value in entry.items()} for entry in history),
    )


def objective_of(model: nn.Module, likelihood: Likelihood, posterior: Posterior) -> Objective:
    """A replica of the network with its likelihood, to predict with weights that are drawn from the posterior."""
    of_likelihood = tuple(name for name in posterior.names if name.startswith("likelihood."))
    return Objective(replica(model), likelihood, of_likelihood)


def guarantee_of(path: str | os.PathLike[str]) -> PrivacyGuarantee:
    """The guarantee of a saved release, without its model."""
    return PrivacyGuarantee.from_json(json.dumps(_read(Path(path))["guarantee"]))


def settings_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a saved release, without its model."""
    return dict(_read(Path(path))["settings"])


def _read(path: Path) -> dict[str, Any]:
    file = path / "release.json"
    if not file.is_file():
        raise DpbnnError(f"{path} is no release: it has no release.json; pass the folder that save wrote.")
    try:
        description = json.loads(file.read_text())
        version = description["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DpbnnError(f"{file} is damaged: {error!r}.") from error
    if version != FORMAT_VERSION:
        raise DpbnnError(f"{file} has format version {version}, this dpbnn reads {FORMAT_VERSION}; upgrade dpbnn.")
    missing = {"posterior", "likelihood", "network", "weights", "settings", "history", "guarantee"} - description.keys()
    if missing:
        raise DpbnnError(f"{file} is damaged: it lacks {', '.join(sorted(missing))}.")
    return dict(description)


def _network(description: Mapping[str, Any]) -> nn.Module:
    if description["settings"] is None:
        raise DpbnnError(f"model must be given: the release holds weights of your own {description['name']}.")
    return rebuild(description["name"], description["settings"])


def _shapes(network: nn.Module) -> dict[str, list[int]]:
    """The shapes of its trained weights."""
    return {name: list(weight.shape) for name, weight in network.named_parameters() if weight.requires_grad}


def _check_weights(network: nn.Module, trained: Mapping[str, list[int]]) -> None:
    given = _shapes(network)
    differing = sorted(name for name in given.keys() | trained.keys() if given.get(name) != trained.get(name))
    if differing:
        first = differing[0]
        raise DpbnnError(
            f"model does not fit the release in {len(differing)} weights, the first '{first}': the model has "
            f"{given.get(first, 'none')}, the release {trained.get(first, 'none')}; pass the network that was trained, "
            "with the same parameters frozen."
        )


def _check_structure(network: nn.Module, description: Mapping[str, Any]) -> None:
    """Warn of another network that these weights fit, such as one with another activation: it predicts otherwise."""
    given, trained = (text.splitlines() for text in (repr(network), description.get("structure", repr(network))))
    pairs = [(a.strip(), b.strip()) for a, b in zip_longest(given, trained, fillvalue="") if a != b]
    if pairs:
        warn(
            f"The model differs from the one that was trained in {len(pairs)} lines of its description, the first "
            f"'{pairs[0][0]}' where that had '{pairs[0][1]}'; its predictions may be wrong."
        )


def _likelihood(description: Mapping[str, Any], given: Likelihood | None) -> Likelihood:
    name = description["name"]
    if given is not None:
        if type(given).__name__ != name:
            raise DpbnnError(f"likelihood must be the {name} that the release was trained with, got {given!r}.")
        return given
    if name not in LIKELIHOODS:
        raise DpbnnError(f"likelihood must be given: the release was trained with your own {name}.")
    return LIKELIHOODS[name](**description["settings"])
