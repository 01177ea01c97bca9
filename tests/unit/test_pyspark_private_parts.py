"""Only ``ps2.run.spark`` uses private parts of pyspark, or parts that Spark Connect lacks."""

from __future__ import annotations

import re
from pathlib import Path

import ps2

ROOM = "run/spark"
# Members of pyspark's objects that no documentation names, and py4j's ways to Java.
PRIVATE = re.compile(
    r"\._(jsc|jvm|jdf|jrdd|jsparkSession|jconf|java_obj|sc|gateway|active_spark_context|python_includes"
    r"|accumulatorServer|explain_string|client)\b|java_exception\b|_py2java\b"
)
# A program of its own, which is the driver of another application.
PROGRAM = {f"coordinator/launchers/containers/{name}.py" for name in ("spark_app",)}


def test_private_parts_of_pyspark_are_in_one_room_only():
    root = Path(ps2.__file__).parent
    files = {str(file.relative_to(root)): file for file in root.rglob("*.py")}
    users = {name for name, file in files.items() if PRIVATE.search(file.read_text())}
    assert {name for name in users if not name.startswith(f"{ROOM}/")} == PROGRAM
    assert {f"{ROOM}/classic.py", f"{ROOM}/connect.py", f"{ROOM}/jvm.py"} <= users
