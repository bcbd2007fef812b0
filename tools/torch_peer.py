"""The same network in PyTorch: an ONNX graph's nodes by PyTorch's operators, eagerly or as one CUDA graph.

What the classic networks of models/build.py consist of is known here, and nothing else. A normalisation right
behind a convolution is folded into its weights, as minicnn does it, so that like is compared with like.

Needs     PyTorch; a GPU for `Captured`
Not here  symbolic shapes, several inputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

Attributes = Mapping[str, Any]
Function = Callable[..., torch.Tensor]
WARMUP = 3  # runs before a capture: libraries choose their algorithms in them


class Peer:
    """A network of one input and one output; `run` takes and gives a tensor on its device.

    Raises    NotImplementedError: an operator or attribute that isn't known here
    """

    def __init__(
        self, model: onnx.ModelProto, *, device: str, dtype: torch.dtype, channels_last: bool = False
    ):
        graph = model.graph
        self.dtype, self.device = dtype, device
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        (self.input,) = (value.name for value in graph.input if value.name not in arrays)
        (self.output,) = (value.name for value in graph.output)
        arrays |= {n.output[0]: _attributes(n)["value"] for n in graph.node if n.op_type == "Constant"}
        opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        nodes = list(_folded([n for n in graph.node if n.op_type != "Constant"], arrays))
        self._constants = {name: self._constant(array) for name, array in arrays.items()}
        self._nodes = [(_function(node, arrays, opset), tuple(node.input), node.output[0]) for node in nodes]

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """An input as `run` takes it."""
        return torch.from_numpy(array).to(self.device, self.dtype, memory_format=self.format)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            values = {**self._constants, self.input: x}
            for function, inputs, output in self._nodes:
                values[output] = function(*(values[name] for name in inputs if name))
            return values[self.output]

    def _constant(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.array(array)).to(self.device)
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tensor.to(memory_format=self.format) if tensor.ndim == 4 else tensor


class Captured:
    """A peer's run as one CUDA graph on its own input, which `replay` runs again."""

    def __init__(self, peer: Peer, x: torch.Tensor):
        self.x = x.clone(memory_format=torch.preserve_format)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                peer.run(self.x)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.y = peer.run(self.x)

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        return self.y


def set_precision(*, tf32: bool) -> None:
    """Whether float32 products may have TF32 factors. PyTorch's default is yes for convolutions alone."""
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's algorithms, found in the warm-up


def _folded(nodes: Sequence[onnx.NodeProto], arrays: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """The nodes, each BatchNormalization that alone reads a Conv's output folded into the Conv's weights."""
    readers: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    kept: list[onnx.NodeProto] = []
    for node in nodes:
        before = kept[-1] if kept else None
        is_pair = before is not None and before.op_type == "Conv" and node.op_type == "BatchNormalization"
        if before is None or not is_pair or node.input[0] != before.output[0] or readers[node.input[0]] > 1:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            kept.append(copy)
            continue
        scale, bias, mean, variance = (arrays[name].astype(np.float64) for name in node.input[1:])
        factor = scale / np.sqrt(variance + _attributes(node).get("epsilon", 1e-5))
        w = arrays[before.input[1]]
        old = arrays[before.input[2]] if len(before.input) > 2 else np.zeros(len(w))
        names = [f"{node.name or node.output[0]}.{part}" for part in ("weight", "bias")]
        arrays[names[0]] = (w * factor[:, None, None, None]).astype(np.float32)
        arrays[names[1]] = (bias + (old - mean) * factor).astype(np.float32)
        kept[-1] = helper.make_node("Conv", [before.input[0], *names], [node.output[0]], name=before.name)
        kept[-1].attribute.extend(before.attribute)
    return kept


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {n: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for n, v in values.items()}


def _function(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], opset: int) -> Function:
    """What does a node, its attributes and the constants among them taken in."""
    attributes = {**_attributes(node), "opset": opset}
    if node.op_type not in _MAKERS:
        raise NotImplementedError(f"no peer for the operator {node.op_type}")
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NotImplementedError(f"{node.op_type} with auto_pad")
    constants = [arrays.get(name) for name in node.input]
    return _MAKERS[node.op_type](attributes, constants)


def _padded(pads: Sequence[int], value: float) -> tuple[tuple[int, int], Function]:
    """PyTorch's own padding where both sides are alike, else none and a step before that pads."""
    top, left, bottom, right = pads
    if (top, left) == (bottom, right):
        return (top, left), lambda x: x
    return (0, 0), lambda x: F.pad(x, (left, right, top, bottom), value=value)


def _conv(attributes: Attributes, constants: Sequence[Any]) -> Function:
    padding, before = _padded(attributes.get("pads", (0, 0, 0, 0)), 0.0)
    options = {
        "stride": tuple(attributes.get("strides", (1, 1))),
        "dilation": tuple(attributes.get("dilations", (1, 1))),
        "groups": attributes.get("group", 1),
        "padding": padding,
    }
    return lambda x, w, b=None: F.conv2d(before(x), w, b, **options)


def _max_pool(attributes: Attributes, constants: Sequence[Any]) -> Function:
    padding, before = _padded(attributes.get("pads", (0, 0, 0, 0)), float("-inf"))
    return lambda x: F.max_pool2d(before(x), padding=padding, **_window(attributes))


def _average_pool(attributes: Attributes, constants: Sequence[Any]) -> Function:
    pads = tuple(attributes.get("pads", (0, 0, 0, 0)))
    counts_pads = bool(attributes.get("count_include_pad", 0))
    padding, before = _padded(pads, 0.0)
    window = _window(attributes)
    if any(pads) and padding == (0, 0) and not counts_pads:
        # Uneven: the sums over the sums of ones.
        sums = lambda x: F.avg_pool2d(before(x), **window)  # noqa: E731
        return lambda x: sums(x) / sums(torch.ones_like(x[:1, :1]))
    return lambda x: F.avg_pool2d(before(x), padding=padding, count_include_pad=counts_pads, **window)


def _window(attributes: Attributes) -> dict[str, Any]:
    if tuple(attributes.get("dilations", (1, 1))) != (1, 1):
        raise NotImplementedError("a pooling window with dilations")
    return {
        "kernel_size": tuple(attributes["kernel_shape"]),
        "stride": tuple(attributes.get("strides", (1, 1))),
        "ceil_mode": bool(attributes.get("ceil_mode", 0)),
    }


def _gemm(attributes: Attributes, constants: Sequence[Any]) -> Function:
    scales = (attributes.get("alpha", 1.0), attributes.get("beta", 1.0))
    if scales != (1.0, 1.0) or attributes.get("transA", 0):
        raise NotImplementedError("Gemm with alpha, beta or transA")
    if attributes.get("transB", 0):
        return lambda a, b, c=None: F.linear(a, b, c)
    return lambda a, b, c=None: F.linear(a, b.T, c)


def _normalization(attributes: Attributes, constants: Sequence[Any]) -> Function:
    epsilon = attributes.get("epsilon", 1e-5)
    return lambda x, scale, bias, mean, var: F.batch_norm(x, mean, var, scale, bias, eps=epsilon)


def _lrn(attributes: Attributes, constants: Sequence[Any]) -> Function:
    size, alpha = attributes["size"], attributes.get("alpha", 1e-4)
    beta, bias = attributes.get("beta", 0.75), attributes.get("bias", 1.0)
    return lambda x: F.local_response_norm(x, size, alpha, beta, bias)


def _clip(attributes: Attributes, constants: Sequence[Any]) -> Function:
    bounds = [None if c is None else float(np.ravel(c)[0]) for c in constants[1:]] + [None, None]
    low, high = attributes.get("min", bounds[0]), attributes.get("max", bounds[1])
    return lambda x, *_: torch.clamp(x, low, high)


def _reshape(attributes: Attributes, constants: Sequence[Any]) -> Function:
    if constants[1] is None:
        raise NotImplementedError("Reshape to a shape that isn't constant")
    shape = tuple(int(extent) for extent in constants[1])
    return lambda x, _: x.reshape([e or x.shape[axis] for axis, e in enumerate(shape)])


def _softmax(attributes: Attributes, constants: Sequence[Any]) -> Function:
    if attributes["opset"] >= 13:
        return lambda x: torch.softmax(x, dim=attributes.get("axis", -1))
    axis = attributes.get("axis", 1)  # of old, all axes from here on were one
    return lambda x: torch.softmax(x.flatten(axis), dim=-1).reshape(x.shape)


def _transpose(attributes: Attributes, constants: Sequence[Any]) -> Function:
    axes = attributes.get("perm")
    return lambda x: x.permute(axes or tuple(reversed(range(x.ndim))))


def _unsqueeze(attributes: Attributes, constants: Sequence[Any]) -> Function:
    given = attributes.get("axes", constants[1] if len(constants) > 1 else None)
    axes = sorted(int(axis) for axis in np.ravel(given))
    if axes and axes[0] < 0:
        raise NotImplementedError("Unsqueeze with axes counted from the end")

    def function(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        for axis in axes:
            x = x.unsqueeze(axis)
        return x

    return function


_MAKERS: dict[str, Callable[[Attributes, Sequence[Any]], Function]] = {
    "Add": lambda attributes, constants: torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": _normalization,
    "Clip": _clip,
    "Concat": lambda attributes, constants: lambda *x: torch.cat(x, dim=attributes["axis"]),
    "Conv": _conv,
    "Dropout": lambda attributes, constants: lambda x, *_: x,
    "Flatten": lambda attributes, constants: lambda x: torch.flatten(x, attributes.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda attributes, constants: lambda x: x.mean((2, 3), keepdim=True),
    "LRN": _lrn,
    "MatMul": lambda attributes, constants: torch.matmul,
    "MaxPool": _max_pool,
    "Mul": lambda attributes, constants: torch.mul,
    "Relu": lambda attributes, constants: F.relu,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Sum": lambda attributes, constants: lambda *x: torch.stack(x).sum(0) if len(x) > 2 else x[0] + x[1],
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
