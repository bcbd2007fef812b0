"""BatchNormalization: variants against the definition, the definition against onnxruntime, refusals."""

import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.batchnormalization import CASES, BatchNormalization


@pytest.mark.parametrize(*harness.grid("BatchNormalization"))
def test_batchnormalization(case, variant, device):
    harness.check("BatchNormalization", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("BatchNormalization", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


def test_statistics_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ShapeError) as refused:
        BatchNormalization().infer(*_types((1, 3, 4, 5), (3,), (3,), (4,), (3,)))
    assert "tensor: mean" in str(refused.value) and "(4,)" in str(refused.value)


@pytest.mark.parametrize(
    "norm, words",
    [(BatchNormalization(training_mode=1), "training"), (BatchNormalization(spatial=0), "per activation")],
)
def test_what_is_not_here_is_refused_by_name(norm, words):
    with pytest.raises(UnsupportedError, match=words):
        norm.infer(*_types((1, 3, 4, 5), (3,), (3,), (3,), (3,)))


def test_constants_need_no_step_of_their_own():
    problem = harness.problem("BatchNormalization", "h differs from w")
    assert all(variant.workspace_bytes(problem) == 0 for variant in problem.operator.variants())
