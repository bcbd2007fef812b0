"""docs/studies.md out of the results that are kept under docs/results.

    python tools/make_studies.py                        the page anew
    python tools/make_studies.py --keep FOLDER NAME     a finished study's results first: its HDF5 and figures
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from minicnn.study import NAMES, table  # noqa: E402
from minicnn.study.run import module_of  # noqa: E402

PAGE = ROOT / "docs" / "studies.md"
RESULTS = ROOT / "docs" / "results"
HEAD = """# Studies

Questions of the literature, each answered by one command on the device at hand: `minicnn study NAME --out D`,
with `--quick` (seconds), by itself (minutes) or `--full`. A study keeps its raw samples in HDF5, which
`xarray.open_dataset` reads, draws its figures as SVG and PNG, and says what it found on one page. It may be
interrupted at any moment; `--resume` goes on. What follows was made by tools/make_studies.py out of
docs/results, on the device that it names.
"""


def keep(folder: Path, name: str) -> None:
    target = RESULTS / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in (folder / f"{name}.h5", *sorted(folder.glob("*.svg"))):
        shutil.copy(path, target)


def page() -> str:
    parts = [HEAD]
    for name in NAMES:
        folder = RESULTS / name
        if not (folder / f"{name}.h5").exists():
            continue
        module, found = module_of(name), table.read(folder / f"{name}.h5")
        facts = found.attributes
        parts.append(f"## {module.TITLE}\n")
        parts.append(f"`{facts['command']}`, {facts['device']}, {facts['date']}, {facts['versions']}.\n")
        parts += [f"{sentence}\n" for sentence in module.words(found)]
        captions = {figure.name: figure.caption for figure in module.figures(found)}
        for path in sorted(folder.glob("*.svg")):
            parts.append(f"![{captions[path.stem]}](results/{name}/{path.name})\n\n{captions[path.stem]}\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", nargs=2, metavar=("FOLDER", "NAME"), help="a finished study's results")
    options = parser.parse_args()
    if options.keep:
        keep(Path(options.keep[0]), options.keep[1])
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
