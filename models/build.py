"""Classic networks as ONNX files with seeded random weights, for tests and measurements.

    python models/build.py resnet50 --output resnet50.onnx
    python models/build.py light:resnet50       (the onnx package's graph, refilled)

The graphs are those of the papers as the ONNX model zoo or torchvision spell them; each function names
its source. The weights are random (so the answers mean nothing) but scaled so that activations keep
their size through the network: a kernel's error shows in the output instead of drowning in infinities or
in a constant. Outputs are logits.

Not here   trained weights: those are the .onnx files beside this one (README.md)
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 13
CLASSES = 1000


class Tensor(NamedTuple):
    """A tensor of the graph under construction: its name and its extents past N."""

    name: str
    C: int
    H: int
    W: int


class Net:
    """Collects nodes and seeded weights; each method appends an operator or two and returns the output."""

    def __init__(self, *, seed: int, batch: int, image_size: int, width: float):
        self.random = np.random.default_rng(seed)
        self.batch, self.width = batch, width
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.scope = ""
        self.x = Tensor("x", 3, image_size, image_size)

    def channels(self, count: int) -> int:
        """`count` scaled by the width, a multiple of 8 so that groups still divide it."""
        return count if self.width == 1 else max(8, 8 * round(count * self.width / 8))

    def name(self, operator: str) -> str:
        """What the next node is called: unique, since the number counts all nodes."""
        return f"{self.scope}/{operator.lower()}_{len(self.nodes)}"

    def weight(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values, dtype=np.float32), name))
        return name

    def node(self, operator: str, inputs: list[str], C: int, H: int, W: int, **attributes: Any) -> Tensor:
        if min(H, W) < 1:
            raise ValueError(f"{operator} in {self.scope}: the image is too small for this network")
        name = self.name(operator)
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return Tensor(name, C, H, W)

    def conv(self, x: Tensor, K: int, kernel: int, *, stride: int = 1, pad: int | None = None, group: int = 1,
             dilation: int = 1, same: bool = False, bias: bool = True, gain: float = 2.0) -> Tensor:
        """Conv. `pad` is on all sides, half the window unless told; `same` pads TensorFlow's way, uneven."""
        span = dilation * (kernel - 1) + 1
        pads = [span // 2 if pad is None else pad] * 4
        if same:
            total = [max((-(-extent // stride) - 1) * stride + span - extent, 0) for extent in (x.H, x.W)]
            pads = [t // 2 for t in total] + [t - t // 2 for t in total]
        stem = self.name("Conv")
        w = seeded_weight(self.random, (K, x.C // group, kernel, kernel), gain)
        inputs = [x.name, self.weight(f"{stem}.weight", w)]
        if bias:
            inputs.append(self.weight(f"{stem}.bias", 0.1 * self.random.standard_normal(K)))
        P = (x.H + pads[0] + pads[2] - span) // stride + 1
        Q = (x.W + pads[1] + pads[3] - span) // stride + 1
        dilated = {} if dilation == 1 else {"dilations": [dilation, dilation]}
        return self.node("Conv", inputs, K, P, Q, kernel_shape=[kernel, kernel], strides=[stride, stride],
                         pads=pads, group=group, **dilated)

    def batch_norm(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        """BatchNormalization with no trivial statistic; `scale` shrinks the end of a residual branch."""
        stem = self.name("BatchNormalization")
        values = seeded_batch_norm(self.random, x.C, scale)
        inputs = [self.weight(f"{stem}.{part}", values[part]) for part in ("scale", "bias", "mean", "var")]
        return self.node("BatchNormalization", [x.name, *inputs], *x[1:], epsilon=1e-5)

    def relu(self, x: Tensor) -> Tensor:
        return self.node("Relu", [x.name], *x[1:])

    def relu6(self, x: Tensor) -> Tensor:
        """Clip to 0..6, the bounds as inputs (opset 11 and later)."""
        if not any(w.name == "zero" for w in self.weights):
            self.weight("zero", np.array(0.0))
            self.weight("six", np.array(6.0))
        return self.node("Clip", [x.name, "zero", "six"], *x[1:])

    def pool(self, x: Tensor, kernel: int, stride: int, *, pads: tuple[int, int, int, int] = (0, 0, 0, 0),
             operator: str = "MaxPool") -> Tensor:
        P = (x.H + pads[0] + pads[2] - kernel) // stride + 1
        Q = (x.W + pads[1] + pads[3] - kernel) // stride + 1
        return self.node(operator, [x.name], x.C, P, Q, kernel_shape=[kernel, kernel],
                         strides=[stride, stride], pads=list(pads))

    def lrn(self, x: Tensor) -> Tensor:
        return self.node("LRN", [x.name], *x[1:], size=5, alpha=1e-4, beta=0.75, bias=1.0)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return self.node("Add", [a.name, b.name], *a[1:])

    def concat(self, *parts: Tensor) -> Tensor:
        return self.node("Concat", [p.name for p in parts], sum(p.C for p in parts), *parts[0][2:], axis=1)

    def dropout(self, x: Tensor) -> Tensor:
        """Dropout as exporters leave it in: at inference it passes its input on."""
        return self.node("Dropout", [x.name], *x[1:])

    def mean(self, x: Tensor) -> Tensor:
        return self.node("GlobalAveragePool", [x.name], x.C, 1, 1)

    def flatten(self, x: Tensor) -> Tensor:
        return self.node("Flatten", [x.name], x.C * x.H * x.W, 1, 1, axis=1)

    def gemm(self, x: Tensor, K: int, *, gain: float = 2.0) -> Tensor:
        stem = self.name("Gemm")
        w = self.weight(f"{stem}.weight", seeded_weight(self.random, (K, x.C), gain))
        b = self.weight(f"{stem}.bias", 0.1 * self.random.standard_normal(K))
        return self.node("Gemm", [x.name, w, b], K, 1, 1, transB=1)

    def conv_relu(self, x: Tensor, K: int, kernel: int, *, stride: int = 1, pad: int | None = None,
                  group: int = 1) -> Tensor:
        return self.relu(self.conv(x, K, kernel, stride=stride, pad=pad, group=group))

    def conv_bn(self, x: Tensor, K: int, kernel: int, *, stride: int = 1, group: int = 1, dilation: int = 1,
                same: bool = False, gain: float = 2.0, scale: float = 1.0) -> Tensor:
        x = self.conv(x, K, kernel, stride=stride, group=group, dilation=dilation, same=same, bias=False,
                      gain=gain)
        return self.batch_norm(x, scale=scale)

    def model(self, name: str, logits: Tensor) -> onnx.ModelProto:
        """The finished file: input x (N, 3, H, W), output logits (N, 1000)."""
        self.nodes[-1].output[0] = "logits"
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.batch, *self.x[1:]])
        y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [self.batch, logits.C])
        graph = helper.make_graph(self.nodes, name, [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=7,
                                 producer_name="minicnn models/build.py")


def seeded_weight(random: np.random.Generator, shape: tuple[int, ...], gain: float = 2.0) -> np.ndarray:
    """He-normal: variance gain / fan-in; gain 2 makes up for a ReLU, which halves the second moment."""
    w = random.standard_normal(shape, dtype=np.float32)
    w *= np.float32(math.sqrt(gain / math.prod(shape[1:])))
    return w


def seeded_batch_norm(random: np.random.Generator, C: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Near the statistics of a unit-variance input, but none equal to 0 or 1: a kernel could forget those."""
    values = {"scale": scale * random.uniform(0.7, 1.3, C), "bias": 0.1 * random.standard_normal(C),
              "mean": 0.1 * random.standard_normal(C), "var": random.uniform(0.6, 1.4, C)}
    return {part: value.astype(np.float32) for part, value in values.items()}


def classifier(net: Net, x: Tensor, hidden: int) -> Tensor:
    """Flatten, two hidden layers with Dropout, 1000 logits: the end of AlexNet and VGG."""
    x = net.flatten(x)
    for stage in ("fc6", "fc7"):
        net.scope = stage
        x = net.dropout(net.relu(net.gemm(x, hidden)))
    net.scope = "fc8"
    return net.gemm(x, CLASSES, gain=1.0)


def alexnet(net: Net) -> Tensor:
    """Caffe's AlexNet (bvlc_alexnet), grouped, with LRN; 224 pixels and floor pooling as in the ONNX zoo."""
    c = net.channels
    net.scope = "conv1"
    x = net.pool(net.lrn(net.conv_relu(net.x, c(96), 11, stride=4, pad=0)), 3, 2)
    net.scope = "conv2"
    x = net.pool(net.lrn(net.conv_relu(x, c(256), 5, group=2)), 3, 2)
    net.scope = "conv3"
    x = net.conv_relu(x, c(384), 3)
    net.scope = "conv4"
    x = net.conv_relu(x, c(384), 3, group=2)
    net.scope = "conv5"
    x = net.pool(net.conv_relu(x, c(256), 3, group=2), 3, 2, pads=(0, 0, 1, 1))
    return classifier(net, x, c(4096))


def vgg(net: Net, depths: tuple[int, ...]) -> Tensor:
    """VGG (Simonyan and Zisserman 2014), configuration D or E: 3x3 convolutions only."""
    x = net.x
    for stage, (depth, K) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True), 1):
        for i in range(depth):
            net.scope = f"conv{stage}_{i + 1}"
            x = net.conv_relu(x, net.channels(K), 3)
        x = net.pool(x, 2, 2)
    return classifier(net, x, net.channels(4096))


INCEPTION = {  # 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, pool's projection (Szegedy et al. 2014, table 1)
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(net: Net) -> Tensor:
    """Caffe's GoogLeNet (bvlc_googlenet), no training heads; pooling rounds down as in the ONNX zoo."""
    c = net.channels
    net.scope = "conv1"
    x = net.lrn(net.pool(net.conv_relu(net.x, c(64), 7, stride=2), 3, 2))
    net.scope = "conv2"
    x = net.lrn(net.conv_relu(net.conv_relu(x, c(64), 1), c(192), 3))
    x = net.pool(x, 3, 2)
    for block, widths in INCEPTION.items():
        net.scope = f"inception_{block}"
        one, three_reduced, three, five_reduced, five, projection = map(c, widths)
        x = net.concat(net.conv_relu(x, one, 1),
                       net.conv_relu(net.conv_relu(x, three_reduced, 1), three, 3),
                       net.conv_relu(net.conv_relu(x, five_reduced, 1), five, 5),
                       net.conv_relu(net.pool(x, 3, 1, pads=(1, 1, 1, 1)), projection, 1))
        if block in ("3b", "4e"):
            x = net.pool(x, 3, 2)
    net.scope = "head"
    x = net.pool(x, x.H + 1, 1, pads=(0, 0, 1, 1), operator="AveragePool")  # 7x7 over 6x6 at 224 pixels
    return net.gemm(net.flatten(net.dropout(x)), CLASSES, gain=1.0)


def resnet(net: Net, depths: tuple[int, ...], *, bottleneck: bool) -> Tensor:
    """ResNet (He et al. 2015) as torchvision has it: a bottleneck strides in its 3x3 convolution (v1.5)."""
    net.scope = "stem"
    x = net.pool(net.relu(net.conv_bn(net.x, net.channels(64), 7, stride=2)), 3, 2, pads=(1, 1, 1, 1))
    for stage, depth in enumerate(depths):
        middle = net.channels(64 << stage)
        K = middle * 4 if bottleneck else middle
        for i in range(depth):
            net.scope = f"layer{stage + 1}.{i}"
            stride = 2 if stage and not i else 1
            if bottleneck:
                y = net.relu(net.conv_bn(x, middle, 1))
                y = net.conv_bn(net.relu(net.conv_bn(y, middle, 3, stride=stride)), K, 1, scale=0.5)
            else:
                y = net.conv_bn(net.relu(net.conv_bn(x, middle, 3, stride=stride)), K, 3, scale=0.5)
            shortcut = x if (x.C, stride) == (K, 1) else net.conv_bn(x, K, 1, stride=stride, gain=1.0)
            x = net.relu(net.add(y, shortcut))
    net.scope = "head"
    return net.gemm(net.flatten(net.mean(x)), CLASSES, gain=1.0)


def squeezenet(net: Net) -> Tensor:
    """SqueezeNet 1.1 (Iandola et al. 2016, the later release): fire modules, a convolution as classifier."""
    c = net.channels
    net.scope = "conv1"
    x = net.pool(net.conv_relu(net.x, c(64), 3, stride=2, pad=0), 3, 2)
    for i, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        net.scope = f"fire{i}"
        s = net.conv_relu(x, c(squeeze), 1)
        x = net.concat(net.conv_relu(s, c(4 * squeeze), 1), net.conv_relu(s, c(4 * squeeze), 3))
        if i in (3, 5):
            x = net.pool(x, 3, 2)
    net.scope = "conv10"
    return net.flatten(net.mean(net.conv_relu(net.dropout(x), CLASSES, 1)))


def inverted_residuals(net: Net, x: Tensor, blocks: tuple[tuple[int, ...], ...], *, same: bool) -> Tensor:
    """Blocks of (expansion, channels, repeats, stride, kernel): 1x1 up, depthwise, 1x1 down, added."""
    for stage, (expansion, K, repeats, first_stride, kernel) in enumerate(blocks, 1):
        K = net.channels(K)
        for i in range(repeats):
            net.scope = f"block{stage}.{i}"
            stride = 1 if i else first_stride
            y = x if expansion == 1 else net.relu6(net.conv_bn(x, x.C * expansion, 1))
            y = net.relu6(net.conv_bn(y, y.C, kernel, stride=stride, group=y.C, same=same))
            is_residual = stride == 1 and x.C == K
            y = net.conv_bn(y, K, 1, scale=0.5 if is_residual else 1.0)
            x = net.add(x, y) if is_residual else y
    return x


def mobilenet_v2(net: Net) -> Tensor:
    """MobileNetV2 1.0 (Sandler et al. 2018): inverted residuals, ReLU6."""
    net.scope = "stem"
    x = net.relu6(net.conv_bn(net.x, net.channels(32), 3, stride=2))
    x = inverted_residuals(net, x, ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3),
                                    (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)), same=False)
    net.scope = "head"
    x = net.mean(net.relu6(net.conv_bn(x, net.channels(1280), 1, gain=1.0)))
    return net.gemm(net.dropout(net.flatten(x)), CLASSES, gain=1.0)


def efficientnet_lite0(net: Net) -> Tensor:
    """EfficientNet-Lite0 (Google 2020): no squeeze-excite, ReLU6, TensorFlow's uneven SAME padding."""
    net.scope = "stem"
    x = net.relu6(net.conv_bn(net.x, net.channels(32), 3, stride=2, same=True))
    x = inverted_residuals(net, x, ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                                    (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)), same=True)
    net.scope = "head"
    x = net.mean(net.relu6(net.conv_bn(x, net.channels(1280), 1, gain=1.0)))
    return net.gemm(net.dropout(net.flatten(x)), CLASSES, gain=1.0)


def densenet121(net: Net) -> Tensor:
    """DenseNet-121 (Huang et al. 2016): normalisation before convolution, a block's outputs concatenated."""
    growth = net.channels(32)
    net.scope = "stem"
    x = net.pool(net.relu(net.conv_bn(net.x, net.channels(64), 7, stride=2)), 3, 2, pads=(1, 1, 1, 1))
    for stage, depth in enumerate((6, 12, 24, 16), 1):
        for i in range(depth):
            net.scope = f"dense{stage}.{i}"
            y = net.conv(net.relu(net.batch_norm(x)), 4 * growth, 1, bias=False)
            y = net.conv(net.relu(net.batch_norm(y)), growth, 3, bias=False)
            x = net.concat(x, y)
        net.scope = f"transition{stage}"
        x = net.relu(net.batch_norm(x))
        if stage < 4:
            x = net.pool(net.conv(x, x.C // 2, 1, bias=False), 2, 2, operator="AveragePool")
    net.scope = "head"
    return net.gemm(net.flatten(net.mean(x)), CLASSES, gain=1.0)


BUILDERS: dict[str, Callable[[Net], Tensor]] = {
    "alexnet": alexnet,
    "vgg16": lambda net: vgg(net, (2, 2, 3, 3, 3)),
    "vgg19": lambda net: vgg(net, (2, 2, 4, 4, 4)),
    "googlenet": googlenet,
    "resnet18": lambda net: resnet(net, (2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda net: resnet(net, (3, 4, 6, 3), bottleneck=True),
    "squeezenet": squeezenet,
    "mobilenet_v2": mobilenet_v2,
    "densenet121": densenet121,
    "efficientnet_lite0": efficientnet_lite0,
}


def build(name: str, seed: int = 0, batch: int = 1, *, image_size: int = 224,
          width: float = 1.0) -> onnx.ModelProto:
    """One of BUILDERS as an ONNX model with seeded weights; the same arguments give the same bytes.

    Shapes   x (batch, 3, image_size, image_size) -> logits (batch, 1000); `width` scales the channels between
    Raises   ValueError for an unknown name or an image too small for the network's strides
    """
    if name not in BUILDERS:
        raise ValueError(f"no builder called {name!r}; there are {', '.join(BUILDERS)}")
    net = Net(seed=seed, batch=batch, image_size=image_size, width=width)
    return net.model(name, BUILDERS[name](net))


def light_models() -> dict[str, Path]:
    """The nine whole architectures inside the onnx package, by short name; their weights: see `refill`."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {p.stem.removeprefix("light_"): p for p in sorted(folder.glob("light_*.onnx"))}


def refill(model: onnx.ModelProto, seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """A copy of a `light` model with seeded random weights: initializers, also listed among the inputs.

    The files make weights by ConstantOfShape (all 0.02), so a wrong kernel can still give the recorded
    output. The argument is left as it is.

    Shapes   `batch` replaces the leading 1 of inputs, outputs and the activations' Reshape targets
    """
    old = model.graph
    constants = {i.name: numpy_helper.to_array(i) for i in old.initializer}
    weights = seeded_weights(old, constants, seed)
    kept = [n for n in old.node if n.op_type != "ConstantOfShape"]
    for node in kept:
        if node.op_type == "Reshape" and node.input[0] not in weights:
            target = constants[node.input[1]]
            weights[node.input[1]] = np.array([batch, *target[1:]], dtype=np.int64)
        elif node.op_type == "Reshape":
            weights[node.input[1]] = constants[node.input[1]]
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    graph.Clear()
    graph.name = old.name
    graph.node.extend(kept)
    graph.input.extend(i for i in old.input if i.name not in constants)
    graph.output.extend(old.output)
    for value in [*graph.input, *graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    for name, array in weights.items():
        graph.initializer.append(numpy_helper.from_array(array, name))
        data_type = graph.initializer[-1].data_type
        graph.input.append(helper.make_tensor_value_info(name, data_type, array.shape))
    return copy


def seeded_weights(graph: onnx.GraphProto, constants: dict[str, np.ndarray],
                   seed: int) -> dict[str, np.ndarray]:
    """New values for all that a `light` graph makes by ConstantOfShape or carries as float initializers.

    How a weight is drawn depends on the node that takes it (through Reshape and Unsqueeze). Scales are such
    that a convolution doubles the second moment only behind a Relu, which halved it, and that a normalisation
    which ends a residual branch is halved: sixteen of them add up.
    """
    random = np.random.default_rng(seed)
    shapes = {n.output[0]: tuple(int(d) for d in constants[n.input[0]])
              for n in graph.node if n.op_type == "ConstantOfShape"}
    shapes |= {name: a.shape for name, a in constants.items() if a.dtype == np.float32}
    views = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Reshape", "Unsqueeze")}
    summed = {name for n in graph.node if n.op_type == "Sum" for name in n.input}
    normalised = {n.output[0] for n in graph.node if n.op_type == "BatchNormalization"}
    weights: dict[str, np.ndarray] = {}
    for node in graph.node:
        scale = 0.5 if node.output[0] in summed or node.input[0] in normalised else 1.0
        for position, name in enumerate(node.input):
            while name in views:
                name = views[name]
            if name in shapes and name not in weights and node.op_type in ROLES:
                weights[name] = seeded_for(random, node.op_type, position, shapes[name], scale)
    return weights


ROLES = {"Conv", "Gemm", "BatchNormalization", "Mul", "Add"}


def seeded_for(random: np.random.Generator, operator: str, position: int, shape: tuple[int, ...],
               scale: float) -> np.ndarray:
    """What input number `position` of this operator is, drawn so that activations keep their size."""
    if operator in ("Conv", "Gemm") and position == 1:
        K = shape[-2] if operator == "Gemm" else shape[0]  # Inception v1 stores Gemm's as (1, 1, K, C)
        return seeded_weight(random, (K, math.prod(shape) // K), 2.0 * scale).reshape(shape)
    if operator == "BatchNormalization":
        return seeded_batch_norm(random, shape[0], scale)[("x", "scale", "bias", "mean", "var")[position]]
    if operator == "Mul":
        return random.uniform(0.8, 1.2, shape).astype(np.float32)
    return (0.1 * random.standard_normal(shape)).astype(np.float32)  # a bias, or the shift behind a Mul


def logits_only(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the final Softmax, so that outputs are compared before it squashes their differences."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    last = graph.node[-1]
    if last.op_type == "Softmax" and last.output[0] == graph.output[0].name:
        graph.output[0].name = last.input[0]
        del graph.node[-1]
    return copy


def main(arguments: list[str] | None = None) -> int:
    """The command line: build one network, check it, write it."""
    light = [f"light:{name}" for name in light_models()]
    names = [*BUILDERS, *light]
    parser = argparse.ArgumentParser(description="Write a classic network with seeded random weights.")
    parser.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", type=Path, help="the file to write; NAME.onnx here unless told")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=224, help="pixels a side; light: are fixed")
    parser.add_argument("--width", type=float, default=1.0, help="scales channels; light: are fixed")
    args = parser.parse_args(arguments)
    prefix, _, short = args.name.rpartition(":")
    output = args.output or Path(f"{args.name.replace(':', '_')}.onnx")
    try:
        if prefix:
            model = refill(onnx.load(light_models()[short]), args.seed, args.batch)
        else:
            model = build(args.name, args.seed, args.batch, image_size=args.image_size, width=args.width)
        onnx.save(model, output)
    except (ValueError, OSError) as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 2
    size = output.stat().st_size / 1e6
    print(f"{output}: {args.name}, {len(model.graph.node)} nodes, {size:.1f} MB, seed {args.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
