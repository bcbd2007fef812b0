"""Detectors with their tails: boxes decoded, sorted and thinned out within the graph. For published.py."""

from __future__ import annotations

import math

import numpy as np

from build import Tensor
from network import Network

Outputs = dict[str, str]  # output's name -> tensor


def grid_of(H: int, W: int) -> np.ndarray:
    """(H * W, 2): column and row of every cell."""
    rows, columns = np.mgrid[:H, :W]
    return np.stack([columns, rows], axis=-1).reshape(-1, 2)


# YOLO


def yolov3_tiny(net: Network) -> Outputs:
    """YOLOv3-tiny (Redmon, Farhadi 2018; darknet's yolov3-tiny.cfg): two scales, 80 classes, NMS by class.

    Shapes    boxes (N, B, 4) as centre x, centre y, width, height; scores (N, 80, B); selected_indices (D, 3)
              and selected_boxes (D, 4), D known only at run time
    """
    c = net.channels

    def block(x: Tensor, K: int, kernel: int) -> Tensor:
        return net.leaky_relu(net.conv_bn(x, c(K), kernel))

    net.scope = "backbone"
    x = block(net.x, 16, 3)
    for K in (32, 64, 128, 256):
        x = block(net.pool(x, 2, 2), K, 3)
    early = x
    x = block(net.pool(x, 2, 2), 512, 3)
    x = block(net.pool(x, 2, 1, pads=(0, 0, 1, 1)), 1024, 3)
    middle = block(x, 256, 1)
    net.scope = "coarse"
    coarse = net.conv(block(middle, 512, 3), 255, 1, gain=0.5)
    coarse_boxes = yolo_boxes(net, coarse, ((81, 82), (135, 169), (344, 319)))
    net.scope = "fine"
    joined = net.concat(net.upsample(block(middle, 128, 1), 2), early)
    fine = net.conv(block(joined, 256, 3), 255, 1, gain=0.5)
    fine_boxes = yolo_boxes(net, fine, ((10, 14), (23, 27), (37, 58)))
    net.scope = "tail"
    boxes, scores = (net.join(*parts, axis=1) for parts in zip(coarse_boxes, fine_boxes, strict=True))
    scores = net.transpose(scores, 0, 2, 1)
    limits = [net.constant(5), *(net.constant(value, np.float32) for value in (0.45, 0.3))]
    selected = net.apply("NonMaxSuppression", boxes, scores, *limits, center_point_box=1)
    picked = net.apply("Gather", selected, net.constant([0, 2]), axis=1)  # picture and box
    return {
        "boxes": boxes,
        "scores": scores,
        "selected_indices": selected,
        "selected_boxes": net.apply("GatherND", boxes, picked),
    }


def yolo_boxes(net: Network, x: Tensor, anchors: tuple[tuple[int, int], ...]) -> tuple[str, str]:
    """Boxes (N, H * W * 3, 4) in pixels and scores (N, H * W * 3, 80) of one scale."""
    cells, count = x.H * x.W, x.H * x.W * len(anchors)
    y = net.transpose(net.reshape(x.name, net.batch, len(anchors), 85, cells), 0, 3, 1, 2)
    y = net.reshape(y, net.batch, count, 85)
    stride = net.x.W // x.W
    corner = stride * np.repeat(grid_of(x.H, x.W), len(anchors), axis=0)[None]
    centre = net.scaled(net.apply("Sigmoid", net.part(y, 2, 0, 2)), stride, corner)
    extent = net.scaled(net.apply("Exp", net.part(y, 2, 2, 4)), np.tile(anchors, (cells, 1))[None])
    sure = net.apply("Sigmoid", net.part(y, 2, 4, 85))
    scores = net.apply("Mul", net.part(sure, 2, 1, 81), net.part(sure, 2, 0, 1))
    return net.join(centre, extent, axis=2), scores


# SSD


def ssd300(net: Network) -> Outputs:
    """SSD300 (Liu et al. 2016) on VGG-16 with dilated fc6; 21 classes; the 200 best of all boxes and classes.

    Shapes    boxes (N, D, 4) as corners, fractions of the picture; scores (N, D); labels (N, D)
    """
    maps = ssd_maps(net)
    classes, boxes, priors = [], [], []
    for index, (x, kinds) in enumerate(zip(maps, (4, 6, 6, 6, 4, 4), strict=False)):
        net.scope = f"head{index}"
        for parts, each in ((classes, 21), (boxes, 4)):
            y = net.conv(x, kinds * each, 3, gain=0.5)
            parts.append(net.reshape(net.transpose(y.name, 0, 2, 3, 1), net.batch, -1, each))
        priors.append(ssd_priors(x, kinds, 0.1 + 0.8 * index / 5))
    net.scope = "tail"
    prior = np.concatenate(priors)[None]
    offset = net.join(*boxes, axis=1)
    centre = net.scaled(net.part(offset, 2, 0, 2), 0.1 * prior[..., 2:], prior[..., :2])
    half = net.scaled(net.apply("Exp", net.scaled(net.part(offset, 2, 2, 4), 0.2)), prior[..., 2:] / 2)
    corners = net.join(net.apply("Sub", centre, half), net.apply("Add", centre, half), axis=2)
    shares = net.apply("Softmax", net.join(*classes, axis=1), axis=2)
    flat = net.reshape(net.part(shares, 2, 1, 21), net.batch, -1)  # without the background
    count = net.constant([min(200, 20 * prior.shape[1])])
    scores, places = net.apply_many("TopK", flat, count, outputs=2, axis=1)
    box = net.apply("Div", places, net.constant(20))
    label = net.apply("Sub", places, net.apply("Mul", box, net.constant(20)))
    index = net.apply("Unsqueeze", box, net.constant([2]))
    return {
        "boxes": net.apply("GatherND", corners, index, batch_dims=1),
        "scores": scores,
        "labels": net.apply("Add", label, net.constant(1)),
    }


def ssd_maps(net: Network) -> list[Tensor]:
    """The maps that heads look at, as many as the picture's size leaves."""
    c = net.channels
    x = net.x
    maps = []
    for stage, (depth, K) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for i in range(depth):
            net.scope = f"conv{stage}_{i + 1}"
            x = net.conv_relu(x, c(K), 3)
        if stage == 4:
            maps.append(l2_normed(net, x))
        if stage == 5:
            x = net.pool(x, 3, 1, pads=(1, 1, 1, 1))
        else:  # half, rounded up
            x = net.node("MaxPool", [x.name], x.C, -(-x.H // 2), -(-x.W // 2), kernel_shape=[2, 2],
                         strides=[2, 2], ceil_mode=1)
    net.scope = "fc"
    x = net.relu(net.conv(x, c(1024), 3, dilation=6))
    x = net.conv_relu(x, c(1024), 1)
    maps.append(x)
    for index, (middle, K, stride, pad) in enumerate(
        ((256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0)), 8
    ):
        if min(x.H, x.W) < 3:
            break
        net.scope = f"conv{index}"
        x = net.conv_relu(net.conv_relu(x, c(middle), 1), c(K), 3, stride=stride, pad=pad)
        maps.append(x)
    return maps


def l2_normed(net: Network, x: Tensor) -> Tensor:
    """Each pixel's channels to length 20, as conv4_3 needs it."""
    y = net.apply("LpNormalization", x.name, axis=1, p=2)
    return net.like(x, net.scaled(y, np.full((1, x.C, 1, 1), 20.0)))


def ssd_priors(x: Tensor, kinds: int, scale: float) -> np.ndarray:
    """(H * W * kinds, 4): centre and extents of the boxes that offsets are told from."""
    ratios = {4: (1, 1, 2, 1 / 2), 6: (1, 1, 2, 1 / 2, 3, 1 / 3)}[kinds]
    sizes = [scale, math.sqrt(scale * (scale + 0.16)), *[scale] * (kinds - 2)]
    extents = [(s * math.sqrt(r), s / math.sqrt(r)) for s, r in zip(sizes, ratios, strict=True)]
    centres = (grid_of(x.H, x.W) + 0.5) / (x.W, x.H)
    return np.concatenate([np.repeat(centres, kinds, axis=0), np.tile(extents, (x.H * x.W, 1))], axis=1)


# Faster R-CNN


def faster_rcnn(net: Network) -> Outputs:
    """Faster R-CNN (Ren et al. 2015) on ResNet-18's first stages, RoiAlign (He et al. 2017); one picture.

    Shapes    proposals (D, 4) as corners in pixels, probabilities (D, 21), offsets (D, 84); D, at most 50, is
              known only at run time
    """
    if net.batch != 1:
        raise ValueError("faster_rcnn takes one picture: its proposals carry no picture's number")
    x = c4_of_resnet18(net)
    net.scope = "rpn"
    hidden = net.conv_relu(x, x.C, 3)
    scores = net.transpose(net.sigmoid(net.conv(hidden, 9, 1, gain=0.5)).name, 0, 2, 3, 1)
    offsets = net.transpose(net.conv(hidden, 36, 1, gain=0.1).name, 0, 2, 3, 1)
    count = 9 * x.H * x.W
    boxes = rpn_boxes(net, net.reshape(offsets, count, 4), x)
    best = min(300, count)
    top, order = net.apply_many("TopK", net.reshape(scores, count), net.constant([best]), outputs=2, axis=0)
    candidates = net.apply("Gather", boxes, order, axis=0)
    limits = [net.constant(50), *(net.constant(value, np.float32) for value in (0.7, 0.0))]
    kept = net.apply(
        "NonMaxSuppression", net.reshape(candidates, 1, best, 4), net.reshape(top, 1, 1, best), *limits
    )
    rows = net.apply("Squeeze", net.part(kept, 1, 2, 3), net.constant([1]))
    proposals = net.apply("Gather", candidates, rows, axis=0)  # (D, 4)
    net.scope = "roi"
    picture = net.apply("Mul", rows, net.constant(0))
    y = net.apply("RoiAlign", x.name, proposals, picture, output_height=7, output_width=7, sampling_ratio=2,
                  spatial_scale=x.W / net.x.W)
    y = net.apply("Flatten", y, axis=1)
    C = x.C * 49
    for _ in range(2):
        K = net.channels(1024)
        y, C = net.relu(net.gemm(Tensor(y, C, 1, 1), K)).name, K
    vector = Tensor(y, C, 1, 1)
    return {
        "proposals": proposals,
        "probabilities": net.apply("Softmax", net.gemm(vector, 21, gain=1.0).name, axis=1),
        "offsets": net.gemm(vector, 84, gain=1.0).name,
    }


def c4_of_resnet18(net: Network) -> Tensor:
    """ResNet-18 as far as output stride 16."""
    net.scope = "stem"
    x = net.pool(net.relu(net.conv_bn(net.x, net.channels(64), 7, stride=2)), 3, 2, pads=(1, 1, 1, 1))
    for stage in range(3):
        K = net.channels(64 << stage)
        for i in range(2):
            net.scope = f"layer{stage + 1}.{i}"
            stride = 2 if stage and not i else 1
            y = net.conv_bn(net.relu(net.conv_bn(x, K, 3, stride=stride)), K, 3, scale=0.5)
            fits = (x.C, stride) == (K, 1)
            x = net.relu(net.add(y, x if fits else net.conv_bn(x, K, 1, stride=stride, gain=1.0)))
    return x


def rpn_boxes(net: Network, offsets: str, x: Tensor) -> str:
    """Corners in pixels, within the picture: nine anchors a cell moved by their offsets."""
    side = net.x.W
    sizes = [size * side / 512 for size in (128, 256, 512)]
    extents = [(s * math.sqrt(r), s / math.sqrt(r)) for s in sizes for r in (0.5, 1.0, 2.0)]
    centres = (grid_of(x.H, x.W) + 0.5) * (side / x.W)
    anchors = np.concatenate([np.repeat(centres, 9, axis=0), np.tile(extents, (x.H * x.W, 1))], axis=1)
    centre = net.scaled(net.part(offsets, 1, 0, 2), anchors[:, 2:], anchors[:, :2])
    half = net.scaled(net.apply("Exp", net.part(offsets, 1, 2, 4)), anchors[:, 2:] / 2)
    corners = net.join(net.apply("Sub", centre, half), net.apply("Add", centre, half), axis=1)
    bounds = [net.constant(value, np.float32) for value in (0.0, side)]
    return net.apply("Clip", corners, *bounds)
