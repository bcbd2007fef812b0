"""Published architectures as ONNX files with seeded weights: from gates to boxes, what build.py's lack.

    python models/published.py yolov3_tiny --output yolov3_tiny.onnx

The graphs are those of the papers, spelled as exporters spell them; each function names its source. As in
build.py the weights are random and scaled so that activations keep their size: answers mean nothing, but show
errors. `image_size` and `width` make small ones for tests. Detectors are in detectors.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from build import CLASSES, Tensor, mobilenet_v2, seeded_weight
from detectors import faster_rcnn, ssd300, yolov3_tiny
from network import Network

Outputs = dict[str, str]  # output's name -> tensor


def logits(x: Tensor) -> Outputs:
    return {"logits": x.name}


def crnn(net: Network) -> Outputs:
    """CRNN (Shi, Bai, Yao 2015), table 1: a strip of text, 32 pixels high, to characters along its width."""
    c = net.channels
    x = net.x
    for i, (K, pooled) in enumerate(((64, "both"), (128, "both"), (256, ""), (256, "height")), 1):
        net.scope = f"conv{i}"
        x = net.conv_relu(x, c(K), 3)
        x = pool_strip(net, x, pooled)
    for i, pooled in enumerate(("", "height"), 5):
        net.scope = f"conv{i}"
        x = pool_strip(net, net.relu(net.conv_bn(x, c(512), 3)), pooled)
    net.scope = "conv7"
    x = net.conv_relu(x, c(512), 2, pad=0)
    net.scope = "map_to_sequence"
    y = net.transpose(net.apply("Squeeze", x.name, net.constant([2])), 2, 0, 1)  # (T, N, C)
    C, hidden = x.C, net.channels(256)
    for i in (1, 2):
        net.scope = f"lstm{i}"
        y = bidirectional_lstm(net, y, C, hidden)
        C = hidden if i == 1 else 37  # 26 letters, 10 digits, blank
        y = net.linear(y, 2 * hidden, C)
    return {"log_probabilities": net.apply("LogSoftmax", y, axis=2)}


def pool_strip(net: Network, x: Tensor, pooled: str) -> Tensor:
    """Halves both extents, or the height alone: the window is then 2 high and 1 wide."""
    if pooled == "both":
        return net.pool(x, 2, 2)
    if not pooled:
        return x
    return net.node("MaxPool", [x.name], x.C, x.H // 2, x.W, kernel_shape=[2, 1], strides=[2, 1])


def bidirectional_lstm(net: Network, x: str, C: int, hidden: int) -> str:
    """(T, N, C) -> (T, N, 2 * hidden), both directions side by side."""
    stem = net.name("LSTM")
    w = net.weight(f"{stem}.w", seeded_weight(net.random, (2, 4 * hidden, C), 4 * hidden))
    r = net.weight(f"{stem}.r", seeded_weight(net.random, (2, 4 * hidden, hidden), 4 * hidden))
    b = net.weight(f"{stem}.b", 0.1 * net.random.standard_normal((2, 8 * hidden)))
    y = net.apply("LSTM", x, w, r, b, hidden_size=hidden, direction="bidirectional")  # (T, 2, N, hidden)
    return net.reshape(net.transpose(y, 0, 2, 1, 3), 0, 0, -1)


def unet(net: Network) -> Outputs:
    """U-Net (Ronneberger, Fischer, Brox 2015), its convolutions padded and normalised as is usual since."""
    def twice(x: Tensor, K: int) -> Tensor:
        return net.relu(net.conv_bn(net.relu(net.conv_bn(x, K, 3)), K, 3))

    widths = [net.channels(64 << level) for level in range(5)]
    skipped = []
    x = net.x
    for level, K in enumerate(widths):
        net.scope = f"down{level}"
        x = twice(x if not level else net.pool(x, 2, 2), K)
        skipped.append(x)
    skipped.pop()
    for level in (3, 2, 1, 0):
        net.scope = f"up{level}"
        x = twice(net.concat(skipped.pop(), transposed_conv(net, x, widths[level])), widths[level])
    net.scope = "head"
    return logits(net.conv(x, 2, 1, gain=1.0))


def transposed_conv(net: Network, x: Tensor, K: int) -> Tensor:
    """ConvTranspose 2x2, stride 2: twice the extents."""
    stem = net.name("ConvTranspose")
    w = net.weight(f"{stem}.weight", math.sqrt(1 / x.C) * net.random.standard_normal((x.C, K, 2, 2)))
    b = net.weight(f"{stem}.bias", 0.1 * net.random.standard_normal(K))
    return net.node("ConvTranspose", [x.name, w, b], K, 2 * x.H, 2 * x.W, kernel_shape=[2, 2], strides=[2, 2])


def deeplab_v3(net: Network) -> Outputs:
    """DeepLabV3 (Chen et al. 2017) on ResNet-50 at output stride 8, as torchvision has it."""
    c = net.channels
    net.scope = "stem"
    x = net.pool(net.relu(net.conv_bn(net.x, c(64), 7, stride=2)), 3, 2, pads=(1, 1, 1, 1))
    for stage, (depth, first_stride, dilation) in enumerate(((3, 1, 1), (4, 2, 1), (6, 1, 2), (3, 1, 4))):
        middle = c(64 << stage)
        for i in range(depth):
            net.scope = f"layer{stage + 1}.{i}"
            stride = 1 if i else first_stride
            y = net.relu(net.conv_bn(x, middle, 1))
            own = dilation if i else max(dilation // 2, 1)  # the first block keeps the stage's before
            y = net.relu(net.conv_bn(y, middle, 3, stride=stride, dilation=own))
            y = net.conv_bn(y, 4 * middle, 1, scale=0.5)
            fits = (x.C, stride) == (4 * middle, 1)
            x = net.relu(net.add(y, x if fits else net.conv_bn(x, 4 * middle, 1, stride=stride, gain=1.0)))
    net.scope = "aspp"
    K = c(256)
    parts = [net.relu(net.conv_bn(x, K, 1))]
    parts += [net.relu(net.conv_bn(x, K, 3, dilation=rate)) for rate in (12, 24, 36)]
    parts.append(net.resize_to(net.relu(net.conv_bn(net.mean(x), K, 1)), x))
    y = net.relu(net.conv_bn(net.concat(*parts), K, 1))
    net.scope = "head"
    y = net.conv(net.relu(net.conv_bn(y, K, 3)), 21, 1, gain=1.0)
    return logits(net.resize_to(y, net.x))


def shufflenet_v2(net: Network) -> Outputs:
    """ShuffleNetV2 1.0x (Ma et al. 2018): half of the channels pass by, then both halves are interleaved."""
    c = net.channels
    net.scope = "stem"
    x = net.pool(net.relu(net.conv_bn(net.x, c(24), 3, stride=2)), 3, 2, pads=(1, 1, 1, 1))
    for stage, (width, depth) in enumerate(((116, 4), (232, 8), (464, 4)), 2):
        half = c(width) // 2
        for i in range(depth):
            net.scope = f"stage{stage}.{i}"
            if i:
                names = net.apply_many("Split", x.name, net.constant([half, half]), outputs=2, axis=1)
                passing, y = (Tensor(name, half, x.H, x.W) for name in names)
            else:
                passing = net.conv_bn(x, x.C, 3, stride=2, group=x.C, gain=1.0)
                passing, y = net.relu(net.conv_bn(passing, half, 1)), x
            y = net.relu(net.conv_bn(y, half, 1))
            y = net.conv_bn(y, half, 3, stride=1 if i else 2, group=half, gain=1.0)
            x = shuffled(net, net.concat(passing, net.relu(net.conv_bn(y, half, 1))))
    net.scope = "head"
    x = net.mean(net.relu(net.conv_bn(x, c(1024), 1)))
    return logits(net.gemm(net.flatten(x), CLASSES, gain=1.0))


def shuffled(net: Network, x: Tensor) -> Tensor:
    """The two halves of the channels interleaved."""
    y = net.reshape(x.name, net.batch, 2, x.C // 2, x.H, x.W)
    return net.like(x, net.reshape(net.transpose(y, 0, 2, 1, 3, 4), net.batch, x.C, x.H, x.W))


def efficientnet_b0(net: Network) -> Outputs:
    """EfficientNet-B0 (Tan, Le 2019): inverted residuals with squeeze-and-excitation, swish."""
    net.scope = "stem"
    x = net.swish(net.conv_bn(net.x, net.channels(32), 3, stride=2))
    blocks = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
              (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # expansion, channels, repeats, stride, kernel
    for stage, (expansion, K, repeats, first_stride, kernel) in enumerate(blocks, 1):
        K = net.channels(K)
        for i in range(repeats):
            net.scope = f"block{stage}.{i}"
            stride = 1 if i else first_stride
            y = x if expansion == 1 else net.swish(net.conv_bn(x, x.C * expansion, 1))
            y = net.swish(net.conv_bn(y, y.C, kernel, stride=stride, group=y.C))
            squeezed = net.swish(net.conv(net.mean(y), max(x.C // 4, 1), 1))
            y = net.multiply(y, net.sigmoid(net.conv(squeezed, y.C, 1)))
            y = net.conv_bn(y, K, 1, gain=8.0, scale=0.5)  # the gate has halved it
            x = net.add(x, y) if (stride, x.C) == (1, K) else y
    net.scope = "head"
    x = net.mean(net.swish(net.conv_bn(x, net.channels(1280), 1)))
    return logits(net.gemm(net.flatten(x), CLASSES, gain=1.0))


def convnext_tiny(net: Network) -> Outputs:
    """ConvNeXt-T (Liu et al. 2022): 7x7 depthwise, LayerNormalization over channels, two linear maps."""
    x = net.x
    for stage, (depth, K) in enumerate(((3, 96), (3, 192), (9, 384), (3, 768))):
        K = net.channels(K)
        net.scope = f"downsample{stage}"
        if stage:
            x = net.conv(channels_normed(net, x), K, 2, stride=2, pad=0, gain=1.0)
        else:
            x = channels_normed(net, net.conv(x, K, 4, stride=4, pad=0, gain=1.0))
        for i in range(depth):
            net.scope = f"stage{stage}.{i}"
            y = net.transpose(net.conv(x, K, 7, group=K, gain=1.0).name, 0, 2, 3, 1)  # (N, H, W, C)
            y = gelu(net, net.linear(net.layer_norm(y, K), K, 4 * K))
            y = net.scaled(net.linear(y, 4 * K, K, gain=2.0), net.random.uniform(0.2, 0.4, K))
            x = net.add(x, net.like(x, net.transpose(y, 0, 3, 1, 2)))
    net.scope = "head"
    y = net.layer_norm(net.reshape(net.mean(x).name, net.batch, x.C), x.C)
    return logits(net.gemm(Tensor(y, x.C, 1, 1), CLASSES, gain=1.0))


def channels_normed(net: Network, x: Tensor) -> Tensor:
    """LayerNormalization over the channels of each pixel, there and back by Transpose."""
    y = net.layer_norm(net.transpose(x.name, 0, 2, 3, 1), x.C)
    return net.like(x, net.transpose(y, 0, 3, 1, 2))


def gelu(net: Network, x: str) -> str:
    """x * (1 + erf(x / sqrt 2)) / 2, in the nodes that exporters write before opset 20."""
    erf = net.apply("Erf", net.apply("Div", x, net.constant(math.sqrt(2), np.float32)))
    y = net.apply("Mul", x, net.apply("Add", erf, net.constant(1.0, np.float32)))
    return net.apply("Mul", y, net.constant(0.5, np.float32))


class Quantised(Network):
    """Writes QuantizeLinear and DequantizeLinear around activations (8 bits, unsigned) and weights (8 bits).

    Scales stand for what calibration would have found: 0 to 6 behind a ReLU6, else -6 to 6. Batch
    normalisation is folded beforehand, as quantisers do: convolutions come with a bias of 32 bits.
    """

    def quantised(self, x: Tensor) -> tuple[Tensor, float]:
        """x to 8 bits and back, once for all its readers; and the scale."""
        name = f"{x.name}:dequantised"
        is_positive = any(node.op_type == "Clip" and node.output[0] == x.name for node in self.nodes)
        scale = (6 if is_positive else 12) / 255
        if not any(node.output[0] == name for node in self.nodes):
            self.quantise(x.name, name, self.constant(scale, np.float32),
                          self.constant(0 if is_positive else 128, np.uint8))
        return self.like(x, name), scale

    def quantise(self, x: str, name: str, scale: str, zero: str) -> None:
        y = self.apply("QuantizeLinear", x, scale, zero)
        self.dequantise(y, name, scale, zero)

    def dequantise(self, x: str, name: str, scale: str, zero: str, **attributes: int) -> str:
        self.apply("DequantizeLinear", x, scale, zero, **attributes)
        self.nodes[-1].output[0] = name
        return name

    def packed_weights(self, stem: str, w: np.ndarray, x_scale: float) -> list[str]:
        """Weights with a scale for each output channel, and a bias."""
        K = len(w)
        scale = np.abs(w.reshape(K, -1)).max(axis=1) / 127
        stored = np.round(w / scale.reshape(-1, *[1] * (w.ndim - 1)))
        bias = np.round(0.1 * self.random.standard_normal(K) / (scale * x_scale))
        return [self.packed(f"{stem}.weight", stored, scale, np.int8),
                self.packed(f"{stem}.bias", bias, scale * x_scale, np.int32)]

    def packed(self, name: str, values: np.ndarray, scale: np.ndarray, dtype: type) -> str:
        """A constant in integers, made real again by a scale for each entry of its first axis."""
        zero = self.constant(np.zeros(len(values)), dtype)
        packed = self.constant(values, dtype)
        return self.dequantise(packed, name, self.constant(scale, np.float32), zero, axis=0)

    def conv_bn(self, x: Tensor, K: int, kernel: int, *, stride: int = 1, group: int = 1, dilation: int = 1,
                same: bool = False, gain: float = 2.0, scale: float = 1.0) -> Tensor:
        x, x_scale = self.quantised(x)
        stem, pad = self.name("Conv"), kernel // 2
        w = scale * seeded_weight(self.random, (K, x.C // group, kernel, kernel), gain)
        P, Q = ((extent + 2 * pad - kernel) // stride + 1 for extent in (x.H, x.W))
        return self.node("Conv", [x.name, *self.packed_weights(stem, w, x_scale)], K, P, Q,
                         kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4, group=group)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return super().add(self.quantised(a)[0], self.quantised(b)[0])

    def mean(self, x: Tensor) -> Tensor:
        return super().mean(self.quantised(x)[0])

    def dropout(self, x: Tensor) -> Tensor:
        return x  # quantisers drop it

    def gemm(self, x: Tensor, K: int, *, gain: float = 2.0) -> Tensor:
        x, x_scale = self.quantised(x)
        w, b = self.packed_weights(self.name("Gemm"), seeded_weight(self.random, (K, x.C), gain), x_scale)
        return self.node("Gemm", [x.name, w, b], K, 1, 1, transB=1)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A network: its builder, the picture's side where none is asked for, what its tensors are made with."""

    builder: Callable[[Network], Outputs]
    image_size: int
    network: type[Network] = Network
    strip_height: int = 0  # of a strip of grey text; 0: a square in colours


NETWORKS = {
    "convnext_tiny": Published(builder=convnext_tiny, image_size=224),
    "crnn": Published(builder=crnn, image_size=100, strip_height=32),
    "deeplab_v3": Published(builder=deeplab_v3, image_size=513),
    "efficientnet_b0": Published(builder=efficientnet_b0, image_size=224),
    "faster_rcnn": Published(builder=faster_rcnn, image_size=512),
    "mobilenet_v2_qdq": Published(
        builder=lambda net: logits(mobilenet_v2(net)), image_size=224, network=Quantised
    ),
    "shufflenet_v2": Published(builder=shufflenet_v2, image_size=224),
    "ssd300": Published(builder=ssd300, image_size=300),
    "unet": Published(builder=unet, image_size=256),
    "yolov3_tiny": Published(builder=yolov3_tiny, image_size=416),
}
OPSET = 17  # LayerNormalization's first


def build(name: str, seed: int = 0, batch: int = 1, *, image_size: int | None = None,
          width: float = 1.0) -> onnx.ModelProto:
    """One of NETWORKS as an ONNX model with seeded weights; the same arguments give the same bytes.

    Shapes   x (batch, 3, image_size, image_size), crnn (batch, 1, 32, image_size) -> as each says
    Raises   ValueError for an unknown name or an image too small for the network's strides
    """
    if name not in NETWORKS:
        raise ValueError(f"no network called {name!r}; there are {', '.join(NETWORKS)}")
    known = NETWORKS[name]
    side = image_size or known.image_size
    net = known.network(seed=seed, batch=batch, image_size=side, width=width)
    if known.strip_height:
        net.x = Tensor("x", 1, known.strip_height, side)
    return net.finished(name, known.builder(net), opset=OPSET)


def main(arguments: list[str] | None = None) -> int:
    """The command line: build one network, write it."""
    parser = argparse.ArgumentParser(description="Write a published network with seeded random weights.")
    parser.add_argument("name", choices=NETWORKS, metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--output", type=Path, help="the file to write; NAME.onnx here unless told")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--image-size", type=int, help="pixels a side; the paper's unless told")
    parser.add_argument("--width", type=float, default=1.0, help="scales channels")
    args = parser.parse_args(arguments)
    output = args.output or Path(f"{args.name}.onnx")
    try:
        model = build(args.name, args.seed, args.batch, image_size=args.image_size, width=args.width)
        onnx.save(model, output)
    except (ValueError, OSError) as error:
        print(f"published.py: {error}", file=sys.stderr)
        return 2
    print(f"{output}: {args.name}, {len(model.graph.node)} nodes, {output.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
