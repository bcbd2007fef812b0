"""NonMaxSuppression in numpy, for the fallback: onnx's evaluator fails over scalar limits and takes its time.

Source    ONNX operator NonMaxSuppression
"""

from __future__ import annotations

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
    """Of each class the best boxes, at most `most`, that overlap no better one by more than the threshold.

    Shapes    boxes (N, B, 4), scores (N, classes, B) -> (D, 3): picture, class, box; the limits are scalars or
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
