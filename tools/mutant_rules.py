"""The rules by which tools/mutants.py changes kernels and device code: each change is one Mutant."""

from __future__ import annotations

import ast
import bisect
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial
from pathlib import Path

from minicnn import kernels
from minicnn.errors import MinicnnError

RULES = {
    "barrier": "a barrier of a block or warp left out, or the first step of a warp's exchange",
    "copy wait": "a wait for asynchronous copies (cp.async) left out",
    "stream wait": "a synchronisation, an event's record or the choice of the GPU left out",
    "bound": "one comparison of a bounds check taken for granted; a refusal left out",
    "swap": "two neighbouring arguments of a launch, of one type, exchanged",
    "pad": "a pad one too large",
    "stride": "a stride one too large",
    "tail": "the last one left out or one too many: loops, bounds, rounded-up divisions",
}

KERNELS = ("cuda/*.cu", "cuda/*.cuh", "tools/cuda_contract.cu")
# Few kernels wait for others or for copies: those of the simulator's tests do, so two rules go over them too.
# Kernels that exist to be wrong aren't made more so.
WAITING_KERNELS = ("tests/simgpu/kernels/*.cu",)
LEFT_OUT = ("tests/simgpu/kernels/faults.cu",)
LAUNCHES = ("minicnn/ops/*.py", "minicnn/*.py")
DEVICE_CODE = ("minicnn/device/cuda*.py",)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SIGNATURE = re.compile(r"^KERNEL\(\w+\)\s*\([^)]*\)|^[\w_ <>:*&]+\w\([^;{}]*\)\s*\{", re.MULTILINE)
_BARRIER = re.compile(r"__sync(?:threads|warp)\([^)]*\);|asm volatile\(\"(?:bar|barrier)\.sync[^\"]*\"[^;]*;")
_EXCHANGE = re.compile(r"\bdistance = 16\b")
_COPY_WAIT = re.compile(
    r"asm volatile\(\"cp\.async\.wait_[^;]*;\"[^;]*;|\bcp_async_wait\w*(?:<\d+>)?\([^)]*\);"
)
_IF = re.compile(r"\bif \(")
_FOR = re.compile(r"\bfor \([^;()]*;\s*(\w+ < [^;]+);")
_COMPARISON = re.compile(r"\s*[\w.\[\]]+(?: [+*-] \w+)* (<|>=|>|<=) [\w .+*/()-]+\s*")
_PAD = re.compile(r"\bpad_\w+\b")
_STRIDE = re.compile(r"\b\w*stride\w*\b|\b[xy]_step\b|\b[xyab][0-3]\b")
SCOPE = re.compile(r"^KERNEL\((\w+)\)|^ *def (\w+)|^[A-Za-z_][\w<>:*&\" ]*?\b(\w+)\(", re.MULTILINE)
_WAITS = re.compile(r"synchronize|event_record|\._select\(\)|\.sync\(\)|\._land\(|set_context")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`file` with the text from `start` to `end` replaced by `after`."""

    file: str
    rule: str
    start: int
    end: int
    line: int
    before: str
    after: str
    text: str  # the whole line as it was, and
    scope: str = ""  # the function it is in: to know the mutant again when lines have moved
    place: int = 1  # among mutants that are the same otherwise

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays the same when lines move."""
        text = self.text if self.place == 1 else f"{self.text} ({self.place})"
        return (self.file, self.scope, self.rule, text, self.change)

    @property
    def change(self) -> str:
        return f"{self.before} -> {' '.join(self.after.split())}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, {self.scope}, {self.rule}: {self.change}"


class Source:
    """A file's text, and mutants of it by place."""

    def __init__(self, root: Path, path: Path):
        self.file = str(path.relative_to(root))
        self.text = path.read_text()
        self.starts = [0, *(m.end() for m in re.finditer("\n", self.text))]

    def mutant(self, rule: str, start: int, end: int, after: str) -> Mutant:
        line = bisect.bisect_right(self.starts, start)
        whole = self.text[self.starts[line - 1] :].partition("\n")[0].strip()
        scopes = SCOPE.findall(self.text[:start])
        return Mutant(
            file=self.file,
            scope="".join(scopes[-1]) if scopes else "",
            rule=rule,
            start=start,
            end=end,
            line=line,
            before=" ".join(self.text[start:end].split()),
            after=after,
            text=whole,
        )

    def offset(self, line: int, column: int) -> int:
        """Of ast's place: columns count UTF-8 bytes."""
        start = self.starts[line - 1]
        encoded = self.text[start:].partition("\n")[0].encode()
        return start + len(encoded[:column].decode())


# --- rules for kernels


def of_waits(source: Source) -> Iterator[Mutant]:
    """Barriers and waits of a .cu or .cuh file."""
    bare = _without_comments(source)
    for rule, pattern in (("barrier", _BARRIER), ("copy wait", _COPY_WAIT)):
        for found in pattern.finditer(bare):
            yield source.mutant(rule, found.start(), found.end(), ";")


def of_kernel(source: Source) -> Iterator[Mutant]:
    """Barriers, waits, bounds, pads, strides, tails of a .cu or .cuh file."""
    yield from of_waits(source)
    bare = _without_comments(source)
    for found in _EXCHANGE.finditer(bare):
        yield source.mutant("barrier", found.start(), found.end(), "distance = 8")
    for found in _IF.finditer(bare):
        yield from _of_condition(source, bare, found.end())
    for found in _FOR.finditer(bare):
        name, _, limit = found[1].partition(" < ")
        yield source.mutant("tail", found.start(1), found.end(1), f"{name} + 1 < {limit}")
    body = _SIGNATURE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), bare)
    for rule, pattern in (("pad", _PAD), ("stride", _STRIDE)):
        for found in pattern.finditer(body):
            before, behind = body[: found.start()], body[found.end() :]
            is_declared = re.search(r"(\bint|\bfloat|#\w+[^\n]*)\s*[*&]?$", before)
            if not is_declared and not re.match(r"\s*=[^=]|\(", behind):
                yield source.mutant(rule, found.start(), found.end(), f"({found.group()} + 1)")


def _without_comments(source: Source) -> str:
    """The text with blanks for comments, so that places stay."""
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source.text)


def _of_condition(source: Source, bare: str, start: int) -> Iterator[Mutant]:
    """Each comparison of an `if`: without effect, and off by one."""
    end = _closing(bare, start)
    leaves = re.match(r"\s*(return|continue|break)", bare[end + 1 :]) is not None
    place = start
    for part in re.split(r"(\|\||&&)", bare[start:end]):
        found = _COMPARISON.fullmatch(part)
        if found:
            inner = place + len(part) - len(part.lstrip())
            outer = place + len(part.rstrip())
            is_one_of_many = "||" in bare[start:end] or leaves
            yield source.mutant("bound", inner, outer, "false" if is_one_of_many else "true")
            other = {"<": "<=", "<=": "<", ">=": ">", ">": ">="}[found[1]]
            off_by_one = part[: found.start(1)] + other + part[found.end(1) :]
            yield source.mutant("tail", inner, outer, off_by_one.strip())
        place += len(part)


def _closing(text: str, start: int) -> int:
    """Where the bracket that was opened before `start` closes."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    return len(text)


# --- rules for Python


def of_launches(source: Source, types: Mapping[str, str]) -> Iterator[Mutant]:
    """Exchanged arguments, pads and strides one too large, divisions rounded down.

    types  of kernels' parameters, by name
    """
    for node in ast.walk(ast.parse(source.text)):
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Call):
            pairs = [(k.arg, k.value) for k in node.keywords if k.arg]
            if isinstance(node.func, ast.Name) and node.func.id == "ceil_div":
                above, below = (_segment(source, a) for a in node.args)
                yield source.mutant("tail", *_span(source, node), f"(({above}) // ({below}))")
        elif isinstance(node, ast.Dict):
            keys = zip(node.keys, node.values, strict=True)
            pairs = [(str(k.value), value) for k, value in keys if isinstance(k, ast.Constant)]
        known = [(name, value) for name, value in pairs if name in types]
        if len(known) < 3:
            continue  # no launch's arguments
        for (name, value), (other, second) in zip(known, known[1:], strict=False):
            left, right = _segment(source, value), _segment(source, second)
            if types[name] == types[other] and left != right:
                start, end = _span(source, value)[0], _span(source, second)[1]
                between = source.text[_span(source, value)[1] : _span(source, second)[0]]
                yield source.mutant("swap", start, end, right + between + left)
        for name, value in known:
            rule = "pad" if _PAD.fullmatch(name) else "stride" if _STRIDE.fullmatch(name) else ""
            if rule:
                yield source.mutant(rule, *_span(source, value), f"({_segment(source, value)}) + 1")


def of_device(source: Source) -> Iterator[Mutant]:
    """Waits and refusals left out."""
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _WAITS.search(_segment(source, node)):
                yield source.mutant("stream wait", *_span(source, node), "pass")
        elif isinstance(node, ast.If) and any(isinstance(child, ast.Raise) for child in node.body):
            yield source.mutant("bound", *_span(source, node.test), "False")


def _span(source: Source, node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return source.offset(node.lineno, node.col_offset), source.offset(node.end_lineno, node.end_col_offset)


def _segment(source: Source, node: ast.expr | ast.stmt) -> str:
    start, end = _span(source, node)
    return source.text[start:end]


@once
def parameter_types(root: Path) -> dict[str, str]:
    """Name -> type code, for parameters that have one type in all kernels."""
    found: dict[str, set[str]] = {}
    for path in sorted((root / "cuda").glob("*.cu")):
        try:
            entries = kernels.entries(str(path))
        except MinicnnError:
            continue
        for parameters in entries.values():
            for parameter in parameters:
                found.setdefault(parameter.name, set()).add(parameter.code)
    return {name: codes.pop() for name, codes in found.items() if len(codes) == 1}


def all_mutants(root: Path) -> list[Mutant]:
    found: list[Mutant] = []
    groups: tuple[tuple[tuple[str, ...], Callable[[Source], Iterator[Mutant]]], ...] = (
        (KERNELS, of_kernel),
        (WAITING_KERNELS, of_waits),
        (LAUNCHES, partial(of_launches, types=parameter_types(root))),
        (DEVICE_CODE, of_device),
    )
    for patterns, rules in groups:
        for path in [p for pattern in patterns for p in sorted(root.glob(pattern))]:
            if str(path.relative_to(root)) not in LEFT_OUT:
                found += rules(Source(root, path))
    places: Counter[tuple[str, ...]] = Counter()
    for index, mutant in enumerate(found):
        places[mutant.identity] += 1
        found[index] = replace(mutant, place=places[mutant.identity])
    return found


def sample(mutants: list[Mutant], each: int, seed: int) -> list[Mutant]:
    """At most `each` of every rule (0: all), drawn with the seed."""
    chosen: list[Mutant] = []
    for rule in RULES:
        of_rule = [m for m in mutants if m.rule == rule]
        draw = random.Random(f"{seed} {rule}")
        drawn = draw.sample(of_rule, min(each or len(of_rule), len(of_rule)))
        chosen += sorted(drawn, key=lambda m: (m.file, m.start))
    return chosen
