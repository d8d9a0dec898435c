"""Every promise in a docstring has its tests, and they say which it is; the two find each other by the promise's words.

    Guarantees:
        Padding contributes exactly zero.                a line is a promise
        A checkpoint of other data, another model or     a line that goes on
            another plan is refused.                     is indented

    @pytest.mark.guarantees("Padding contributes exactly zero.")
    def test_padding_and_bad_records_contribute_exactly_zero(): ...

Whoever changes a promise looks at its tests, and changes what they say of it; a test may stand for several promises.
"""

import ast
import re
import textwrap
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SKIPPED = re.compile(r"skip|xfail|gpu", re.IGNORECASE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def promises_of(docstring):
    """What stands below "Guarantees:", to the next empty line."""
    (section,) = re.findall(r"^ *Guarantees:\n((?:.*\S.*(?:\n|$))+)", docstring, re.MULTILINE) or [""]
    return [" ".join(line.split()) for line in re.split(r"\n(?! )", textwrap.dedent(section)) if line]


def docstrings_in(source):
    return [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]


def promises_in(source):
    return [promise for text in docstrings_in(source) for promise in promises_of(text)]


def marks_in(source):
    """What the tests of a module say they stand for, and whether they run on every machine."""
    tree = ast.parse(source)
    of_module = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    is_skipped = any(text.startswith("pytestmark") and SKIPPED.search(text) for text in of_module)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            runs = not is_skipped and not any(SKIPPED.search(ast.unparse(mark)) for mark in node.decorator_list)
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantees":
                    yield from ((ast.literal_eval(promise), runs) for promise in mark.args)


PROMISES = Counter(promise for file in (ROOT / "src").rglob("*.py") for promise in promises_in(file.read_text()))
MARKS = [mark for file in (ROOT / "tests").rglob("test_*.py") for mark in marks_in(file.read_text())]
MARKED = {promise for promise, _ in MARKS}


def test_every_promise_has_a_test():
    """One that runs on every machine: where it is skipped nothing is promised."""
    tested = {promise for promise, runs in MARKS if runs}
    assert sorted(PROMISES.keys() - tested) == [], "mark their tests: @pytest.mark.guarantees(...)"


def test_every_mark_names_a_promise():
    assert sorted(MARKED - PROMISES.keys()) == [], "no docstring promises this any more, in these words"


def test_every_promise_stands_in_one_docstring():
    assert [promise for promise, number in PROMISES.items() if number > 1] == []


def test_no_promise_is_overlooked():
    """Such as one beside the heading, in a comment, below an empty line, or below a second heading."""
    for file in (ROOT / "src").rglob("*.py"):
        headings = len(re.findall(r"^[\s#*]*(?:Guarantees?:|guarantees:$)", file.read_text(), re.MULTILINE))
        assert headings == sum(bool(promises_of(text)) for text in docstrings_in(file.read_text())), file


def test_lines_that_go_on_are_one_promise():
    source = '''
def fit():
    """Train.

    Guarantees:
        No step is taken beyond the plan.
        Everything visible depends on the records
            only through sums.

    Raises:
        DpbnnError: where it cannot.
    """
'''
    first, second = "No step is taken beyond the plan.", "Everything visible depends on the records only through sums."
    assert promises_in(source) == [first, second]
    test = f'@pytest.mark.guarantees("{first}", "{second}")\ndef test_it(): ...'
    assert list(marks_in(test)) == [(first, True), (second, True)]
    for skipped in (f"@pytest.mark.gpu\n{test}", f"pytestmark = [pytest.mark.skipif(True)]\n{test}"):
        assert list(marks_in(skipped)) == [(first, False), (second, False)]
    assert list(marks_in(test.replace("test_it", "helper"))) == []
