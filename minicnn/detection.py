"""NonMaxSuppression and RoiAlign in numpy, for the fallback: onnx's evaluator loops over boxes and elements
in Python, and fails where a limit is a scalar or absent.

Source    ONNX operators NonMaxSuppression, RoiAlign
Not here  RoiAlign's maximum: the evaluator's
"""

from __future__ import annotations

import math

import numpy as np


def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    most: np.ndarray | None = None,
    iou_threshold: np.ndarray | None = None,
    score_threshold: np.ndarray | None = None,
    *,
    is_centred: bool = False,
) -> np.ndarray:
    """Of each class the best boxes, `most` of them, that none before them overlaps beyond the threshold.

    Shapes    boxes (N, B, 4), scores (N, classes, B) -> (D, 3): picture, class, box; limits are scalars or
              vectors of one. Equal scores keep the order of their boxes.
    """
    count = _number(most, 0)
    threshold = _number(iou_threshold, 0.0)
    found: list[tuple[int, int, int]] = []
    for n, (low, high) in enumerate(map(_corners, boxes, [is_centred] * len(boxes))):
        area = np.prod(high - low, axis=-1)
        for k, score in enumerate(scores[n]):
            able = np.arange(len(score))
            if score_threshold is not None:
                able = able[score > _number(score_threshold, 0.0)]
            able = able[np.argsort(-score[able], kind="stable")]
            kept = 0
            while able.size and kept < count:
                best, able = able[0], able[1:]
                found.append((n, k, int(best)))
                kept += 1
                shared = np.minimum(high[able], high[best]) - np.maximum(low[able], low[best])
                intersection = np.prod(np.maximum(shared, 0), axis=-1)
                union = area[able] + area[best] - intersection
                able = able[~((intersection > 0) & (intersection > threshold * union))]
    return np.array(found, np.int64).reshape(-1, 3)


def _number(limit: np.ndarray | None, default: float) -> float:
    return default if limit is None or not limit.size else limit.reshape(-1)[0]


def _corners(boxes: np.ndarray, is_centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corners of (B, 4): centre and extents, or any two opposite corners."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if is_centred:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def roi_align(
    x: np.ndarray,
    rois: np.ndarray,
    pictures: np.ndarray,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    is_half_pixel: bool = True,
) -> np.ndarray:
    """The mean of linear samples in each cell of a grid laid over each region.

    Shapes    x (N, C, H, W), rois (D, 4) as x, y of two corners, pictures (D) -> (D, C, P, Q)
    """
    y = np.empty((len(rois), x.shape[1], output_height, output_width), x.dtype)
    for d, (left, top, right, bottom) in enumerate(rois * spatial_scale - 0.5 * is_half_pixel):
        height, width = bottom - top, right - left
        if not is_half_pixel:
            height, width = max(height, 1), max(width, 1)
        rows = _cell_weights(top, height, output_height, x.shape[2], sampling_ratio)
        columns = _cell_weights(left, width, output_width, x.shape[3], sampling_ratio)
        y[d] = rows.astype(x.dtype) @ x[pictures[d]] @ columns.astype(x.dtype).T
    return y


def _cell_weights(start: float, size: float, cells: int, extent: int, samples: int) -> np.ndarray:
    """(cells, extent): what each element along one axis contributes to each cell's mean."""
    samples = samples or max(math.ceil(size / cells), 1)
    at = start + size / cells * (np.arange(cells)[:, None] + (np.arange(samples) + 0.5) / samples)
    is_inside = (at >= -1) & (at <= extent)
    at = np.clip(at, 0, extent - 1)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, extent - 1)
    weights = np.zeros((cells, extent))
    cell = np.broadcast_to(np.arange(cells)[:, None], at.shape)
    np.add.at(weights, (cell, low), is_inside * (1 - (at - low)))
    np.add.at(weights, (cell, high), is_inside * (at - low))
    return weights / samples
