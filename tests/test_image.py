"""image: pictures of every kind become the right tensor or one typed error; scores become names.

What is right: small pictures are worked out by hand, and the trained networks know the subjects of real ones.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from minicnn.errors import InputError
from minicnn.image import (
    AnswerFormat,
    Preprocess,
    find_preprocess,
    load_labels,
    load_picture,
    sidecar,
    top_k,
)

pillow = pytest.importorskip("PIL.Image")

MODELS = Path(__file__).parent.parent / "models"
RAW = Preprocess(channels="rgb", mean=(0,), std=(1,))
GRAY = Preprocess(channels="gray", mean=(0,), std=(1,))
OPEN_RGB = (1, 3, None, "w")  # both kinds of open extent
OPEN_GRAY = (1, 1, -1, 0)


@pytest.fixture
def rgb(tmp_path):
    """A 4 x 6 picture with all its bytes different, and its file."""
    array = np.arange(72, dtype=np.uint8).reshape(4, 6, 3) * 3
    path = tmp_path / "rgb.png"
    pillow.fromarray(array).save(path)
    return array, path


def save(tmp_path, array, name="p.png", **options):
    path = tmp_path / name
    pillow.fromarray(array).save(path, **options)
    return path


# --- from pixels to numbers


def test_the_formula_and_the_layout(rgb):
    array, path = rgb
    p = Preprocess(channels="rgb", mean=(10, 20, 30), std=(2, 4, 8))
    x = p.apply(path, (7, 3, 4, 6))
    assert x.shape == (1, 3, 4, 6) and x.dtype == np.float32 and x.flags.c_contiguous
    assert (x == ((array - np.float32([10, 20, 30])) / np.float32([2, 4, 8])).transpose(2, 0, 1)[None]).all()


def test_bgr_reverses_the_pixels_and_mean_is_in_the_networks_order(rgb):
    array, path = rgb
    p = Preprocess(channels="bgr", mean=(10, 20, 30), std=(1,))
    x = p.apply(path, (1, 3, 4, 6))
    assert (x[0, 0] == array[:, :, 2] - np.float32(10)).all()
    assert (x[0, 2] == array[:, :, 0] - np.float32(30)).all()


def test_nhwc(rgb):
    array, path = rgb
    x = Preprocess(channels="rgb", mean=(0,), std=(1,), layout="NHWC").apply(path, (1, 4, 6, 3))
    assert x.shape == (1, 4, 6, 3) and (x[0] == array).all()


def test_open_extents_take_the_pictures_size(rgb):
    array, path = rgb
    assert (RAW.apply(path, OPEN_RGB)[0] == array.transpose(2, 0, 1)).all()
    assert GRAY.apply(path, OPEN_GRAY).shape == (1, 1, 4, 6)


def test_gray_is_the_luma_and_one_channel_needs_no_word(tmp_path):
    path = save(tmp_path, np.full((2, 2, 3), (200, 100, 50), np.uint8))
    said = GRAY.apply(path, OPEN_GRAY)
    assert (said == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)).all()
    assert (Preprocess(mean=(0,), std=(1,)).apply(path, OPEN_GRAY) == said).all()
    with pytest.raises(InputError, match="channels unknown"):
        Preprocess(mean=(0,), std=(1,)).apply(path, OPEN_RGB)


def test_the_crop_is_about_the_centre(rgb):
    array, path = rgb
    x = Preprocess(channels="rgb", mean=(0,), std=(1,), crop=(2, 4)).apply(path, (1, 3, 2, 4))
    assert (x[0] == array[1:3, 1:5].transpose(2, 0, 1)).all()


@pytest.mark.parametrize(("resize", "size"), [(8, (8, 12)), (2, (2, 3)), ((5, 9), (5, 9)), (None, (4, 6))])
def test_resize_is_the_short_side_or_both(rgb, resize, size):
    p = Preprocess(channels="rgb", mean=(0,), std=(1,), resize=resize)
    assert p.apply(rgb[1], OPEN_RGB).shape[2:] == size


def test_a_portrait_is_resized_by_its_width(tmp_path):
    path = save(tmp_path, np.zeros((9, 4, 3), np.uint8))
    p = Preprocess(channels="rgb", mean=(0,), std=(1,), resize=8)
    assert p.apply(path, OPEN_RGB).shape[2:] == (18, 8)


def test_interpolation_is_the_one_that_was_asked_for(tmp_path):
    path = save(tmp_path, np.array([[0, 0, 0, 0], [0, 255, 255, 0]], np.uint8))
    nearest, box = (Preprocess(channels="gray", mean=(0,), std=(1,), resize=(1, 2), interpolation=i)
                    .apply(path, OPEN_GRAY)[0, 0] for i in ("nearest", "box"))
    assert (np.isin(nearest, (0, 255))).all()
    assert ((box > 62) & (box < 66)).all()


# --- every kind of picture


def test_transparent_pixels_show_the_background(tmp_path):
    array = np.zeros((1, 3, 4), np.uint8)
    array[0, :, 0], array[0, :, 3] = 200, (255, 0, 128)
    path = save(tmp_path, array)
    white = np.asarray(load_picture(path))
    assert white[0, 0].tolist() == [200, 0, 0] and white[0, 1].tolist() == [255, 255, 255]
    assert np.abs(white[0, 2].astype(int) - [227, 127, 127]).max() <= 1
    assert np.asarray(load_picture(path, background=(0, 9, 0)))[0, 1].tolist() == [0, 9, 0]


def test_palettes_with_and_without_a_transparent_entry(tmp_path):
    image = pillow.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    image.save(tmp_path / "p.png")
    image.save(tmp_path / "t.png", transparency=1)
    assert np.asarray(load_picture(tmp_path / "p.png")).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    assert np.asarray(load_picture(tmp_path / "t.png")).tolist() == [[[255, 0, 0], [255, 255, 255]]]


@pytest.mark.parametrize("name", ["wide.png", "wide.tif", "wide.pgm"])
def test_16_bits_are_scaled_not_cut(tmp_path, name):
    values = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    path = tmp_path / name
    if name.endswith("pgm"):
        path.write_bytes(b"P5 6 1 65535\n" + values.astype(">u2").tobytes())
    else:
        pillow.fromarray(values).save(path)
    assert np.asarray(load_picture(path, gray=True)).tolist() == [[0, 0, 1, 1, 128, 255]]
    assert np.asarray(load_picture(path)).shape == (1, 6, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_that_files_have_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("m.tif" if mode in ("CMYK", "YCbCr") else "m.png")
    pillow.new("RGB", (3, 2), (255, 255, 255)).convert(mode).save(path)
    image = load_picture(path)
    assert image.mode == "RGB" and np.asarray(image).min() >= 254


@pytest.mark.parametrize("array", [np.full((2, 2), 0.5, np.float32), np.full((2, 2), 70000, np.int32)])
def test_numbers_without_an_agreed_range_are_refused(tmp_path, array):
    with pytest.raises(InputError, match="no agreed range.*accepted: 8 or 16 bits.*file: .*p.tif"):
        load_picture(save(tmp_path, array, "p.tif"))


def test_exif_rotation_is_followed(tmp_path):
    array = np.zeros((8, 16, 3), np.uint8)
    array[:, :8] = 255  # white on the left; orientation 6 turns that to the top
    exif = pillow.Exif()
    exif[0x0112] = 6
    x = np.asarray(load_picture(save(tmp_path, array, "turned.jpg", exif=exif, quality=95)))
    assert x.shape == (16, 8, 3) and x[:7].min() > 200 and x[9:].max() < 50


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [pillow.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 255, 0))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (np.asarray(load_picture(tmp_path / "a.gif")) == (255, 0, 0)).all()


# --- files that are no pictures


def png_header(width, height):
    """A PNG that claims a size: all that a decoder has to go by before it allocates."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def bad_pictures():
    return {
        "empty": b"", "text": b"not a picture", "onnx": (MODELS / "mtcnn_pnet.onnx").read_bytes()[:5000],
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nquit\n",
        "bomb": png_header(60000, 60000), "large": png_header(12000, 9000),
        "short of data": png_header(500, 500),
    }


@pytest.mark.parametrize("kind", bad_pictures())
def test_a_file_that_is_no_picture_is_one_error(tmp_path, kind):
    path = tmp_path / "bad.png"
    path.write_bytes(bad_pictures()[kind])
    sentence = "too large" if kind in ("bomb", "large") else "(isn't a picture|damaged)"
    with pytest.raises(InputError, match=f"{sentence}.*file: .*bad.png"):
        RAW.apply(path, OPEN_RGB)


def test_formats_past_the_listed_ones_are_not_even_tried(tmp_path):
    with pytest.raises(InputError, match="known kind.*accepted: JPEG, PNG"):
        load_picture(save(tmp_path, np.zeros((4, 4, 3), np.uint8), "p.tga"))


@pytest.mark.parametrize("name", ["p.png", "p.jpg", "p.gif", "p.bmp", "p.tif", "p.webp", "p.ppm"])
def test_a_truncated_picture_is_one_error_at_every_length(tmp_path, name):
    array = np.random.default_rng(1).integers(0, 255, (40, 40, 3)).astype(np.uint8)
    whole = save(tmp_path, array, name).read_bytes()
    refused = 0
    for length in [*range(0, 60, 7), *range(60, len(whole) - 60, max(1, len(whole) // 25))]:
        path = tmp_path / f"cut_{name}"
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="cut_"):
            load_picture(path)
        refused += 1
    assert refused > 25


def test_a_picture_with_flipped_bytes_is_a_picture_or_one_error(tmp_path):
    random = np.random.default_rng(2)
    for name in ("p.png", "p.jpg", "p.tif", "p.gif", "p.webp"):
        whole = save(tmp_path, random.integers(0, 255, (30, 30, 3)).astype(np.uint8), name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for position in random.integers(0, len(data), 4):
                data[position] = random.integers(0, 256)
            (tmp_path / name).write_bytes(data)
            try:
                assert load_picture(tmp_path / name).mode == "RGB"
            except InputError as error:
                assert name in str(error)


def test_missing_folders_and_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, sentence in ((tmp_path / "none.png", "no such"), (tmp_path, "isn't a file"),
                           (tmp_path / "pipe", "isn't a file"), ("nul\0", "no such|isn't a file")):
        with pytest.raises(InputError, match=sentence):
            load_picture(path)


# --- what nobody said


def test_what_nobody_said_is_named_with_the_flags_that_say_it(rgb):
    with pytest.raises(InputError) as caught:
        Preprocess().apply(rgb[1], (1, 3, 4, 6))
    for word in ("channels, mean, std unknown", "--channels", "--mean", "--std", "MODEL.json"):
        assert word in str(caught.value)
    with pytest.raises(InputError) as caught:
        Preprocess(channels="rgb", mean=(0,)).apply(rgb[1], (1, 3, 4, 6))
    assert "std unknown" in str(caught.value) and "--mean" not in str(caught.value)


def test_a_size_that_does_not_fit_names_the_flags(rgb):
    with pytest.raises(InputError, match="--resize.*--crop 8x8") as caught:
        RAW.apply(rgb[1], (1, 3, 8, 8))
    assert "height 8, width 8" in str(caught.value) and "height 4, width 6" in str(caught.value)
    with pytest.raises(InputError, match="crop is larger.*rgb.png"):
        Preprocess(channels="rgb", mean=(0,), std=(1,), crop=(5, 5)).apply(rgb[1], OPEN_RGB)


def test_channels_and_ranks_that_do_not_fit_are_refused(rgb):
    for p, shape in ((RAW, (1, 1, 4, 6)), (GRAY, (1, 3, 4, 6)), (RAW, (1, 4, 4, 6)), (RAW, (3, 4, 6)),
                     (Preprocess(channels="gray", mean=(1, 2, 3), std=(1,)), (1, 1, 4, 6))):
        with pytest.raises(InputError):
            p.apply(rgb[1], shape)


def test_resizing_a_sliver_cannot_eat_the_memory(tmp_path):
    path = save(tmp_path, np.zeros((1, 5000, 3), np.uint8))
    with pytest.raises(InputError, match="too large.*file"):
        Preprocess(channels="rgb", mean=(0,), std=(1,), resize=2000).apply(path, OPEN_RGB)


@pytest.mark.parametrize("fields", [
    {"channels": "RGB"}, {"mean": (1, 2)}, {"mean": (float("nan"),)}, {"std": (0,)}, {"std": (-1,)},
    {"resize": 0}, {"crop": (0, 5)}, {"interpolation": "cubic"}, {"layout": "CHW"},
    {"background": (0, 0, 256)}, {"std": (float("inf"),)}, {"resize": (4, -4)},
])
def test_nonsense_is_refused(fields):
    with pytest.raises(InputError):
        Preprocess(**fields)


def test_numbers_for_pixels_of_0_to_1_are_refused_with_the_right_ones():
    with pytest.raises(InputError, match="--mean 123.675,116.28,103.53 --std 58.395,57.12,57.375"):
        Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


# --- flags, sidecars, metadata


def test_flags_replace_what_a_sidecar_says():
    base = Preprocess.from_json(MODELS / "efficientnet_lite0.json")
    p = base.with_flags(mean="1,2,3", std="4", resize="300:box", crop="20x10", channels="bgr")
    assert (p.mean, p.std, p.resize, p.interpolation) == ((1, 2, 3), (4,), 300, "box")
    assert (p.crop, p.channels, p.layout) == ((20, 10), "bgr", "NCHW")
    assert "efficientnet_lite0.json, flags --mean" in p.source
    assert base.with_flags(resize="8x9", crop="none").resize == (8, 9)
    assert base.with_flags(resize="none", crop="none").crop is None
    assert base.with_flags(crop="16").crop == (16, 16)
    assert base.with_flags() is base


@pytest.mark.parametrize("flags", [
    {"mean": "a"}, {"mean": ""}, {"mean": "1,2"}, {"std": "1;2"}, {"resize": "-3"}, {"resize": "3x4x5"},
    {"resize": "256:cubic"}, {"crop": "2.5"}, {"crop": "²"}, {"channels": "bgra"}, {"resize": "9" * 5000},
])
def test_bad_flags_are_refused(flags):
    with pytest.raises(InputError):
        Preprocess().with_flags(**flags)


@pytest.mark.parametrize("text", [
    "", "[]", "{", '{"means": 3}', '{"mean": "3"}', '{"mean": [1, true, 3]}', '{"mean": [[1]]}',
    '{"crop": 2.5}', '{"crop": [1, 2, 3]}', '{"channels": 3}', '{"channels": ["rgb"]}', '{"mean": 1e999}',
    '{"mean": NaN}', '{"std": ' + "9" * 500 + "}", '{"resize": true}', '{"labels": "../x.json"}',
    '{"labels": 3}', '{"labels": ""}', '{"labels": ["a", 2]}', '{"labels": "none.json"}',
    '{"labels": "nul\\u0000"}', '{"task": "guess"}', '{"scores": "softmax"}', '{"output": 3}', "[" * 100000,
    '{"background": [1, 2]}',
])
def test_a_bad_sidecar_is_one_error_that_names_a_file(tmp_path, text):
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InputError, match="file: "):
        Preprocess.from_json(path)
        AnswerFormat.from_json(path)


def test_labels_outside_the_sidecars_folder_are_not_read(tmp_path):
    (tmp_path / "secret.txt").write_text("a\nb\n")
    (tmp_path / "models").mkdir()
    for labels in ("../secret.txt", str(tmp_path / "secret.txt")):
        (tmp_path / "models" / "m.json").write_text(json.dumps({"labels": labels}))
        with pytest.raises(InputError, match="own folder.*m.json"):
            AnswerFormat.from_json(tmp_path / "models" / "m.json")


def test_a_sidecar_that_is_no_text_or_not_there_is_one_error(tmp_path):
    (tmp_path / "m.json").write_bytes(b"\xff\xfe\x00")
    for name in ("m.json", "none.json"):
        with pytest.raises(InputError, match="can't be read.*file: "):
            Preprocess.from_json(tmp_path / name)


def test_the_sidecar_goes_before_the_metadata(tmp_path):
    model = tmp_path / "m.onnx"
    properties = {"image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "Normalized_0_1"}
    p, answer = find_preprocess(model, properties)
    assert (p.channels, p.mean, p.std) == ("bgr", (0,), (255,)) and "metadata" in p.source
    assert answer == AnswerFormat()
    said = {"channels": "rgb", "mean": None, "labels": ["a", "b"], "scores": "logits"}
    (tmp_path / "m.json").write_text(json.dumps(said))
    p, answer = find_preprocess(model, properties, std="5")
    assert (p.channels, p.mean, p.std) == ("rgb", None, (5,))
    assert answer.labels == ("a", "b") and answer.scores == "logits"
    assert find_preprocess(tmp_path / "other.onnx")[0].source == "nothing"


@pytest.mark.parametrize("properties", [{"Image.BitmapPixelFormat": "Rgba8"},
                                        {"Image.ColorSpaceGamma": "Linear"},
                                        {"Image.NominalPixelRange": "NominalRange_16_235"}])
def test_metadata_that_asks_for_other_pictures_is_refused(properties):
    with pytest.raises(InputError, match="accepted"):
        Preprocess.from_metadata(properties, file="m.onnx")


def test_every_sidecar_of_models_is_whole_and_has_its_model():
    found = {p for p in MODELS.rglob("*.json") if p.name != "imagenet1k_clean_names.json"}
    assert len(found) == 5
    for path in found:
        assert sidecar(path.with_suffix(".onnx")) == path and path.with_suffix(".onnx").is_file()
        shape = (1, 1 if "mnist" in str(path) else 3, None, None)
        Preprocess.from_json(path).require(shape)
        assert AnswerFormat.from_json(path).task is not None


# --- answers


def test_labels_from_json_and_from_text(tmp_path):
    names = load_labels(MODELS / "imagenet1k_clean_names.json")
    assert len(names) == 1000 and names[967] == "espresso"
    (tmp_path / "l.txt").write_bytes("\ufeffüber\r\nb c \r\n".encode())
    assert load_labels(tmp_path / "l.txt") == ("über", "b c")


@pytest.mark.parametrize("text", ["a\n\nb\n", "[1, 2]", '["a", ""]', "[", "\n a \n \n b"])
def test_bad_labels_are_refused(tmp_path, text):
    (tmp_path / "l.txt").write_text(text)
    with pytest.raises(InputError, match="l.txt"):
        load_labels(tmp_path / "l.txt")


def test_top_k_of_logits_is_their_softmax():
    logits = np.array([[[[2.0]], [[1000.0]], [[999.0]], [[-1e5]]]], np.float32)
    best = top_k(logits, 3, kind="logits", labels=("a", "b", "c", "d"))
    assert [(r.index, r.name) for r in best] == [(1, "b"), (2, "c"), (0, "a")]
    assert best[0].probability == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-12) and best[0].score == 1000


def test_top_k_makes_no_probability_up():
    assert [r.probability for r in top_k(np.array([0.2, 0.5, 0.3]))] == [0.5, 0.3, 0.2]
    assert [r.probability for r in top_k(np.array([1.0, 2.0]))] == [None, None]
    assert [r.probability for r in top_k(np.array([0.2, 0.5, 0.3]), kind="logits")] != [0.5, 0.3, 0.2]
    assert top_k(np.array([0.9, 0.8]), kind="probabilities")[0].probability == 0.9


def test_top_k_of_equals_takes_the_lower_index_and_no_more_than_there_are():
    assert [r.index for r in top_k(np.array([1.0, 3, 3, 3]), 9)] == [1, 2, 3, 0]
    assert top_k(np.array([1.0]))[0].name is None


@pytest.mark.parametrize(("scores", "options"), [
    (np.zeros((2, 3)), {}), (np.zeros(0), {}), (np.array([1, np.nan]), {}), (np.array([1, np.inf]), {}),
    (np.zeros(3), {"k": 0}), (np.zeros(3), {"labels": ("a",)}), (np.zeros(3), {"kind": "softmax"}),
])
def test_top_k_refuses(scores, options):
    with pytest.raises(InputError):
        top_k(scores, **options)


# --- the trained networks read real pictures right


def answer_of(model, picture):
    onnxruntime = pytest.importorskip("onnxruntime")
    preprocess, answer = find_preprocess(model)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    x = preprocess.apply(picture, session.get_inputs()[0].shape)
    (scores,) = session.run([answer.output], {session.get_inputs()[0].name: x})
    return top_k(scores, 1, kind=answer.scores, labels=answer.labels)[0]


@pytest.mark.parametrize(("name", "index", "probability"), [
    ("chelsea", 282, 0.39), ("coffee", 967, 0.95), ("camera", 872, 0.94)])
def test_efficientnet_names_known_pictures(tmp_path, name, index, probability):
    data = pytest.importorskip("skimage.data")
    best = answer_of(MODELS / "efficientnet_lite0.onnx", save(tmp_path, getattr(data, name)()))
    assert best.index == index and best.probability == pytest.approx(probability, abs=0.02)
    assert best.name == json.loads((MODELS / "imagenet1k_clean_names.json").read_text())[index]


def test_mnist_reads_digits(tmp_path):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    right = 0
    for image, target in zip(digits.images[:40], digits.target, strict=False):
        digit = pillow.fromarray((image * 255 / 16).round().astype(np.uint8)).resize((20, 20))
        canvas = pillow.new("L", (28, 28))
        canvas.paste(digit, (4, 4))
        canvas.save(tmp_path / "digit.png")
        right += answer_of(MODELS / "mnist-conv" / "model.onnx", tmp_path / "digit.png").name == str(target)
    assert right >= 34  # of 40: the network wasn't trained on these


def test_rnet_tells_faces(tmp_path):
    faces = pytest.importorskip("skimage.data").lfw_subset()  # the first hundred are faces
    for index in (0, 50, 99, 100, 150, 199):
        path = save(tmp_path, (faces[index] * 255).round().astype(np.uint8))
        assert answer_of(MODELS / "mtcnn_rnet.onnx", path).name == ("face" if index < 100 else "not a face")
