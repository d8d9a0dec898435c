"""`dpbnn plan`: what settings cost, or what a budget buys, before anything is trained."""

from typing import Annotated

import typer

import dpbnn
from dpbnn.cli.options import AsJson, show
from dpbnn.methods import METHODS

__all__ = ["plan"]


def plan(
    dataset_size: Annotated[int, typer.Option(help="Number of records; it counts as public.")],
    batch_size: Annotated[int, typer.Option(help="Expected number of records in a batch.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "sgd",
    steps: Annotated[int | None, typer.Option(help="Number of steps; or give --epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data: steps = floor(epochs n / B).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget; or give --noise-multiplier.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise in units of the clip norm.")] = None,
    delta: Annotated[float | None, typer.Option(help="If not given: a power of ten below 1 / dataset size.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound on the norm of a record's gradient.")] = None,
    clipping: Annotated[str, typer.Option(help="How gradients are scaled to it: flat or automatic.")] = "flat",
    max_records_per_person: Annotated[int, typer.Option(help="The most records that any one person has.")] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of the method.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of a sampler; 1 is the posterior itself.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute epsilon from settings, or the noise from a budget. No data is read.

    For samplers such as sgld, learning rate, clip norm, temperature and noise are tied: three of them give the fourth.
    """
    from dpbnn.privacy.settings import Given, complete
    from dpbnn.privacy.statement import number_of_steps, print_table, statement_of

    given = Given(clip_norm, noise_multiplier, epsilon, learning_rate, temperature)
    number = number_of_steps(steps, epochs, dataset_size, batch_size)
    chosen = 10.0 ** -len(str(abs(dataset_size))) if delta is None else delta
    draft = dpbnn.PrivacyPlan(dataset_size, batch_size, number, 1.0, 1.0, chosen, clipping, max_records_per_person)
    samplers = {name: entry.is_sampler for name, entry in METHODS.items()}
    assumed = {"delta": delta is None, "clip_norm": clip_norm is None and not samplers.get(method, False)}
    settings = complete(method, draft, given, samplers)
    statement = statement_of(method, settings, [name for name, missing in assumed.items() if missing])
    if as_json:
        show(as_json, statement, "")
    else:
        print_table(statement)
