"""Releases without delta: promised, permitted, made once, and not made again after an interruption."""

import json
import os
import stat

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.purchases import Bought, Entry, LedgerError, Permit, PurchaseFile, Purchases
from dpbnn.privacy.queries import bounds, selection

PLAN = PrivacyPlan(1000, 100, 5, clip_norm=1.0, noise_multiplier=5.0, delta=1e-5, pure_epsilons=(0.1, 0.2))
PROMISED = {"a bound": 0.1, "a level": 0.2}


def opened(path, promised=PROMISED, plan=PLAN):
    file = PurchaseFile(path)
    return Purchases(promised, plan.max_records_per_person, file.open(plan, promised), file)


def draw(value, seen=None):
    def mechanism(permit):
        if seen is not None:
            seen.append(permit)
        permit.spend("a draw")
        return value

    return mechanism


@pytest.mark.guarantees("A permit can be used once.")
def test_a_permit_can_be_used_once():
    def twice(permit):
        return permit.spend("first") + permit.spend("second")

    with pytest.raises(LedgerError, match="a permit for 'a bound' is used that was used before"):
        Purchases(PROMISED).buy("a bound", twice)


@pytest.mark.guarantees("A permit that no ledger has given out is refused.")
def test_a_permit_that_no_ledger_has_given_out_is_refused():
    purchases = Purchases(PROMISED)
    for mechanism in (
        lambda permit: bounds.quantile([1.0], 0.5, permit, [0.0, 1.0]),
        lambda permit: selection.noisy_maximum([1.0], permit),
    ):
        with pytest.raises(LedgerError, match="is not of its ledger"):
            mechanism(Permit("a bound", 100.0, 1, purchases._redeem))


@pytest.mark.guarantees("A permit is worth nothing after its purchase.")
def test_a_permit_is_worth_nothing_after_its_purchase():
    kept, purchases = [], Purchases(PROMISED)
    purchases.buy("a bound", draw(1.0, kept))
    with pytest.raises(LedgerError):
        kept[0].spend("again")
    with pytest.raises(LedgerError, match="'a level' was returned by a mechanism that did not spend"):
        purchases.buy("a level", lambda permit: kept.append(permit) or 1.0)
    with pytest.raises(LedgerError):
        kept[1].spend("late")


@pytest.mark.guarantees("What is not promised cannot be bought.")
def test_what_is_not_promised_cannot_be_bought():
    purchases = Purchases(PROMISED)
    with pytest.raises(LedgerError, match="'a secret' was to be bought and was not promised"):
        purchases.buy("a secret", draw(1.0))
    purchases.close()
    with pytest.raises(LedgerError, match="or after the ledger was closed"):
        purchases.buy("a bound", draw(1.0))
    assert purchases.missing() == ["a bound", "a level"]


@pytest.mark.guarantees("What was bought is not drawn again.")
def test_what_was_bought_is_not_drawn_again():
    seen, purchases = [], Purchases(PROMISED, rows_per_person=3)
    assert [purchases.buy("a bound", draw(value, seen)) for value in (1.0, 2.0)] == [1.0, 1.0]
    assert [(own.purpose, own.epsilon, own.rows_per_person) for own in seen] == [("a bound", 0.1, 3)]
    assert purchases.entries == (Entry("a bound", "a draw", 0.1, 1, 3),)


@pytest.mark.guarantees("A value that was drawn without its permit is refused.")
def test_a_value_that_was_drawn_without_its_permit_is_refused():
    purchases = Purchases(PROMISED)
    with pytest.raises(LedgerError, match="did not spend its permit"):
        purchases.buy("a bound", lambda permit: 1.0)
    with pytest.raises(LedgerError, match="did not spend its permit"):
        purchases.buy("a bound", lambda _: Purchases({"another": 9.0}).buy("another", draw(1.0)))
    assert purchases.missing() == ["a bound", "a level"]


@pytest.mark.guarantees("What was drawn and lost is not drawn again.")
def test_what_was_drawn_and_lost_is_not_drawn_again():
    def broken(permit):
        permit.spend("a draw")
        raise KeyboardInterrupt

    purchases = Purchases(PROMISED)
    with pytest.raises(KeyboardInterrupt):
        purchases.buy("a bound", broken)
    with pytest.raises(LedgerError, match="'a bound' is bought again, after it was drawn and lost"):
        purchases.buy("a bound", draw(1.0))
    with pytest.raises(ValueError, match="before the draw"):
        purchases.buy("a level", lambda _: (_ for _ in ()).throw(ValueError("before the draw")))
    assert purchases.buy("a level", draw(1.0)) == 1.0


@pytest.mark.guarantees("The file is whole, on disk and for its owner alone before a value is used.")
def test_a_value_that_could_not_be_written_is_not_used_later(tmp_path, monkeypatch):
    """A run that goes on elsewhere would draw another."""

    def full(self, bought):
        raise OSError("no space left")

    purchases = opened(tmp_path / "ledger.json")
    with monkeypatch.context() as patch:
        patch.setattr(PurchaseFile, "write", full)
        with pytest.raises(OSError, match="no space left"):
            purchases.buy("a bound", draw(3.0))
    with pytest.raises(LedgerError, match="'a bound' is bought again, after it was drawn and lost"):
        purchases.buy("a bound", draw(4.0))
    assert purchases.missing() == ["a bound", "a level"]


def test_a_run_that_goes_on_buys_nothing_twice(tmp_path):
    opened(tmp_path / "run" / "ledger.json").buy("a bound", draw(0.1 + 0.2))
    seen = []
    again = opened(tmp_path / "run" / "ledger.json")
    assert again.buy("a bound", draw(9.0, seen)) == 0.1 + 0.2, "to the last bit"
    assert not seen
    assert again.entries == (Entry("a bound", "a draw", 0.1, 1, 1),)
    assert again.missing() == ["a level"]


@pytest.mark.guarantees("The file is whole, on disk and for its owner alone before a value is used.")
def test_the_file_is_whole_on_disk_and_for_its_owner_alone_before_a_value_is_used(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    path = tmp_path / "run" / "ledger.json"

    def noted(descriptor):
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        return fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    before = os.umask(0)
    try:
        opened(path).buy("a bound", draw(3.0))
    finally:
        os.umask(before)
    assert synced == [(False, False), (True, True)], "the content, then the name"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [own.name for own in path.parent.iterdir()] == ["ledger.json"]

    def cut(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(KeyboardInterrupt):
        opened(path).buy("a level", draw(4.0))
    monkeypatch.setattr(os, "fsync", fsync)
    assert PurchaseFile(path).open(PLAN, PROMISED) == {"a bound": Bought("a draw", 3.0)}


@pytest.mark.guarantees("A file of another plan or of other purchases is refused.")
@pytest.mark.parametrize(
    "change",
    [
        {"plan": PrivacyPlan(1000, 100, 6, 1.0, 5.0, 1e-5, pure_epsilons=(0.1, 0.2))},
        {"promised": {"a bound": 0.1, "another level": 0.2}},
        {"promised": {"a level": 0.2, "a bound": 0.1}},
        {"promised": {"a bound": 0.2, "a level": 0.1}},
    ],
)
def test_a_file_of_another_plan_or_of_other_purchases_is_refused(tmp_path, change):
    opened(tmp_path / "ledger.json").buy("a bound", draw(3.0))
    with pytest.raises(DpbnnError, match="belongs to another run"):
        opened(tmp_path / "ledger.json", **change)
    opened(tmp_path / "ledger.json")


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"version": 1}', '{"bought": {"a bound": 3.0}}'])
def test_a_damaged_file_is_refused_and_nothing_is_bought_again(tmp_path, text):
    (tmp_path / "ledger.json").write_text(text)
    with pytest.raises(DpbnnError, match="is damaged; delete the unfinished run"):
        opened(tmp_path / "ledger.json")


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path):
    (tmp_path / "ledger.json").mkdir()
    with pytest.raises(DpbnnError, match="cannot be read: Is a directory"):
        opened(tmp_path / "ledger.json")


def test_the_file_holds_what_was_bought_and_what_for(tmp_path):
    opened(tmp_path / "ledger.json").buy("a bound", draw(3.0))
    known = json.loads((tmp_path / "ledger.json").read_text())
    assert known["bought"] == {"a bound": {"mechanism": "a draw", "value": 3.0}}
    assert known["promised"] == [["a bound", 0.1], ["a level", 0.2]]
