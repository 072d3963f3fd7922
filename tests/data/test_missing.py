"""Codes that stand for a missing value are read as missing cells: in schemas, in tables, and again at prediction."""

import numpy as np
import pytest

from tacitly.data.missing import Codes, without_codes
from tacitly.data.schema import Column, Schema, infer
from tacitly.data.tables import open_table
from tacitly.data.validation import DataError


def table(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return open_table(path, "id", None)


def test_a_number_and_its_other_spellings_are_one_code():
    codes = Codes.of([-9, "refused"])
    assert codes.blanked(np.array(["-9.0", "-9", " refused ", "9", None], dtype=object)).tolist() == [None] * 3 + [
        "9",
        None,
    ]


def test_cells_without_codes_are_the_same_array():
    for cells in (np.array([1.0, np.nan]), np.array([1, 2]), np.array(["a"], dtype=object), np.array([True])):
        assert Codes.of([-9]).blanked(cells) is cells


def test_a_column_of_numbers_with_declared_codes_is_one_of_numbers(tmp_path):
    source = table(tmp_path, "id,income\n" + "".join(f"{i},{i * 100}\n" for i in range(3)) + "3,refused\n4,-9\n")
    schema = infer(source, ["income"], {"income": {"missing": ["refused", -9]}})
    assert schema.columns[0].kind == "number"
    assert not schema.plain
    (cells,) = next(source.batches(["income"], 10))
    np.testing.assert_array_equal(schema.encode([cells])[:, 0], [0.0, 100.0, 200.0, np.nan, np.nan])


def test_codes_of_text_have_no_level():
    schema = Schema.declared({"region": {"levels": ["north", "south"], "missing": ["?!"]}})
    assert np.isnan(schema.encode([np.array(["?!"], dtype=object)])).all()


def test_codes_are_kept_with_the_schema():
    schema = Schema.declared({"income": {"missing": [-9, "refused"]}})
    assert Schema.from_dict(schema.to_dict()) == schema


def test_codes_that_are_not_texts_or_numbers_are_refused():
    with pytest.raises(DataError, match="missing must be a list of texts or numbers"):
        Codes.of([True])


def test_a_table_without_codes_is_the_table(tmp_path):
    source = table(tmp_path, "id,income\n1,2\n")
    assert without_codes(source, {}) is source


def test_a_code_of_one_column_is_a_value_of_another(tmp_path):
    source = without_codes(table(tmp_path, "id,a,b\n1,-9,-9\n"), {"a": Codes.of([-9])})
    a, b = next(source.batches(["a", "b"], 10))
    assert np.isnan(a[0])
    assert b[0] == -9


@pytest.mark.parametrize("kind", ["category", "hashed"])
def test_a_code_in_one_cell_changes_no_other_cell(kind):
    wide = 2**53 + 1  # no float64
    levels = ("3", str(wide), str(wide + 2)) if kind == "category" else ()
    column = Column("branch", kind, levels, missing=Codes.of([-9]))
    without, _ = column.encode(np.array([3, wide, wide + 2]))
    beside, _ = column.encode(np.array([-9, wide, wide + 2]))
    assert np.isfinite(without[1:]).all()
    assert np.array_equal(without[1:], beside[1:])


class _Untold:
    def __str__(self):
        raise RuntimeError("a private cell")


@pytest.mark.parametrize("kind", ["number", "boolean", "category", "hashed"])
@pytest.mark.parametrize("cell", [10**5000, _Untold()], ids=["digits", "untold"])
@pytest.mark.parametrize("codes", [[], [-9]], ids=["plain", "coded"])
def test_no_cell_makes_encoding_raise(kind, cell, codes):
    column = Column("x", kind, ("1", "2") if kind == "category" else (), missing=Codes.of(codes))
    cells = np.empty(3, dtype=object)
    cells[:] = ["1", cell, "-9"]
    encoded, _ = column.encode(cells)
    alone, _ = column.encode(cells[:1])
    assert np.array_equal(encoded[:1], alone, equal_nan=True)
