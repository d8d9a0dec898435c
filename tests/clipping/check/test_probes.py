"""What a record's padding, special values and range do to others: models that look at them are refused, by name.

Beside each kind of model that mixes records stands one that does the same for each record alone, and is accepted.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.check import probes
from dpbnn.clipping.check.trial import Trial
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian

SHAPE, TOKENS = (7, 4), 9


class Network(nn.Module):
    """What comes before a linear layer, from sequences of 7 positions with 4 features, or from anything else."""

    def __init__(self, features, width=4, **layers):
        super().__init__()
        self.features, self.last = features, nn.Linear(width, 3)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.last(self.features(self, x))


def of(features, **options):
    return lambda: Network(lambda _, x: features(x), **options)


def used(x):
    """Positions that hold anything but zeros."""
    return (x != 0).any(-1)


def lengths(x):
    return used(x).sum(1)


def cut(x, length):
    return x[:, : max(1, int(length))]


def cut_behind_all(x):
    return cut(x, 1 + used(x).any(0).nonzero().max())


def cut_at_the_front(x):
    return x[:, int(used(x).int().argmax(1).min()) :]


def branch(condition):
    """Something else for all records, if the batch is so."""
    return of(lambda x: (x + 1 if bool(condition(x)) else x).nan_to_num().mean(1))


def masked_mean(x, valid):
    return (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)


def last_valid(x):
    return x[torch.arange(len(x)), (lengths(x) - 1).clamp(min=0)]


def sorted_by_length(x):
    return last_valid(x[lengths(x).argsort(descending=True, stable=True)])


def sorted_and_back(x):
    order = lengths(x).argsort(descending=True, stable=True)
    return last_valid(x[order])[order.argsort()]


def filled_with_means_of_the_batch(x):
    return torch.where(x.isnan(), x.nanmean(0), x).nan_to_num().mean(1)


def filled_with_own_means(x):
    return torch.where(x.isnan(), x.nanmean(1, keepdim=True), x).nan_to_num().mean(1)


def above_quantile(x, dim):
    threshold = x.flatten(1).nan_to_num().quantile(0.9, dim=dim, keepdim=dim is not None)
    return (x * (x > threshold.view(-1, 1, 1))).nan_to_num().mean(1)


def without_empty_records(x):
    kept = (lengths(x) > 0) | x.isnan().any(-1).any(-1)
    means = x.new_zeros(len(x), x.shape[2])
    means[kept] = x[kept].mean(1)
    return means


def refused_if_empty(x):
    if bool((x == 0).flatten(1).all(1).any()):
        raise ValueError("an empty record")
    return x


def packed(model, x, sorts=False):
    return pack_padded_sequence(x, lengths(x).clamp(min=1), batch_first=True, enforce_sorted=sorts)


def unpacked(model, x):
    return pad_packed_sequence(model.lstm(packed(model, x))[0], batch_first=True)[0]


def final_state(model, x, sorts=False):
    return model.lstm(packed(model, x, sorts))[1][0][-1]


def lstm(**options):
    return nn.LSTM(4, 4, batch_first=True, **options)


def attended(model, x):
    ignored = ~used(x)
    ignored = ignored & ~ignored.all(1, keepdim=True)
    return masked_mean(model.attention(x, x, x, key_padding_mask=ignored, need_weights=False)[0], ~ignored)


def encoded(model, x):
    ignored = ~used(x)
    return masked_mean(model.encoder(x, src_key_padding_mask=ignored & ~ignored.all(1, keepdim=True)), ~ignored)


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True), 1)


def one_hot_up_to_the_largest(x):
    return F.one_hot(x, int(x.max()) + 1).float().mean((1, 2))[:, None].expand(-1, 4)


def embedded(model, x):
    return masked_mean(model.table(x.clamp(min=0)), (x > 0).float())


def table():
    return nn.Embedding(TOKENS, 4)


PADDING, VALUE = r"another one's padding ends", r"special value \({}\) in another record"

REFUSED = {
    "cut to the longest, mean": (of(lambda x: cut(x, lengths(x).max()).mean(1)), PADDING),
    "cut to the longest, last position": (of(lambda x: cut(x, lengths(x).max())[:, -1]), PADDING),
    "cut to a multiple of two": (of(lambda x: cut(x, 2 * (int(lengths(x).max()) // 2)).mean(1)), PADDING),
    "cut to the longest, features first": (
        of(lambda x: cut(x.mT, lengths(x.mT).max()).mean(1), width=7),
        PADDING,
    ),
    "cut to the longest, zeros in front": (of(lambda x: cut_at_the_front(x).mean(1)), PADDING),
    "cut to the longest, NaN behind": (
        of(lambda x: cut(x, (~x.isnan().any(-1)).sum(1).max()).nan_to_num().mean(1)),
        PADDING,
    ),
    "cut to the longest, -1 behind": (of(lambda x: cut(x, (x != -1).any(-1).sum(1).max()).mean(1)), PADDING),
    "cut to the longest, -999 behind": (of(lambda x: cut(x, (x != -999).any(-1).sum(1).max()).mean(1)), PADDING),
    "cut to the shortest": (of(lambda x: cut(x, lengths(x).min()).mean(1)), r"zeros at the end of another"),
    "cut beside dropout": (
        lambda: Network(lambda m, x: m.dropout(cut(x, lengths(x).max()).mean(1)), dropout=nn.Dropout(0.3)),
        PADDING,
    ),
    "cut beside noise in every mode": (
        of(lambda x: cut(x, lengths(x).max()).mean(1) + 0.1 * torch.randn(len(x), 4)),
        PADDING,
    ),
    "sorted by length": (of(sorted_by_length), PADDING),
    "unpacked, last position": (lambda: Network(lambda m, x: unpacked(m, x)[:, -1], lstm=lstm()), PADDING),
    "a branch on -999": (branch(lambda x: (x == -999).any()), VALUE.format(-999)),
    "a branch on -999 in one feature": (branch(lambda x: (x[..., 2] == -999).any()), VALUE.format(-999)),
    "a branch on -1": (branch(lambda x: (x == -1).any()), VALUE.format(-1)),
    "a branch on 9999": (branch(lambda x: (x == 9999).any()), r"such as -9999, 9999"),
    "a branch on the least number": (branch(lambda x: (x == torch.finfo(x.dtype).min).any()), r"such as -9999, 9999"),
    "a branch on an empty record": (branch(lambda x: (x == 0).all(-1).all(-1).any()), r"another one is all zeros"),
    "a branch on an empty batch": (branch(lambda x: (x == 0).all()), r"another one is all zeros"),
    "a branch on NaN": (of(lambda x: x.nan_to_num().mean(1) / (1 + x.isnan().any())), ""),
    "a branch on values above 1": (branch(lambda x: x.nan_to_num().max() > 1), r"range of another"),
    "a branch on values from 1 to 255": (branch(lambda x: 1 < x.nan_to_num().max() <= 255), ""),
    "a branch on values below 0": (branch(lambda x: x.nan_to_num().min() < 0), r"range of another"),
    "a branch on whole numbers": (branch(lambda x: (x == x.round()).all()), r"range of another"),
    "a branch on equal records": (branch(lambda x: len(x.unique(dim=0)) < len(x)), r"another one equals"),
    "a branch on records that are all equal": (branch(lambda x: (x == x[0]).all()), r"another"),
    "a branch on constant records": (branch(lambda x: (x.flatten(1).std(1) < 1e-6).all()), r"another"),
    "missing values filled with means of the batch": (of(filled_with_means_of_the_batch), r"another"),
    "a quantile of the batch": (of(lambda x: above_quantile(x, None)), ""),
    "more than 32 records": (branch(lambda x: len(x) > 32), ""),
    "an odd number of records": (branch(lambda x: len(x) % 2), ""),
    "tokens: one-hot up to the largest": (of(one_hot_up_to_the_largest), r"largest|another"),
    "tokens: cut to the longest": (
        lambda: Network(lambda m, x: m.table(cut(x, (x > 0).sum(1).max())).mean(1), table=table()),
        "",
    ),
    "tokens: cut at the front": (
        lambda: Network(lambda m, x: m.table(x[:, int((x > 0).int().argmax(1).min()) :]).mean(1), table=table()),
        "",
    ),
    "tokens: a branch on -1": (
        lambda: Network(lambda m, x: m.table(x.clamp(min=0)).mean(1) / (1 + (x == -1).any()), table=table()),
        VALUE.format(-1),
    ),
    "tokens: a branch on an empty text": (
        lambda: Network(lambda m, x: m.table(x).mean(1) / (1 + (x == 0).all(1).any()), table=table()),
        r"another",
    ),
}

ACCEPTED = {
    "a mask for each record": of(lambda x: masked_mean(x, used(x).float())),
    "the last position of each record": of(last_valid),
    "cut to the longest, and masked": of(lambda x: masked_mean(y := cut_behind_all(x), used(y).float())),
    "the largest over positions": of(lambda x: x.amax(1)),
    "sorted by length and back": of(sorted_and_back),
    "layer norm": lambda: Network(lambda m, x: m.norm(x).mean(1), norm=nn.LayerNorm(4)),
    "attention with a mask of padding": lambda: Network(
        attended, attention=nn.MultiheadAttention(4, 2, batch_first=True)
    ),
    "an encoder with a mask of padding and dropout": lambda: Network(encoded, encoder=encoder()),
    "an encoder in evaluation mode": lambda: Network(encoded, encoder=encoder()).eval(),
    "packed sequences": lambda: Network(final_state, lstm=lstm()),
    "packed sequences with dropout": lambda: Network(final_state, lstm=lstm(num_layers=2, dropout=0.3)),
    "unpacked, each record's last position": lambda: Network(
        lambda m, x: unpacked(m, x)[torch.arange(len(x)), lengths(x).clamp(min=1) - 1], lstm=lstm()
    ),
    "-999 replaced entry by entry": of(lambda x: torch.where(x == -999, 0.0, x).mean(1)),
    "a column that says what is missing": of(
        lambda x: torch.cat([x.nan_to_num(), x.isnan().float()], dim=-1).mean(1), width=8
    ),
    "missing values filled with the record's mean": of(filled_with_own_means),
    "a quantile of each record": of(lambda x: above_quantile(x, 1)),
    "scaled by the record's largest": of(lambda x: (x / x.abs().amax((1, 2), keepdim=True).clamp(min=1)).mean(1)),
    "a branch for each record": of(lambda x: torch.where(x.amax((1, 2), keepdim=True) > 1, x / 255, x).mean(1)),
    "equal records computed once": of(lambda x: (rows := x.unique(dim=0, return_inverse=True))[0][rows[1]].mean(1)),
    "empty records left out": of(without_empty_records),
    "dropout": lambda: Network(lambda m, x: m.dropout(x.mean(1)), dropout=nn.Dropout(0.3)),
    "noise in every mode": of(lambda x: (x + torch.randn_like(x)).mean(1)),
    "an error for an empty record": of(lambda x: refused_if_empty(x).mean(1)),
    "an error for records that are not sorted": lambda: Network(lambda m, x: final_state(m, x, True), lstm=lstm()),
    "an error for records that are too short": of(lambda x: cut(x, lengths(x).max()).flatten(1), width=28),
    "tokens: one-hot": of(lambda x: F.one_hot(x.clamp(0, 1), 2).float().mean(2), width=7),
    "tokens: a mask for each record": lambda: Network(embedded, table=table()),
    "tokens: cut to the longest, and masked": lambda: Network(
        lambda m, x: embedded(m, cut_behind_all(x[..., None])[..., 0]), table=table()
    ),
    "tokens: packed": lambda: Network(
        lambda m, x: m.lstm(pack_padded_sequence(m.table(x), (x > 0).sum(1).clamp(min=1), True, enforce_sorted=False))[
            1
        ][0][-1],
        table=table(),
        lstm=lstm(),
    ),
}


def like(name):
    """Records of the shape and type that the model of this name takes; their values are never looked at."""
    return torch.zeros(4, 7, dtype=torch.long) if name.startswith("tokens") else torch.zeros(4, *SHAPE)


LABELS = torch.zeros(4, dtype=torch.long)
SLOW = pytest.mark.filterwarnings("ignore:.*exactly but slowly", "ignore:.*nested tensors:UserWarning")


@pytest.mark.guarantees(
    "A model that mixes records or keeps anything of them, as far as synthetic records show, is refused."
)
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_looks_at_other_records_is_refused_by_what_it_does(name):
    make, message = REFUSED[name]
    with pytest.raises(DpbnnError, match=rf"mixes records.*{message}"):
        check_model(make(), Categorical(), like(name), LABELS)


@SLOW
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_model_that_does_the_same_for_each_record_alone_is_accepted(name):
    assert check_model(ACCEPTED[name](), Categorical(), like(name), LABELS).num_outputs == 3


def special_records():
    """Of unequal lengths, with zeros in front, with NaN, far out; the last one is the longest, and has -999 in it."""
    x = torch.randn(16, *SHAPE)
    for record in range(len(x) - 1):
        x[record, 1 + record % 4 :] = 0
    x[3, 0], x[4, 0, 1], x[-1, 2] = 0, math.nan, -999
    x[5] *= 300
    return x, torch.arange(len(x)) % 3


def farthest_move(model):
    """Of the clipped sum by one of the records, in clip norms."""
    x, y = special_records()
    sums = []
    for left_out in (None, 3, 4, 5, 15):
        kept = [record for record in range(len(x)) if record != left_out]
        gradients = clipped_gradient_sum(model, Categorical(), x[kept], y[kept], 0.1).gradients
        sums.append(torch.cat([gradients[name].ravel() for name in sorted(gradients)]))
    return max(float((other - sums[0]).norm()) for other in sums[1:]) / 0.1


@SLOW
@pytest.mark.parametrize("name", [name for name in ACCEPTED if not {"tokens:", "noise", "error"} & {*name.split()}])
def test_one_record_moves_the_sum_of_an_accepted_model_by_no_more_than_the_clip_norm(name):
    assert farthest_move(ACCEPTED[name]().eval()) <= 1


@pytest.mark.parametrize("name", ["cut to the longest, last position", "a branch on -999"])
def test_one_record_would_move_the_sum_of_a_refused_model_by_more_than_the_clip_norm(name, monkeypatch):
    monkeypatch.setattr(Trial, "refuse_dependence_on_kinds", lambda _: None)
    assert farthest_move(REFUSED[name][0]()) > 1.5


def test_half_precision_hides_no_cut_to_the_longest():
    model, x = REFUSED["cut to the longest, last position"][0](), torch.zeros(4, *SHAPE, dtype=torch.bfloat16)
    with pytest.raises(DpbnnError, match=PADDING):
        check_model(model.bfloat16(), Categorical(), x, LABELS)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_whole_numbers_of_any_type_are_probed(dtype):
    def features(x):
        return cut(x, (x != 0).sum(1).max()).float().mean(1, keepdim=True).expand(-1, 4)

    with pytest.raises(DpbnnError, match=r"mixes records"):
        check_model(Network(lambda _, x: features(x)), Categorical(), torch.zeros(4, 7, dtype=dtype), LABELS)


class Doubled(HomoscedasticGaussian):
    """Counts all records twice if one of the batch has a special target."""

    def negative_log_likelihood(self, outputs, targets, weights):
        return super().negative_log_likelihood(outputs, targets, weights) * (1 + self.is_special(targets).any())


class MissingIsMinusNine(Doubled):
    def is_special(self, targets):
        return targets == -999


class MissingIsNan(Doubled):
    def is_special(self, targets):
        return targets.isnan()


class OneIsMissing(Categorical):
    def negative_log_likelihood(self, outputs, targets, weights):
        return super().negative_log_likelihood(outputs, targets, weights) * (1 + (targets == -1).any())


@pytest.mark.parametrize(
    ("likelihood", "value"), [(MissingIsMinusNine(1.0), "-999"), (MissingIsNan(1.0), "nan"), (OneIsMissing(), "-1")]
)
def test_a_likelihood_that_looks_for_special_targets_of_others_is_refused(likelihood, value):
    y = LABELS if isinstance(likelihood, Categorical) else torch.zeros(4, 3)
    with pytest.raises(DpbnnError, match=rf"special value \({value}\) as another one's target"):
        check_model(nn.Linear(6, 3), likelihood, torch.zeros(4, 6), y)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), torch.float32), ((0,), torch.float32), ((2, 1, 3), torch.float32), ((), torch.long), ((1,), torch.long)],
)
def test_records_of_any_shape_can_be_probed(shape, dtype):
    width = math.prod(shape)
    model = Network(lambda _, x: torch.cat([x.float().reshape(len(x), width), torch.ones(len(x), 1)], 1), width + 1)
    assert check_model(model, Categorical(), torch.zeros(4, *shape, dtype=dtype), LABELS).num_outputs == 3


def test_an_error_for_a_label_that_is_none_does_not_refuse_a_likelihood():
    class Plain(Categorical):
        def negative_log_likelihood(self, outputs, targets, weights):
            return F.cross_entropy(outputs, targets, reduction="none")

    assert check_model(nn.Linear(6, 3), Plain(), torch.zeros(4, 6), LABELS).num_outputs == 3


@pytest.mark.parametrize("probe", [*probes.RANGES, *probes.NEGATIVE, *probes.FRACTIONS, *probes.COUNTS])
def test_a_probe_changes_one_record_and_no_other(probe):
    values = torch.randn(probes.NUM_RECORDS, 6, 5)
    before, after = probe.background(values), probe.after(values)
    differ = ~torch.isclose(before, after, equal_nan=True).flatten(1).all(1)
    assert differ.nonzero().flatten().tolist() == [probes.CHANGED]


@pytest.mark.parametrize("in_front", [False, True])
def test_padding_ends_elsewhere_in_each_record_along_each_dimension(in_front):
    padding = probes.padded(0, in_front=in_front)(torch.ones(3, 8, 1, 6)) == 0
    for dimension, expected in ((1, [4, 3, 2]), (3, [3, 2, 1])):
        others = [k for k in (1, 2, 3) if k != dimension]
        used_places = (~padding).any(others[1]).any(others[0])
        assert used_places.sum(1).tolist() == expected
        assert bool(used_places[:, -1 if in_front else 0].all())
