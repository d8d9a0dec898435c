"""A file as columns: what is read of it, and what is refused, without a word of what it holds."""

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from dpbnn.errors import DpbnnError
from dpbnn.tables.reading import column_names, number_of_columns, read_table, separator_of


def written(tmp_path, text, name="data.csv"):
    (tmp_path / name).write_bytes(text.encode())
    return tmp_path / name


def test_only_the_header_is_read(tmp_path):
    file = tmp_path / "data.csv"
    file.write_bytes(b"a,b\n" + b"\xff\xfe broken rows")
    assert column_names(file) == ["a", "b"]


@pytest.mark.parametrize("header", ["", "a,,b", "a,a"])
def test_headers_without_names_are_refused(tmp_path, header):
    (tmp_path / "data.csv").write_text(f"{header}\n1,2,3\n")
    with pytest.raises(DpbnnError, match=r"must have a header|must hold a table"):
        column_names(tmp_path / "data.csv")


def test_a_row_is_not_taken_for_a_header(tmp_path):
    (tmp_path / "data.csv").write_text("39,State-gov,77516\n")
    with pytest.raises(DpbnnError, match="looks like a row") as error:
        column_names(tmp_path / "data.csv")
    assert "State-gov" not in str(error.value)


def test_missing_columns_and_files_are_named(tmp_path):
    columns = ["age", "gain", "job", "y"]
    with pytest.raises(DpbnnError, match="must have the column 'job', got 'age', 'gain', 'y'"):
        read_table(written(tmp_path, "age,gain,y\n1,2,no\n"), columns)
    with pytest.raises(DpbnnError, match="no such file"):
        read_table(tmp_path / "none.csv", ["a"])
    with pytest.raises(DpbnnError, match="cannot be read as a table") as error:
        read_table(written(tmp_path, "age,gain,job,y\n1,2,SECRET\n"), columns)
    assert "SECRET" not in str(error.value)
    with pytest.raises(DpbnnError, match="cannot be read as a Parquet file"):
        read_table(written(tmp_path, "no parquet", "x.parquet"), ["a"])


def test_columns_are_read_as_text_and_those_that_nobody_wants_are_not_read(tmp_path):
    table = read_table(written(tmp_path, "a,b,c\n1, x ,2\n01,NA,3\n"), ["b", "a"])
    assert {name: column.to_pylist() for name, column in table.columns.items()} == {
        "b": [" x ", "NA"],
        "a": ["1", "01"],
    }


def test_rows_keep_their_numbers_where_some_are_dropped(tmp_path):
    table = read_table(written(tmp_path, "a\n5\n6\n7\n"), ["a"])
    kept = table.taken(np.array([0, 2]))
    assert (kept.rows, kept.columns["a"].to_pylist()) == (2, ["5", "7"])
    assert [kept.number_of(row) for row in range(2)] == [1, 3]
    assert table.number_of(2) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b\n1,"x\n2,y\n3,z"\n', "each row on a line of its own, got 2 rows on 4 lines"),
        ('a,b\n1,x\r9,"y\n2,z\n', "lone carriage return"),
        ("a,b\n1,x\n2\n", r"every row must have 2 columns, got one with 1 \(line 3\)"),
    ],
)
def test_no_record_swallows_the_rows_of_others(tmp_path, text, message):
    with pytest.raises(DpbnnError, match=message):
        read_table(written(tmp_path, text), ["a", "b"])


def test_both_line_ends_and_empty_lines_are_known(tmp_path):
    table = read_table(written(tmp_path, "a,b\r\n1,x\r\n\r\n2,y\r\n"), ["a"])
    assert table.columns["a"].to_pylist() == ["1", "2"]


def test_the_separator_is_the_one_with_which_the_header_names_the_columns(tmp_path):
    file = written(tmp_path, "a;b|c\n1;2\n")
    assert separator_of(file, ["a"], ",") == ";"
    assert separator_of(file, ["c"], ",") == "|"
    assert separator_of(file, ["d"], ",") == ",", "the usual one where none does"
    assert (number_of_columns(file, ";"), number_of_columns(file, ",")) == (2, 1)
    assert read_table(file, ["a"]).columns["a"].to_pylist() == ["1"]
