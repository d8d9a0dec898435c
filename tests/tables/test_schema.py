"""What is public about a table: read strictly, and written without a look at the values."""

import tomllib

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.tables.reading import column_names
from dpbnn.tables.schema import Category, Number, as_values, parse_schema, read_schema, template

GOOD = """
target = "income"
rows = 1000
person = "id"
rows_per_person = 3
[columns.id]
type = "ignore"
[columns.age]
type = "number"
low = 17
high = 90
[columns.gain]
type = "number"
low = 0
high = 1e5
scale = "log"
may_be_missing = true
[columns.weight]
type = "number"
[columns.job]
type = "category"
values = ["a", "b"]
other = true
[columns.income]
type = "category"
values = ["low", "high"]
"""


def schema_of(text):
    return parse_schema(tomllib.loads(text), "schema s.toml")


def test_a_schema_says_what_is_public(tmp_path):
    (tmp_path / "s.toml").write_text(GOOD)
    found = read_schema(tmp_path / "s.toml")
    assert found.columns["age"] == Number(17.0, 90.0)
    assert found.columns["gain"] == Number(0.0, 1e5, "log", True)
    assert found.columns["weight"] == Number()
    assert found.columns["job"] == Category(("a", "b"), other=True)
    assert list(found.features) == ["age", "gain", "weight", "job"]
    assert (found.target, found.rows, found.person, found.rows_per_person) == ("income", 1000, "id", 3)
    assert not found.is_regression
    assert read_schema(tmp_path / "s.toml", "age").is_regression
    assert parse_schema(as_values(found), "again") == found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'target = "income"',
            'target = "wage"',
            "'job', 'income', got 'wage'",
        ),
        ('target = "income"', 'traget = "income"', "has 'traget', which means nothing there"),
        ("rows = 1000", "rows = -5", "rows must be >= 1, got -5"),
        ("rows_per_person = 3", "rows_per_person = 0", "rows_per_person must be >= 1"),
        ("low = 17", "low = 90", "column 'age': low must be below high, got 90 and 90"),
        ("low = 17", "", "column 'age': low and high must both be given"),
        ("low = 17", 'low = "young"', "low must be a finite number"),
        ("low = 17", "low = nan", "low must be a finite number"),
        ('type = "number"\nlow = 17', 'type = ""\nlow = 17', "column 'age': type must be filled in"),
        ('values = ["a", "b"]', 'values = ["a"]', "values must be at least two different texts"),
        ('values = ["a", "b"]', 'values = ["a", "a"]', "values must be at least two different texts"),
        ('values = ["a", "b"]', "", "column 'job': values must name all"),
        ("other = true", "other = 1", "other must be true or false"),
        ('scale = "log"', 'scale = "exp"', "scale must be one of 'linear', 'log'"),
        ("low = 0\nhigh = 1e5\n", "", 'scale = "log" must have a public low and high'),
        ('[columns.id]\ntype = "ignore"', '[columns.id]\ntype = "number"', "person 'id' must not be a column to learn"),
        ('values = ["low", "high"]', 'values = ["low", "high"]\nother = true', "the target 'income' must not be"),
    ],
)
def test_what_is_wrong_is_named(old, new, message):
    assert old in GOOD
    with pytest.raises(DpbnnError, match=r"schema s\.toml") as error:
        schema_of(GOOD.replace(old, new, 1))
    assert message in str(error.value)


def test_files_that_are_no_schema_are_refused(tmp_path):
    with pytest.raises(DpbnnError, match="cannot be read"):
        read_schema(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("target = [")
    with pytest.raises(DpbnnError, match="must be TOML"):
        read_schema(tmp_path / "bad.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(DpbnnError, match="must describe columns"):
        read_schema(tmp_path / "empty.toml")


def test_the_template_holds_the_header_and_no_value(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text('age,"full name",x\n4711,Secret Person,0.0815\n')
    text = template("data.csv", column_names(file), without_header=False)
    assert not any(value in text for value in ("4711", "Secret", "0815"))
    values = tomllib.loads(text)
    assert list(values["columns"]) == ["age", "full name", "x"]
    with pytest.raises(DpbnnError, match="column 'age': type must be filled in"):
        parse_schema(values, "it")
    assert tomllib.loads(template("d", ["a", "b"], without_header=True))["names"] == ["a", "b"]
