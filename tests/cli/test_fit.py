"""`dpbnn schema`, `fit`, `predict`, `evaluate`: from a file to predictions, through interruptions and bad input."""

import csv
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("opendp")

import dpbnn
from dpbnn.cli import main as cli
from tests.spending import Watch

SCHEMA = """
target = "bought"
[columns.age]
type = "number"
low = 0
high = 100
[columns.city]
type = "category"
values = ["Rome", "Oslo"]
[columns.bought]
type = "category"
values = ["no", "yes"]
"""
FIT = "fit data.csv --schema schema.toml"
NUMBERS = SCHEMA.replace('target = "bought"', 'target = "age"').replace("low = 0\nhigh = 100\n", "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    with (tmp_path / "data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "age", "city", "bought"])
        for number in range(2000):
            age, city = generator.integers(0, 100), generator.choice(["Rome", "Oslo"])
            rows.writerow([number // 2, age, city, "yes" if age > 50 else "no"])
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "bad.csv").write_text("age,city,bought\n1,Paris,no\n2,Rome,no\n")
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    (tmp_path / "semicolons.csv").write_text("age;city;bought\n1;Rome;no\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "ragged.csv").write_text("age,city,bought\n1,Rome,no\n2,Rome\n")
    (tmp_path / "latin.csv").write_bytes("age,city,bought\n1,Málaga,no\n".encode("latin-1"))
    quoted = 'age,city,bought,note\n1,Rome,no,"hm\n2,Rome,no,5 pipes\n3,Rome,no,5" pipe\n4,Rome,no,\n'
    (tmp_path / "quoted.csv").write_text(quoted)
    synthetic = "age,city,bought,note\n" + '1,Rome,no,a\r9,Oslo,yes,b\r9,Oslo,yes,"c\n' + "2,Rome,no,\n" * 2
    (tmp_path / "returns.csv").write_bytes(synthetic.encode())
    (tmp_path / "headless.csv").write_text("Alice Smith,HIV positive,oncology\nBob Jones,healthy,surgery\n")
    (tmp_path / "few.csv").write_text("age,city,bought\n" + "1,Rome,no\n" * 5)
    (tmp_path / "numbers.toml").write_text(NUMBERS)
    (tmp_path / "log.toml").write_text(
        SCHEMA.replace('"bought"', '"age"', 1).replace("low = 0", 'low = 0\nscale = "log"')
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    sys.argv = ["dpbnn", *map(str, arguments)]
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr()


def fit(capsys, *more, schema="schema.toml", out="model"):
    return run(capsys, "fit", "data.csv", "--schema", schema, "--out", out, "--epsilon", "3", *more)


def test_from_a_table_to_labels_with_doubt(folder, capsys):
    code, printed = fit(capsys)
    assert code == 0
    assert "Chosen from public facts" in printed.out
    assert "differentially private with epsilon = 3" in printed.out
    assert "the number of rows that are used is public" in printed.out
    assert "what the schema says is public" in printed.out
    assert {file.name for file in (folder / "model").iterdir()} == {
        "release.json", "posterior.safetensors", "table.json", "schema.toml", "card.md", "log.txt",
    }  # fmt: skip
    assert not (folder / "model.unfinished").exists()
    assert dpbnn.load("model").guarantee.epsilon <= 3
    assert dpbnn.load("model").guarantee.adjacency == "zero_out", "the rows were counted"
    assert "| predicts | bought, from age, city |" in (folder / "model" / "card.md").read_text()
    assert "rough guide" in printed.out
    assert "independent ones" not in printed.out, "said of every private chain"
    (folder / "new.csv").write_text("city,age,extra\nRome,90,7\nOslo,10,8\n")
    code, printed = run(capsys, "predict", "model", "new.csv", "--json")
    assert code == 0
    assert json.loads(printed.out)["rows"] == 2
    with (folder / "predictions.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["label"], second["label"]) == ("yes", "no")
    assert (first["extra"], first["age"]) == ("7", "90")
    assert 0.5 < float(first["probability"]) <= 1
    assert float(first["entropy"]) >= float(first["mutual_information"]) >= 0
    assert float(first["probability_yes"]) == pytest.approx(float(first["probability"]))


def test_from_a_table_to_numbers_with_error_bars_and_bought_bounds(folder, capsys):
    code, printed = fit(capsys, "--json", schema="numbers.toml")
    assert code == 0
    result = json.loads(printed.out)
    assert list(result["bought_bounds"]) == ["age"]
    assert len(result["guarantee"]["plan"]["pure_epsilons"]) == 3
    assert result["guarantee"]["epsilon"] <= 3
    (folder / "new.csv").write_text("city,bought\nRome,yes\nOslo,no\n")
    code, _ = run(capsys, "predict", "model", "new.csv", "--level", "0.9")
    assert code == 0
    with (folder / "predictions.csv").open() as file:
        first, second = csv.DictReader(file)
    assert float(second["mean"]) < 50 < float(first["mean"])
    assert float(first["low_90"]) < float(first["mean"]) < float(first["high_90"])
    assert float(first["std"]) ** 2 == pytest.approx(
        float(first["aleatoric_std"]) ** 2 + float(first["epistemic_std"]) ** 2, rel=1e-4
    )


def test_evaluation_says_whether_its_figures_may_leave(folder, capsys):
    fit(capsys, "--quiet")
    code, printed = run(capsys, "evaluate", "model", "data.csv", "--public")
    assert code == 0
    assert "accuracy" in printed.out
    assert "outside the guarantee" not in printed.out
    code, printed = run(capsys, "evaluate", "model", "data.csv", "--json")
    figures = json.loads(printed.out)
    assert figures["test_data"] == "private", "nobody said otherwise"
    assert "outside the guarantee" in figures["caution"]
    assert figures["accuracy"] > 0.85


def test_quiet_is_quiet(folder, capsys):
    code, printed = fit(capsys, "--quiet")
    assert (code, printed.out, printed.err) == (0, "", "")


def test_people_with_several_rows_count_once(folder, capsys):
    text = SCHEMA.replace("[columns.age]", 'person = "id"\nrows_per_person = 1\n[columns.age]', 1)
    (folder / "schema.toml").write_text(text)
    code, printed = fit(capsys, "--json")
    assert code == 0
    assert json.loads(printed.out)["guarantee"]["plan"]["dataset_size"] == 1000


@pytest.mark.parametrize("method", ["sgld", "bbp", "mc_dropout", "sgd"])
def test_every_method_can_be_asked_for(folder, capsys, method):
    code, printed = fit(capsys, "--method", method, "--epochs", "20", "--json")
    assert code == 0
    assert json.loads(printed.out)["settings"]["method"]["value"] == method


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit none.csv --schema schema.toml --out m --epsilon 1", "none.csv must be a CSV or Parquet"),
        ("fit data.csv --schema none.toml --out m --epsilon 1", "schema none.toml cannot be read"),
        (f"{FIT} --out m --epsilon 0", "epsilon must be > 0"),
        (f"{FIT} --out m --epsilon 1 --delta 2", "delta must be"),
        (f"{FIT} --out m --epsilon 1 --method x", "method must be"),
        (f"{FIT} --out m --epsilon 1 --hidden x", "--hidden must be"),
        (f"{FIT} --out m --epsilon 1 --resume", "--resume must find"),
        (f"{FIT} --out m --epsilon 1 --take-over", "--take-over must come with --resume"),
        ("fit data.csv --schema log.toml --out m --epsilon 1", "the target 'age' must not have scale = \"log\""),
        ("check data.csv", "for a table give --schema and --epsilon too"),
        (f"{FIT} --out data.csv --epsilon 1", "--out must be a new folder"),
        (f"{FIT} --out m --epsilon 1 --target id", "target must be one of"),
        (f"{FIT} --out m --epsilon 1 --learning-rate -3", "learning_rate must be > 0, got -3.0"),
        (f"{FIT} --out m --epsilon 1 --seed -3", "--seed must be >= 0"),
        ("fit bad.csv --schema schema.toml --out m --epsilon 1", "row 1, column 'city': expected one of"),
        ("fit bad.parquet --schema schema.toml --out m --epsilon 1", "cannot be read as a Parquet file"),
        ("predict none data.csv", "none must be a folder that dpbnn fit wrote"),
        ("predict none data.csv --out data.csv", "none must be a folder that dpbnn fit wrote"),
        ("evaluate none data.csv", "none must be a folder that dpbnn fit wrote"),
        ("schema none.csv", "none.csv must be a CSV or Parquet file"),
        ("schema data.csv --no-header", "--no-header and --names must be given together"),
        ("schema data.csv --out schema.toml", "--out must be a new file"),
        ("schema semicolons.csv --out new.toml", "got a header with ';' in it; dpbnn schema takes --separator"),
        ("schema data.csv --out new.toml --separator x", "--separator must be one of"),
        ("schema empty.csv --out new.toml", "empty.csv must hold a table, got a file that is empty"),
        ("fit ragged.csv --schema schema.toml --out m --epsilon 1", "must have 3 columns, got one with 2 (line 3)"),
        ("fit latin.csv --schema schema.toml --out m --epsilon 1", "it is not in UTF-8; save it as such"),
        ("fit quoted.csv --schema schema.toml --out m --epsilon 1", "each row on a line of its own, got 3 rows on 5"),
        ("fit returns.csv --schema schema.toml --out m --epsilon 1", "got a lone carriage return"),
        (
            "fit headless.csv --schema schema.toml --out m --epsilon 1",
            "none of the columns (perhaps it is no header).",
        ),
        ("fit . --schema schema.toml --out m --epsilon 1", "must be a CSV or Parquet file, got a folder"),
        (f"{FIT} --out m --epsilon 1 --batch-size 3000", "batch_size must be at most the number of rows (2000)"),
        ("fit few.csv --schema numbers.toml --out m --epsilon 1", "low and high in the schema for 'age'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(folder, capsys, line, message):
    before = sorted(folder.rglob("*"))
    code, printed = run(capsys, *line.split())
    assert code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age\n1\n", "must have the column 'city', got 'age'"),
        ("age,city\n1,Paris\n", "row 1, column 'city': expected one of the schema's values"),
        ("age,city\nold,Rome\n", "row 1, column 'age': expected a number such as"),
        ("age,city,label\n1,Rome,x\n", "must not have a column 'label' already"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused_and_nothing_is_written(folder, capsys, text, message):
    fit(capsys, "--quiet", "--epochs", "2")
    (folder / "new.csv").write_text(text)
    code, printed = run(capsys, "predict", "model", "new.csv")
    assert code == 2
    assert message in printed.err
    assert not (folder / "predictions.csv").exists()


def interrupted(folder, how, *more):
    """A run in a process of its own, stopped once it trains."""
    command = [sys.executable, "-m", "dpbnn", "fit", "data.csv", "--schema", "numbers.toml", "--out", "model"]
    command += ["--epsilon", "3", "--epochs", "800", "--json", *more]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, preexec_fn=heard, **pipes)
    journal = folder / "model.unfinished" / "training" / "journal"
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size > 16 * 50) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, how)
    _, errors = process.communicate()
    assert (b"with --resume goes on from model.unfinished" in errors) == (how == signal.SIGINT)
    return process.returncode


def test_columns_may_be_parted_by_semicolons(folder, capsys):
    text = (folder / "data.csv").read_text().replace(",", ";")
    (folder / "data.csv").write_text(text)
    code, _ = run(capsys, "schema", "data.csv", "--separator", ";", "--out", "filled.toml")
    assert code == 0
    assert 'separator = ";"' in (folder / "filled.toml").read_text()
    (folder / "schema.toml").write_text('separator = ";"\n' + SCHEMA)
    assert fit(capsys, "--quiet", "--epochs", "2")[0] == 0
    assert run(capsys, "predict", "model", "data.csv")[0] == 0
    written = (folder / "predictions.csv").read_text().splitlines()
    assert written[0].count(";") == 3 + 6
    (folder / "commas.csv").write_text("city,age\nRome,3\n")
    assert run(capsys, "predict", "model", "commas.csv", "--out", "others.csv")[0] == 0, (
        "new rows may be saved otherwise"
    )


def test_new_rows_without_a_header_need_no_target(folder, capsys):
    rows = (folder / "data.csv").read_text().splitlines()[1:]
    (folder / "data.csv").write_text("\n".join(rows) + "\n")
    (folder / "schema.toml").write_text('names = ["id", "age", "city", "bought"]\n' + SCHEMA)
    assert fit(capsys, "--quiet", "--epochs", "2")[0] == 0
    (folder / "new.csv").write_text("7,30,Rome\n8,70,Oslo\n")
    code, printed = run(capsys, "predict", "model", "new.csv", "--json")
    assert code == 0
    assert json.loads(printed.out)["rows"] == 2
    code, printed = run(capsys, "predict", "model", "new.csv", "--out", "predicted.xlsx")
    assert code == 2
    assert "--out must be a name that ends in .csv or .parquet" in printed.err


def test_rows_are_numbered_as_in_the_file_also_where_some_were_dropped(folder, capsys):
    (folder / "schema.toml").write_text('person = "id"\n' + SCHEMA)
    with (folder / "data.csv").open("a") as file:
        file.write("5000,30,Paris,no\n")
    code, printed = fit(capsys)
    assert code == 2
    assert "row 2001, column 'city'" in printed.err
    with (folder / "data.csv").open("a") as file:
        file.write(",30,Rome,no\n")
    code, printed = fit(capsys)
    assert "row 2002, column 'id': expected the name of a person" in printed.err


def test_one_unfinished_run_is_worked_on_by_one_process(folder, capsys):
    import fcntl

    assert interrupted(folder, signal.SIGKILL) != 0
    with (folder / "model.unfinished" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, printed = fit(capsys, "--epochs", "800", "--resume", schema="numbers.toml")
    assert code == 2
    assert "worked on by another process" in printed.err


def test_who_comes_for_a_run_that_was_just_handed_over_makes_no_second_release(folder, capsys, monkeypatch):
    import fcntl

    assert interrupted(folder, signal.SIGKILL) != 0
    unfinished = folder / "model.unfinished"
    monkeypatch.setattr(fcntl, "flock", lambda *_: shutil.rmtree(unfinished))
    code, printed = fit(capsys, "--epochs", "800", "--resume", schema="numbers.toml")
    assert code == 2
    assert "worked on by another process" in printed.err
    assert not unfinished.exists()


@pytest.mark.guarantees("What was bought or trained is not bought or trained again when a run is resumed.")
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_and_buys_nothing_twice(folder, capsys, how, monkeypatch):
    assert interrupted(folder, how) != 0
    unfinished = folder / "model.unfinished"
    assert not (folder / "model").exists()
    assert unfinished.stat().st_mode & 0o077 == 0, "for its owner alone"
    kept = json.loads((unfinished / "ledger.json").read_text())["bought"]
    low, high = sorted(kept[f"{side} quartile of column 'age'"]["value"] for side in ("lower", "upper"))
    same = ("--epochs", "800", "--json")
    code, printed = fit(capsys, *same, schema="numbers.toml")
    assert code == 2
    assert "holds an unfinished run; continue it with --resume" in printed.err
    code, printed = fit(capsys, "--epochs", "700", "--json", "--resume", schema="numbers.toml")
    assert code == 2
    assert "belongs to a run with other settings" in printed.err
    watch = Watch()(monkeypatch)
    code, printed = fit(capsys, *same, "--resume", schema="numbers.toml")
    assert code == 0
    assert "charged again" not in printed.err, "the same key goes on"
    result = json.loads(printed.out)
    table = json.loads((folder / "model" / "table.json").read_text())["schema"]["columns"]["age"]
    assert [table["low"], table["high"]] == [low - (high - low), high + (high - low)], "to the last bit"
    assert watch.purposes == ["noise level of the targets"], "which the first run had not come to"
    release = dpbnn.load(folder / "model")
    assert release.settings["releases_charged"] == result["guarantee"]["plan"]["steps"], "no step was paid for twice"
    assert not unfinished.exists()


def test_a_noise_level_that_was_bought_is_not_bought_again(folder, capsys, monkeypatch):
    from dpbnn.tables import fitting

    watch, same = Watch()(monkeypatch), ("--epochs", "20", "--json", "--batch-size", "2000")

    def cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "_write", cut)
        fit(capsys, *same, schema="numbers.toml")
    bought = json.loads((folder / "model.unfinished" / "ledger.json").read_text())["bought"]
    code, _ = fit(capsys, *same, "--resume", schema="numbers.toml")
    assert code == 0
    assert watch.purposes == list(bought), "each once, in two runs"
    assert len(bought) == 3
    release = dpbnn.load(folder / "model")
    assert release.likelihood == dpbnn.HomoscedasticGaussian(bought["noise level of the targets"]["value"])
    assert [own["purpose"] for own in release.settings["ledger"]] == ["training", *bought]
    assert "noise level of the targets" in (folder / "model" / "card.md").read_text()


@pytest.mark.guarantees("What was bought or trained is not bought or trained again when a run is resumed.")
@pytest.mark.guarantees("FOLDER is there whole or not at all.")
def test_a_release_that_is_ready_is_handed_over_and_never_made_again(folder, capsys, monkeypatch):
    from dpbnn.tables import fitting

    def cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "_hand_over", cut)
        patch.setattr(sys, "argv", ["dpbnn", *FIT.split(), "--out", "model", "--epsilon", "3", "--quiet"])
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            cli.main()
    ready = (folder / "model.unfinished" / "release" / "posterior.safetensors").read_bytes()
    monkeypatch.setattr(fitting, "train", lambda *_, **__: pytest.fail("trained again"))
    code, printed = fit(capsys, "--resume", "--quiet", "--clip-norm", "7")
    assert code == 2
    assert "belongs to a run with other settings" in printed.err
    code, _ = fit(capsys, "--resume", "--quiet")
    assert code == 0
    assert (folder / "model" / "posterior.safetensors").read_bytes() == ready
    (folder / "model").rename(folder / "moved")
    (folder / "model.unfinished").mkdir()
    code, printed = fit(capsys, "--resume", "--quiet")
    assert code == 2
    assert "has been handed over" in printed.err


def test_an_unfinished_run_of_another_host_is_refused_unless_it_is_taken_over(folder, capsys, monkeypatch):
    from dpbnn.files import claim
    from dpbnn.tables import fitting

    def cut(*_, **__):
        raise KeyboardInterrupt

    few = ("--epochs", "9", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "train", cut)
        patch.setattr(sys, "argv", ["dpbnn", *FIT.replace("schema.toml", "numbers.toml").split(), "--out", "model"])
        sys.argv += ["--epsilon", "3", *few]
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            cli.main()
    bought = json.loads((folder / "model.unfinished" / "ledger.json").read_text())["bought"]
    low, high = sorted(bought[f"{side} quartile of column 'age'"]["value"] for side in ("lower", "upper"))
    monkeypatch.setattr(claim, "host", lambda: "elsewhere")
    capsys.readouterr()
    code, printed = fit(capsys, *few, "--resume", schema="numbers.toml")
    assert code == 2
    assert "model.unfinished belongs to a worker on" in printed.err
    assert "--take-over" in printed.err
    assert printed.err.count("\n") == 1
    code, printed = fit(capsys, *few, "--resume", "--take-over", schema="numbers.toml")
    assert code == 0
    table = json.loads((folder / "model" / "table.json").read_text())["schema"]["columns"]["age"]
    width = high - low
    assert [table["low"], table["high"]] == [low - width, high + width], "nothing is bought twice"
    assert not (folder / "model.unfinished").exists()


def test_a_worker_whose_table_was_taken_over_hands_nothing_over(folder, capsys, monkeypatch):
    from dpbnn.tables import fitting

    original = fitting._hand_over

    def taken_over(order, claim):
        (order.unfinished / "owner").write_text('{"host": "elsewhere", "token": "another"}')
        return original(order, claim)

    monkeypatch.setattr(fitting, "_hand_over", taken_over)
    code, printed = fit(capsys, "--quiet", "--epochs", "2")
    assert code == 2
    assert "was taken over by a worker on elsewhere" in printed.err
    assert not (folder / "model").exists()
    assert (folder / "model.unfinished" / "release").exists()
