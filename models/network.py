"""What newer networks need beyond build.py's Net: several outputs, shape arithmetic, gates, detection tails.

Not here   the networks (published.py, detectors.py)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from build import Net, Tensor, seeded_weight


class Network(Net):
    """A Net with methods that take and give bare tensor names, where there is no C, H, W to keep track of."""

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """A constant's name; equal ones may be made again."""
        name = f"{self.scope}/constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def apply(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Appends an operator; the name of its output."""
        return self.apply_many(operator, *inputs, outputs=1, **attributes)[0]

    def apply_many(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """The same with several outputs."""
        stem = self.name(operator)
        names = [stem if outputs == 1 else f"{stem}:{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=stem, **attributes))
        return names

    def like(self, x: Tensor, name: str) -> Tensor:
        """A tensor of x's extents under another name."""
        return x._replace(name=name)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self.like(x, self.apply("Sigmoid", x.name))

    def swish(self, x: Tensor) -> Tensor:
        """x * sigmoid(x), in the two nodes that exporters write."""
        return self.multiply(x, self.sigmoid(x))

    def leaky_relu(self, x: Tensor) -> Tensor:
        return self.like(x, self.apply("LeakyRelu", x.name, alpha=0.1))

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """b may be 1 x 1, a gate on the channels of a."""
        return self.like(a, self.apply("Mul", a.name, b.name))

    def transpose(self, x: str, *order: int) -> str:
        return self.apply("Transpose", x, perm=order)

    def reshape(self, x: str, *shape: int) -> str:
        return self.apply("Reshape", x, self.constant(shape))

    def part(self, x: str, axis: int, start: int, end: int) -> str:
        """x[..., start:end, ...] along one axis."""
        bounds = [self.constant([value]) for value in (start, end, axis)]
        return self.apply("Slice", x, *bounds)

    def join(self, *parts: str, axis: int) -> str:
        return self.apply("Concat", *parts, axis=axis)

    def scaled(self, x: str, factor: Any, shift: Any = None) -> str:
        """x * factor + shift, with constants that broadcast."""
        y = self.apply("Mul", x, self.constant(factor, np.float32))
        return y if shift is None else self.apply("Add", y, self.constant(shift, np.float32))

    def upsample(self, x: Tensor, factor: int) -> Tensor:
        """Nearest neighbours, `factor` times as many each way."""
        scales = self.constant([1, 1, factor, factor], np.float32)
        options = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return Tensor(self.apply("Resize", x.name, "", scales, **options), x.C, x.H * factor, x.W * factor)

    def resize_to(self, x: Tensor, other: Tensor) -> Tensor:
        """Linear, to the height and width of another tensor, whose shape is asked for as exporters do."""
        kept = self.part(self.apply("Shape", x.name), 0, 0, 2)
        wanted = self.part(self.apply("Shape", other.name), 0, 2, 4)
        y = self.apply("Resize", x.name, "", "", self.join(kept, wanted, axis=0), mode="linear",
                       coordinate_transformation_mode="half_pixel")  # fmt: skip
        return Tensor(y, x.C, other.H, other.W)

    def linear(self, x: str, C: int, K: int, *, gain: float = 1.0) -> str:
        """x @ W + b over the last axis, as MatMul and Add."""
        stem = self.name("MatMul")
        w = self.weight(f"{stem}.weight", seeded_weight(self.random, (K, C), gain).T)
        b = self.weight(f"{stem}.bias", 0.1 * self.random.standard_normal(K))
        return self.apply("Add", self.apply("MatMul", x, w), b)

    def layer_norm(self, x: str, C: int) -> str:
        """LayerNormalization over the last axis."""
        stem = self.name("LayerNormalization")
        scale = self.weight(f"{stem}.scale", self.random.uniform(0.7, 1.3, C))
        bias = self.weight(f"{stem}.bias", 0.1 * self.random.standard_normal(C))
        return self.apply("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def finished(self, name: str, outputs: dict[str, str], *, opset: int) -> onnx.ModelProto:
        """The file: input x, and the tensors `outputs` (name -> tensor) so named, of inferred types."""
        new = {tensor: name for name, tensor in outputs.items()}
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [new.get(tensor, tensor) for tensor in names]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.batch, *self.x[1:]])
        y = [helper.make_empty_tensor_value_info(name) for name in outputs]
        model = helper.make_model(
            helper.make_graph(self.nodes, name, [x], y, self.weights),
            opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="minicnn models",
        )  # fmt: skip
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model
