"""Writes docs/schema.md, the page that lists everything a record holds, from minicnn/schema.py.

    python tools/make_schema_page.py
"""

from __future__ import annotations

from pathlib import Path

from minicnn.schema import SCHEMA, SCHEMA_VERSION, Quantity

PAGE = Path(__file__).parent.parent / "docs" / "schema.md"
HEAD = f"""# What a record holds

Schema version {SCHEMA_VERSION}. Names stay as they are; later versions of minicnn add to them. Written by
`python tools/make_schema_page.py` from `minicnn/schema.py`; how to open a record: [reading.md](reading.md).

float64: NaN means "not measured". bool: stored as int8. texts, mapping: a JSON list or object.
Every dataset carries its unit and its meaning as the attributes `units` and `long_name`.
"""
SECTIONS = {
    ("rep",): "For each repetition",
    ("rep", "layer"): "For each repetition and layer",
    ("layer",): "For each layer",
    ("buffer",): "For each piece of planned memory",
    (): "Attributes of the file",
}


def page() -> str:
    parts = [HEAD]
    for dims, title in SECTIONS.items():
        parts.append(f"## {title}\n\n| name | type | unit | meaning |\n| --- | --- | --- | --- |")
        parts[-1] += "".join(_row(quantity) for quantity in SCHEMA if quantity.dims == dims) + "\n"
    return "\n".join(parts)


def _row(quantity: Quantity) -> str:
    unit = "" if quantity.unit in ("", "1") else quantity.unit
    return f"\n| `{quantity.name}` | {quantity.dtype} | {unit} | {quantity.long_name} |"


if __name__ == "__main__":
    PAGE.write_text(page())
