"""Files that ``ps2 train`` cannot read are named with what is wrong with them, whatever form they have."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from ps2.algorithms import KMeans, KMeansClusters, KMeansModel
from ps2.algorithms.text import clicks, documents, libsvm, tables
from ps2.errors import ConfigError, InputError

READERS = {
    "rows": lambda spark, path: libsvm.read(spark, path, 3),
    "features": libsvm.count_features,
    "edges": tables.read_edges,
    "classes": tables.read_classes,
    "documents": documents.read,
    "ratings": lambda spark, path: tables.read_ratings(spark, path, None),
    "table": lambda spark, path: tables.read_ratings(spark, path, tables.CsvColumns()),
    "clicks": lambda spark, path: clicks.read(spark, path, "csv", clicks.ClickColumns(categories=("site",))),
    "plays": lambda spark, path: tables.read_ratings(spark, path, tables.CsvColumns(rating=None)),
    "parquet": lambda spark, path: clicks.read(spark, path, "parquet", clicks.ClickColumns(categories=("site",))),
    "vocabulary": lambda spark, path: documents.read_vocabulary(spark, path, 3),
}
PACKED = gzip.compress(b"".join(b"%d 1:%d 3:1\n" % (i % 2, i) for i in range(3000)))
FAULTS = {
    "cut off": (PACKED[: len(PACKED) // 2], "EOFException: Unexpected end of input stream"),
    "another form": (b"1 1:2 3:1\n" * 100, "IOException: not a gzip file"),
    "damaged": (PACKED[:-8] + bytes(8), "IOException: gzip stream CRC failure"),
}


PLAYS, CLICKS = "user,item\n1,2\n3,4\n", "label,site\n1,a\n0,b\n"
WRONG = [
    ("rows", "# nothing\n\n", "expected .*, got no row|no row"),
    ("rows", "+1 1:1\nwhat\n+1 3:oops\n", "^{path}: line 2: label: "),
    ("rows", "+1 1:1\n-1 4:1\n", "^{path}: line 2: index: expected an integer"),
    ("rows", "+1 1:1\n# 1:1:1\n-1 1:3:.5 2:1:1\n", "^{path}: line 3: value: expected a number, got '3:.5' in '1:3:.5'"),
    ("edges", "1 2\n2 3\n\n3 4 5\n", "^{path}: line 4: expected 2 fields, as the first line has, got 3: '3 4 5'"),
    ("edges", "# nothing\n", "^{path}: expected lines 'source target' or 'source target weight', got none"),
    ("ratings", "1 2 3\n2 3 1\n\n3 4\n", "^{path}: line 4: expected 3 fields, as the first line has, got 2: '3 4'"),
    ("ratings", "1 2 3 978\n", "^{path}: line 1: expected 'user item' or 'user item rating', got '1 2 3 978'"),
    ("ratings", "1::2::3\n1::2::x\n", "^{path}: line 2: rating: expected a number, got 'x'"),
    ("ratings", "1,2,3\n1,,2\n", "^{path}: line 2: item: expected an id, got an empty field in '1,,2'"),
    (
        "ratings",
        "user item\n1 2\n2 3\n",
        "^{path}: expected integers, as other lines have, got the first line 'user ",
    ),
    ("edges", "a,b\n\n2,3\n3,4\n", "^{path}: expected integers, as other lines have, got the first line 'a,b'"),
    ("ratings", "# nothing\n", "^{path}: expected lines 'user item' or 'user item rating', got none"),
    ("table", 'user,item,rating,text\n1,2,3,"a\n4,5,1,b"\n', "^{path}: line 2: expected 4 fields"),
    ("clicks", 'label,site\n1,"a\n0,b"\n', "^{path}: line 2: expected 2 fields, as the first line has, got 1: "),
    ("rows", "+1 1:1\n-1 2:3\u00a0\n", "^{path}: line 2: value: expected a number, got '3"),
    ("ratings", "1 2 3\n4 5 6\u00a0\n", "^{path}: line 2: rating: expected a number, got '6"),
    ("table", "user,item,rating\n1,2,3\u3000\n", "^{path}: line 2: rating: expected a number, got '3"),
    ("table", "user,item,rating\n1,2,3\n1,3,\n", "^{path}: line 3: rating: expected a number, got ''"),
    (
        "table",
        "user,movie,rating\n1,2,3\n",
        "^{path}: line 1: expected a column 'item' of items, got 'user', 'movie', 'rating'",
    ),
]


@pytest.mark.parametrize(("reader", "text", "message"), WRONG)
def test_a_file_when_it_is_wrong_then_says_where(spark, tmp_path, reader, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=message.format(path=tmp_path / "file")):
        READERS[reader](spark, str(tmp_path / "file"))


def folder_of(tmp_path, *texts):
    """A folder with a comma and characters of patterns in its name; larger files first, as Spark reads them."""
    folder = tmp_path / "a,b [1] {c,d}"
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number} %20.csv").write_text(text)
    return folder, str(tmp_path / "a,b *")


@pytest.mark.parametrize(
    ("reader", "text", "fault"),
    [
        ("ratings", "ann film 3\nandr\xe9 film 5\nandr\xe8 film 1\n", "line 2: user: expected UTF-8, got 'andr\ufffd'"),
        ("edges", "a caf\xe9\n", "line 1: target: expected UTF-8"),
        ("table", "user,item,rating\n1,caf\xe9,5\n", "line 2: item: expected UTF-8"),
        ("clicks", "label,site\n1,caf\xe9\n", "line 2: column 'site': expected UTF-8"),
        ("classes", "1 caf\xe9\n", "line 1: class: expected UTF-8"),
        ("vocabulary", "a\nb\ncaf\xe9\n", "line 3: expected UTF-8"),
    ],
)
def test_a_file_when_it_is_not_utf8_then_says_where(spark, tmp_path, reader, text, fault):
    (tmp_path / "file").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=f"^{tmp_path / 'file'}: {fault}"):
        READERS[reader](spark, str(tmp_path / "file"))


@pytest.mark.parametrize(
    "text", ["1\t2\t3\n4\t5\t6 \r\n", "1::2::3\n4::5::6\n", "1,2,3\n# said\n4, 5, 6\n", "1 2\t3\n\n4 5 6"]
)
def test_ratings_when_separated_somehow_then_they_are_read(spark, tmp_path, text):
    (tmp_path / "file").write_text(text)
    result = READERS["ratings"](spark, str(tmp_path / "file"))
    assert sorted(map(tuple, result.frame.collect())) == [(1, 2, 3.0), (4, 5, 6.0)]


@pytest.mark.parametrize(
    ("reader", "text"), [("ratings", "007 2\n7 2\n+7 2\n"), ("plays", "user,item\n007,2\n7,2\n+7,2\n")]
)
def test_ratings_when_ids_begin_with_zeros_then_they_differ(spark, tmp_path, reader, text):
    (tmp_path / "file").write_text(text)
    result = READERS[reader](spark, str(tmp_path / "file"))
    assert sorted(map(tuple, result.frame.collect())) == [("+7", 2), ("007", 2), ("7", 2)]


def test_ratings_when_tabs_separate_then_ids_contain_spaces(spark, tmp_path):
    (tmp_path / "file").write_text("ann\tThe  Film\t5\n\tbob \t Heat\t4\t\r\n")
    result = READERS["ratings"](spark, str(tmp_path / "file"))
    assert sorted(map(tuple, result.frame.collect())) == [("ann", "The  Film", 5.0), ("bob", "Heat", 4.0)]


def test_edges_when_lines_read_in_two_ways_then_file_is_named(spark, tmp_path):
    (tmp_path / "file").write_text("2001:db8::1 2001:db8::2\n2001:db8::3 2001:db8::4\n")
    with pytest.raises(InputError, match=f"^{tmp_path / 'file'}: '2001:db8::1 2001:db8::2' can be read as"):
        READERS["edges"](spark, str(tmp_path / "file"))


def test_edges_when_separated_by_commas_then_they_are_read(spark, tmp_path):
    (tmp_path / "file").write_text("1, 2\n3, 4\n")
    assert sorted(map(tuple, READERS["edges"](spark, str(tmp_path / "file")).frame.collect())) == [(1, 2), (3, 4)]


def test_classes_when_separated_by_commas_then_they_are_read(spark, tmp_path):
    (tmp_path / "file").write_text(" # vertex, class\n1, a, b\n2, c\n")
    assert READERS["classes"](spark, str(tmp_path / "file")) == {1: "a", 2: "c"}


@pytest.mark.parametrize(
    ("reader", "texts", "rows"),
    [
        (
            "plays",
            ["user,item\n1,2\n3,4\n", "item,user\n6,5\n", "\nuser,item\n7,8\n", ""],
            [(1, 2), (3, 4), (5, 6), (7, 8)],
        ),
        (
            "table",
            ["rating,user,item\n3,1,2\n6,4,5\n", "user, item, rating\n7, 8, 9\n"],
            [(1, 2, 3), (4, 5, 6), (7, 8, 9)],
        ),
        ("clicks", ["label,site\n1,a\n0,b\n0,\n", "site,label\nc,1\n"], [(0, None), (0, "b"), (1, "a"), (1, "c")]),
    ],
)
def test_a_folder_when_orders_differ_then_columns_go_by_name(spark, tmp_path, reader, texts, rows):
    _, path = folder_of(tmp_path, *texts)
    frame = READERS[reader](spark, path).frame
    assert sorted(map(tuple, frame.collect()), key=str) == sorted(rows, key=str)


@pytest.mark.parametrize(
    ("reader", "texts", "fault"),
    [
        ("plays", [PLAYS, "User,item\n6,5\n"], "line 1: expected the columns of {0}, with 'user', got 'User'"),
        ("plays", [PLAYS, "5,6\n"], "line 1: expected the columns of {0}, with 'user', 'item', got '5', '6'"),
        ("clicks", [CLICKS, "label,site,x\n"], "line 1: expected the columns of {0}, with no more, got 'x'"),
        ("clicks", [CLICKS, "site,label\na,7\n"], "line 2: column 'label': expected a label 0 or 1, got '7'"),
        ("plays", [PLAYS, "item,user\n6,5\nuser,item\n7,8\n"], "line 3: expected a row, got names of columns"),
    ],
)
def test_a_folder_when_file_has_other_columns_then_it_is_named(spark, tmp_path, reader, texts, fault):
    folder, path = folder_of(tmp_path, *texts)
    with pytest.raises(InputError) as raised:
        READERS[reader](spark, path)
    assert str(raised.value).startswith(f"{folder}/1 %20.csv: {fault.format(folder / '0 %20.csv')}")


def test_parquet_when_a_file_lacks_a_column_then_it_is_named(spark, tmp_path):
    for name, row in (
        ("part 0", "1.0 label, 'a' site"),
        ("part [1]", "0.0 label, 'b' page"),
        ("part 2", "0.0 label, cast(null as string) site"),
    ):
        spark.sql(f"select {row}").coalesce(1).write.parquet(str(tmp_path / name))
        next((tmp_path / name).glob("*.parquet")).rename(tmp_path / f"{name}.parquet")
        for file in (tmp_path / name).iterdir():
            file.unlink()
        (tmp_path / name).rmdir()
    with pytest.raises(
        InputError, match=r"^.*/part \[1\].parquet: expected a column 'site', as other files have, got 'label', 'page'$"
    ):
        READERS["parquet"](spark, str(tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        *("1 2:1", "1", " -1.5e-3  1:.5 9:-2. ", "x 1:1", "1 2", "1 2:", "1 2:1\t3:1", "1 5:1 5:2", "1 2:1:3"),
        # What Java reads as a number; NaN is a missing value.
        *("1 2:3f", "1d 2:1", "0x1p3 2:1", "1 2:1e400", "1 2:-Infinity", f"1 2:{'9' * 400}", "1 2:1e300", "1 2:NaN"),
    ],
)
def test_read_when_spark_refuses_line_then_it_is_malformed(spark, tmp_path, line):
    path = str(tmp_path / "rows")
    (tmp_path / "rows").write_text(line)
    if libsvm.fault_of(line) is None:
        assert len(libsvm.read(spark, path, 12)) == 1
    else:
        with pytest.raises(InputError, match=rf"^{path}: line 1: "):
            libsvm.read(spark, path, 12)


@pytest.mark.parametrize(
    "reader", [reader for reader in READERS if reader not in ("table", "plays", "clicks", "parquet")]
)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_compressed_file_when_broken_then_is_named(spark, tmp_path, reader, fault):
    content, messages = FAULTS[fault]
    (tmp_path / "rows of 1.gz").write_bytes(content)
    with pytest.raises(InputError) as raised:
        READERS[reader](spark, str(tmp_path / "rows of 1.gz"))
    assert str(raised.value) == f"{tmp_path}/rows of 1.gz: reading failed: {messages}"


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_when_it_has_folders_then_it_is_not_read(spark, tmp_path, reader):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "rows.txt").write_text("1 1:1\n")
    with pytest.raises(InputError, match=r"expected .* a folder of files, got a folder with the folder 'deep' in it"):
        READERS[reader](spark, str(tmp_path))


def test_a_folder_when_of_a_partitioned_table_then_is_read(spark, tmp_path):
    for day in ("day=1", "day=2"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "rows.libsvm").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    assert len(libsvm.read(spark, str(tmp_path), 3)) == 4


def test_filesystem_root_when_read_then_error_at_once(spark):
    with pytest.raises(InputError, match=r"^/: expected a file or a folder of files, got a folder with the folder"):
        libsvm.count_features(spark, "/")


NAMES = ["a,b [1] {c,d}", "x*y?", "b\\c", "é ü%20#"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_when_its_folder_looks_like_a_pattern_then_loads(spark, tmp_path, name):
    path = str(tmp_path / name)
    KMeans(k=7).save(f"{path}/estimator")
    model = KMeansModel(KMeansClusters(np.eye(3), "euclidean"))
    for _ in range(2):
        model.write().overwrite().save(f"{path}/model")
    assert KMeans.load(f"{path}/estimator").getK() == 7
    assert np.array_equal(KMeansModel.load(f"{path}/model").clusterCenters(), np.eye(3))


def test_a_path_when_it_begins_with_tilde_then_is_refused(spark):
    """To Spark that is a folder named "~", and to all who read the model without it the user's home."""
    for call in (KMeans().save, KMeans.load, KMeansModel(KMeansClusters([[1.0]])).save, KMeansModel.load):
        with pytest.raises(ConfigError, match=r"got '~/model.*', in which Spark takes '~' for a folder's name"):
            call("~/model")


def test_a_file_when_its_name_is_a_pattern_then_error_writes_it(spark, tmp_path):
    (tmp_path / "a[1]").write_text("1 2\n")
    with pytest.raises(InputError, match=r"no such file that this pattern matches; .* this name, use (.*)$") as raised:
        tables.read_edges(spark, str(tmp_path / "a[1]"))
    assert tables.read_edges(spark, str(raised.value).rpartition(" ")[2]).rows == 1


def test_a_path_when_java_has_another_locale_then_error_says_so(spark, tmp_path):
    system, name = spark.sparkContext._jvm.java.lang.System, "sun.jnu.encoding"
    (tmp_path / "modèle").write_text("1 2\n")
    before = system.setProperty(name, "ANSI_X3.4-1968")
    try:
        with pytest.raises(ConfigError, match=r"ANSI_X3.4-1968 for Spark's Java, got .*xe8le': set LC_ALL=C.UTF-8"):
            tables.read_edges(spark, str(tmp_path / "modèle"))
    finally:
        system.setProperty(name, before)
