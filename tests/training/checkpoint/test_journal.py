"""What was released can be told, or nothing goes on."""

import os
import shutil

import pytest

import dpbnn
from dpbnn.privacy.ledger import Ledger, fingerprint
from dpbnn.training.checkpoint import opened
from dpbnn.training.checkpoint.journal import HEADER_BYTES, LINE_BYTES, MAGIC, Journal, Line
from tests.training.checkpoint.interrupting import Interrupt, fit_interrupted, lines_in
from tests.training.test_fit import fit, plan, same_weights

REFUSED = "cannot be continued: its journal {}, and without it nobody knows .* start again under a new budget"


@pytest.fixture
def interrupted(monkeypatch, tmp_path):
    """A run of 20 steps of which 8 are in the journal, and 3 in the state."""
    original, calls = dpbnn.training.checkpoint.Checkpoint.is_due, []

    def after_three(self, seconds):
        calls.append(1)
        return len(calls) == 3

    monkeypatch.setattr(dpbnn.training.checkpoint.Checkpoint, "is_due", after_three)
    fit_interrupted(monkeypatch, "clip_and_sum", 9, checkpoint=tmp_path / "run")
    monkeypatch.setattr(dpbnn.training.checkpoint.Checkpoint, "is_due", original)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody cuts the power in what follows
    return tmp_path / "run"


def refused(path, what):
    with pytest.raises(dpbnn.DpbnnError, match=REFUSED.format(what)), opened(path):
        pass


def test_the_journal_is_there_before_the_first_step_and_the_state_knows_it(monkeypatch, tmp_path):
    import torch

    fit_interrupted(monkeypatch, "clip_and_sum", 1, checkpoint=tmp_path / "run")
    journal = (tmp_path / "run" / "journal").read_bytes()
    state = torch.load(tmp_path / "run" / "state", weights_only=True)
    assert len(journal) == HEADER_BYTES == state["length"]
    assert journal.startswith(MAGIC)
    assert state["run"] in journal
    fit_interrupted(monkeypatch, "clip_and_sum", 1, checkpoint=tmp_path / "other")
    assert torch.load(tmp_path / "other" / "state", weights_only=True)["run"] != state["run"]


def test_a_release_is_in_the_journal_before_it_is_used(monkeypatch, tmp_path):
    seen, original = [], dpbnn.SGD.update

    def looked(self, state, noisy, step):
        seen.append((step, lines_in(tmp_path / "run")))
        return original(self, state, noisy, step)

    monkeypatch.setattr(dpbnn.SGD, "update", looked)
    fit(checkpoint=tmp_path / "run", the_plan=plan(steps=4))
    assert seen == [(0, 1), (1, 2), (2, 3), (3, 4)]


@pytest.mark.guarantees("A checkpoint whose journal is missing, cut or changed is refused.")
def test_a_checkpoint_whose_journal_is_missing_is_refused(interrupted):
    journal = (interrupted / "journal").read_bytes()
    (interrupted / "journal").unlink()
    with pytest.raises(dpbnn.DpbnnError, match=REFUSED.format("is missing")):
        fit(checkpoint=interrupted)
    assert not (interrupted / "journal").exists()
    (interrupted / "journal").write_bytes(journal)
    release = fit(checkpoint=interrupted)
    assert same_weights(release, fit())
    assert release.settings["releases_charged"] == 20


@pytest.mark.guarantees("A checkpoint whose journal is missing, cut or changed is refused.")
def test_a_journal_that_was_cut_is_refused_and_a_last_line_that_was_cut_off_is_cut(interrupted):
    journal = (interrupted / "journal").read_bytes()
    known, end = HEADER_BYTES + 3 * LINE_BYTES, HEADER_BYTES + 8 * LINE_BYTES
    assert len(journal) == end
    for length in range(end + 1):
        (interrupted / "journal").write_bytes(journal[:length])
        if length < known:
            refused(interrupted, "was cut")
            assert (interrupted / "journal").read_bytes() == journal[:length]
        else:
            with opened(interrupted) as found:
                assert len(found.charges()) == (length - HEADER_BYTES) // LINE_BYTES
            assert lines_in(interrupted) == (length - HEADER_BYTES) // LINE_BYTES
            assert (interrupted / "journal").stat().st_size == HEADER_BYTES + lines_in(interrupted) * LINE_BYTES
    (interrupted / "journal").write_bytes(journal[: known + LINE_BYTES + 1])
    release = fit(checkpoint=interrupted)
    assert same_weights(release, fit())
    assert release.settings["releases_charged"] == 20


def test_a_journal_of_another_run_is_refused(monkeypatch, interrupted, tmp_path):
    fit_interrupted(monkeypatch, "clip_and_sum", 12, checkpoint=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "journal", interrupted / "journal")
    refused(interrupted, "is that of another run")


@pytest.mark.guarantees("A checkpoint whose journal is missing, cut or changed is refused.")
def test_a_journal_in_which_any_bit_has_changed_is_refused(interrupted):
    journal = (interrupted / "journal").read_bytes()
    for place in range(len(journal)):
        changed = bytearray(journal)
        changed[place] ^= 1 << place % 8
        (interrupted / "journal").write_bytes(changed)
        refused(interrupted, "was changed")
    lines = [journal[start : start + LINE_BYTES] for start in range(HEADER_BYTES, len(journal), LINE_BYTES)]
    lines[0], lines[1] = lines[1], lines[0]
    (interrupted / "journal").write_bytes(journal[:HEADER_BYTES] + b"".join(lines))
    refused(interrupted, "was changed")


def test_a_state_that_is_missing_where_something_was_released_is_refused(monkeypatch, interrupted, tmp_path):
    (interrupted / "state").unlink()
    with pytest.raises(dpbnn.DpbnnError, match=r"its state is missing.* start again under a new budget"):
        fit(checkpoint=interrupted)
    assert lines_in(interrupted) == 8
    fit_interrupted(monkeypatch, "clip_and_sum", 1, checkpoint=tmp_path / "unborn")
    (tmp_path / "unborn" / "state").unlink()
    assert same_weights(fit(checkpoint=tmp_path / "unborn"), fit()), "nothing was released"


def test_a_journal_that_is_cut_while_a_run_goes_on_stops_it(monkeypatch, tmp_path):
    original = dpbnn.SGD.update

    def cutting(self, state, noisy, step):
        if step == 3:
            os.truncate(tmp_path / "run" / "journal", HEADER_BYTES + LINE_BYTES)
        return original(self, state, noisy, step)

    monkeypatch.setattr(dpbnn.SGD, "update", cutting)
    with pytest.raises(dpbnn.DpbnnError, match=REFUSED.format("was cut")):
        fit(checkpoint=tmp_path / "run")


def test_lines_that_somebody_else_has_added_are_charged_and_their_order_decides(tmp_path):
    """The plan has room for three: those that come first in the file, whoever wrote them."""
    with opened(tmp_path / "run") as found:
        found.write(dpbnn.training.checkpoint.Saved(b"key", "source", 0, {}, {}, {}))
        other, ledger = Journal(tmp_path / "run" / "journal", found._journal.run), Ledger(plan(steps=3))
        found.charge(ledger, 0, 10)
        other.append(Line(0, 77, b"somebody"))
        other.append(Line(1, 78, b"somebody"))
        found.charge(ledger, 1, 11)
        assert ledger.charges == [(0, 10), (0, None), (1, None)]
        assert not ledger.holds(1, 11)
        assert lines_in(tmp_path / "run") == 3
        other.append(Line(2, 79, b"somebody"))
    with opened(tmp_path / "run") as found:
        again = Ledger(plan(steps=3))
        again.resume(found.charges())
        assert again.charges == ledger.charges


def test_a_line_that_comes_between_writing_and_reading_may_take_the_last_room(monkeypatch, tmp_path):
    with opened(tmp_path / "run") as found:
        found.write(dpbnn.training.checkpoint.Saved(b"key", "source", 0, {}, {}, {}))
        other, ledger = Journal(tmp_path / "run" / "journal", found._journal.run), Ledger(plan(steps=1))
        append = Journal.append

        def after_another(self, line):
            append(other, Line(0, 77, b"somebody"))
            append(self, line)

        monkeypatch.setattr(Journal, "append", after_another)
        found.charge(ledger, 0, 10)
        assert ledger.charges == [(0, None)]
        assert not ledger.holds(0, 10), "it must not be used"


def test_a_line_that_is_written_in_part_is_no_line(monkeypatch, tmp_path):
    write, options = os.write, {"checkpoint": tmp_path / "run", "the_plan": plan(steps=4)}
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:-5]))
        with pytest.raises(dpbnn.DpbnnError, match="cannot be read or written: No space left on device"):
            fit(**options)
    assert lines_in(tmp_path / "run") == 0
    assert same_weights(fit(**options), fit(the_plan=plan(steps=4)))


def test_lost_lines_do_not_make_room_for_more_releases(monkeypatch, interrupted):
    """What was measured once: a checkpoint without its journal made 91 releases under a plan of 60."""
    used, original = set(), dpbnn.SGD.update

    def noted(self, state, noisy, step):
        used.add((step, fingerprint(noisy)))
        return original(self, state, noisy, step)

    (interrupted / "journal").unlink()
    monkeypatch.setattr(dpbnn.SGD, "update", noted)
    monkeypatch.setattr(dpbnn.files.claim, "host", lambda: "elsewhere")
    with pytest.raises(dpbnn.DpbnnError, match="is missing"):
        fit(checkpoint=interrupted, take_over=True)
    assert not used


def test_an_interruption_between_header_and_state_is_no_beginning(monkeypatch, tmp_path):
    def interrupt(*_):
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(dpbnn.training.checkpoint.Checkpoint, "write", interrupt)
        patch.setattr(dpbnn.training.checkpoint.Checkpoint, "close", lambda _: None)  # as when it is killed
        with pytest.raises(Interrupt):
            fit(checkpoint=tmp_path / "run")
    assert (tmp_path / "run" / "journal").stat().st_size == HEADER_BYTES
    assert same_weights(fit(checkpoint=tmp_path / "run"), fit())
