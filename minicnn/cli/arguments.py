"""Arguments that several commands have, and the types of their values."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from minicnn.errors import InputError

if TYPE_CHECKING:
    from minicnn.engine import Model

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx")
    add_shapes(parser)
    parser.add_argument(
        "--kernel", nargs="+", action="extend", metavar="FILE.py", default=[],
        help="kernels of your own; --variant says where they are used",
    )  # fmt: skip
    parser.add_argument(
        "--variant",
        nargs="+",
        action="extend",
        metavar="OP|NODE=NAME",
        default=[],
        help="conv=im2col for all convolutions where it applies; NODE=direct for one node",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "tf32", "fp16"),
        default="fp32",
        help="tf32: a GPU may round what it multiplies to 11 bits; fp16: and all it stores (%(default)s)",
    )
    parser.add_argument(
        "--fuse", choices=("all", "none"), default="all", help="none: a layer for every ONNX node"
    )
    parser.add_argument(
        "--memory-limit",
        type=size,
        metavar="BYTES",
        help="of the device, such as 64M or 2G (default: what there is)",
    )
    parser.add_argument(
        "--no-fallback", action="store_true", help="refuse operators without a kernel of ours"
    )


def add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=positive, metavar="N", help="first dimension of every input")
    parser.add_argument(
        "--shape", nargs="+", action="extend", metavar="NAME=1,3,224,224", default=[], help="of an input"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto (default), host, cuda, cuda:N, sim")
    add_threads(parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="of the host device (default: all processors)"
    )


def load_model(options: argparse.Namespace) -> Model:
    """The model, and into the process the kernels it is to be run with."""
    from minicnn.engine import load

    if options.kernel:
        from minicnn.lab.files import bring_in

        for file in options.kernel:
            bring_in(file)
    return load(options.model, shapes(options), batch=options.batch)


def shapes(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    from minicnn.feeds import pairs

    found = {}
    for name, text in pairs(options.shape, "--shape", "NAME=1,3,224,224").items():
        try:
            found[name] = tuple(int(part) for part in text.replace("x", ",").split(","))
        except ValueError:
            raise InputError(
                "--shape can't be read", found=f"{name}={text}", expected="NAME=1,3,224,224"
            ) from None
    return found


def variants(options: argparse.Namespace) -> dict[str, str]:
    from minicnn.feeds import pairs

    return pairs(options.variant, "--variant", "conv=im2col or NODE=direct")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def size(text: str) -> int:
    unit = 1 << (10 * ("KMGT".index(text[-1]) + 1)) if text[-1:] in tuple("KMGT") else 1
    return positive(text.rstrip("KMGT")) * unit


size.__name__ = "number of bytes such as 64M"
positive.__name__ = "whole number above 0"  # argparse names the types in its messages
seconds.__name__ = "number above 0"
share.__name__ = "share such as 2%"
