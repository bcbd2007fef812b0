"""Every refusal minicnn makes: one typed error, one sentence, and the facts that go with it.

`MinicnnError("the input has the wrong shape", file=..., tensor="x", expected=(1, 3, 8, 8), found=(3, 8, 8))`
prints as one message that names the file, the node, the tensor, what was expected, what was found, and
what would have been accepted. The command line prints that message and exits with `exit_code`; a traceback is
a bug.
"""

from __future__ import annotations


class MinicnnError(Exception):
    """Base of all errors that a user can cause and mend. Facts may be added on the way up with `at`."""

    exit_code = 2
    FACTS = ("file", "node", "operator", "tensor", "expected", "found", "accepted", "remedy")

    def __init__(self, sentence: str, **facts: object):
        unknown = set(facts) - set(self.FACTS)
        if unknown:
            raise TypeError(f"unknown facts {sorted(unknown)}; known are {self.FACTS}")
        super().__init__(sentence)
        self.sentence = sentence
        self.facts = {name: facts[name] for name in self.FACTS if facts.get(name) is not None}

    def at(self, **facts: object) -> MinicnnError:
        """Adds facts that are not known yet (what was said closest to the fault wins); returns self."""
        for name in self.FACTS:
            if name not in self.facts and facts.get(name) is not None:
                self.facts[name] = facts[name]
        return self

    def __str__(self) -> str:
        facts = (f"{name}: {value}" for name, value in self.facts.items())
        return " ".join("; ".join([self.sentence, *facts]).split())  # one line, whatever was found


class ModelError(MinicnnError):
    """The model file can't be read, or what it says contradicts itself."""


class ShapeError(ModelError):
    """Shapes that don't fit together, or that are left open where they must be known."""


class UnsupportedError(ModelError):
    """A valid model that asks for something minicnn refuses by name."""


class InputError(MinicnnError):
    """An input (array, picture, label file, flag) that doesn't fit the model."""


class OutputError(MinicnnError):
    """A result that can't be written where it was asked for."""


class DeviceError(MinicnnError):
    """A device that isn't there, isn't usable, or failed."""


class MemoryLimitError(DeviceError):
    """A plan that takes more memory than there is, or than it may take."""


class BuildError(DeviceError):
    """A kernel that didn't compile, or a compiler that is missing."""


class CheckError(MinicnnError):
    """A kernel that isn't right: its result, its NaN, or the memory it touched."""

    exit_code = 1


class ClosureError(MinicnnError):
    """The layers' times and the caller's clock are further apart than was asked for."""

    exit_code = 3
