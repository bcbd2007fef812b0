"""From a picture to the tensor a network was trained on, and from its scores to names.

A picture is turned as its EXIF says, its alpha laid on the background, brought to 8 bits a channel,
resized, cropped about the centre, then `(pixel - mean) / std` with mean and std in units of 0..255. Where
these come from: the command line's flags, else `MODEL.json` beside the model, else the model file's
metadata. What none of them says is never guessed: one error names it and the flags that would supply it.

Source    resizing and cropping as torchvision's Resize and CenterCrop on Pillow pictures
Not here  letterboxing, several crops of one picture, keeping more than 8 bits
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

CHOICES = {
    "channels": ("rgb", "bgr", "gray"),
    "layout": ("NCHW", "NHWC"),
    "interpolation": ("nearest", "box", "bilinear", "bicubic", "lanczos"),
    "task": ("classification", "detection", "other"),
    "scores": ("logits", "probabilities"),
}
PREPROCESS_KEYS = ("channels", "mean", "std", "resize", "crop", "interpolation", "background", "layout")
ANSWER_KEYS = ("task", "output", "scores", "labels")
SIDECAR_KEYS = (*PREPROCESS_KEYS, *ANSWER_KEYS, "note")  # a note is for its reader

PIXEL_FORMATS = {"rgb8": "rgb", "bgr8": "bgr", "gray8": "gray"}
PIXEL_RANGES = {  # mean, std
    "nominalrange_0_255": (0.0, 1.0),
    "normalized_0_1": (0.0, 255.0),
    "normalized_1_1": (127.5, 127.5),
}
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # of Pillow's others, some run programs

MAX_PIXELS = 100_000_000     # of a picture, and of what it is resized to: 300 MB as 8-bit RGB
MAX_TEXT_BYTES = 16_000_000  # of a sidecar or a label file; ImageNet's 21,841 names take 0.7 MB

Shape = Sequence[int | str | None]


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How a picture becomes a network's input. None for mean, std or channels: nobody has said.

    Units   mean, std and background in 0..255
    Raises  InputError, from every constructor and from `apply`
    """

    channels: str | None = None             # rgb, bgr or gray
    mean: tuple[float, ...] | None = None   # one for all channels, or one each, in the network's order
    std: tuple[float, ...] | None = None
    resize: int | tuple[int, int] | None = None  # the short side, or (height, width); None: as it is
    crop: tuple[int, int] | None = None     # (height, width) about the centre
    interpolation: str = "bilinear"
    background: tuple[int, int, int] = (255, 255, 255)  # RGB, seen through transparent pixels
    layout: str = "NCHW"
    source: str = "nothing"                 # who said so: a sidecar, metadata, flags

    def __post_init__(self) -> None:
        for key in ("channels", "layout", "interpolation"):
            check_choice(key, getattr(self, key))
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and (len(values) not in (1, 3) or not all(map(math.isfinite, values))):
                raise InputError(f"{key} isn't one finite number, or one for each channel", found=values)
        if self.std is not None and min(self.std) <= 0:
            raise InputError("std must be above 0", found=self.std)
        if self.std is not None and max((*self.std, *(self.mean or ()))) < 1:
            scaled = " ".join(f"--{key} " + ",".join(f"{255 * v:g}" for v in values)
                              for key, values in (("mean", self.mean), ("std", self.std)) if values)
            raise InputError("mean and std are for pixels of 0..1, and minicnn's are for pixels of 0..255",
                             found=f"mean {self.mean}, std {self.std}",
                             remedy=f"multiply by 255: {scaled}")
        sizes = [self.resize] if isinstance(self.resize, int) else [*(self.resize or ())]
        if any(size < 1 for size in [*sizes, *(self.crop or ())]):
            raise InputError("resize and crop must be 1 pixel or more", found=(self.resize, self.crop))
        if any(not 0 <= value <= 255 for value in self.background):
            raise InputError("background must be within 0..255", found=self.background)

    @classmethod
    def from_json(cls, path: str | Path) -> Preprocess:
        """What a sidecar (MODEL.json) says; what it lacks stays unsaid."""
        said = {key: value for key, value in read_sidecar(path).items() if key in PREPROCESS_KEYS}
        try:
            for key, kind, counts in (("mean", float, (1, 3)), ("std", float, (1, 3)), ("crop", int, (1, 2)),
                                      ("resize", int, (1, 2)), ("background", int, (3,))):
                if key in said:
                    said[key] = listed(said[key], key, kind, counts)
            if len(said.get("crop", ())) == 1:
                said["crop"] *= 2
            if len(said.get("resize", ())) == 1:
                (said["resize"],) = said["resize"]
            return cls(**said, source=str(path))
        except InputError as error:
            raise error.at(file=path) from None

    @classmethod
    def from_metadata(cls, properties: Mapping[str, str], *, file: str | Path) -> Preprocess:
        """What an ONNX file's own metadata says, if anything.

        Source  ONNX docs/MetadataProps.md: Image.BitmapPixelFormat, NominalPixelRange, ColorSpaceGamma
        """
        said = {key.lower(): value.lower() for key, value in properties.items()}
        pixels, values = said.get("image.bitmappixelformat"), said.get("image.nominalpixelrange")
        for found, known in ((pixels, PIXEL_FORMATS), (values, PIXEL_RANGES),
                             (said.get("image.colorspacegamma"), ("srgb",))):
            if found is not None and found not in known:
                raise InputError("the model's metadata asks for pictures of an unsupported kind", file=file,
                                 found=found, accepted=", ".join(known))
        mean, std = PIXEL_RANGES[values] if values else (None, None)
        return cls(channels=PIXEL_FORMATS[pixels] if pixels else None, mean=None if mean is None else (mean,),
                   std=None if std is None else (std,),
                   source=f"the metadata of {file}" if pixels or values else "nothing")

    def with_flags(self, *, mean: str | None = None, std: str | None = None, resize: str | None = None,
                   crop: str | None = None, channels: str | None = None) -> Preprocess:
        """A copy in which the command line's flags, as typed, replace what was said before.

        `--mean 123.7,116.3,103.5` or one number; `--resize 256` (short side), `224x160` (height x width) or
        `none`, with `:bicubic` behind it for another interpolation; `--crop 224`, `224x160` or `none`.
        """
        changes: dict[str, Any] = {}
        for key, text in (("mean", mean), ("std", std)):
            if text is not None:
                changes[key] = parse_numbers(text, f"--{key}")
        if resize is not None:
            size, colon, interpolation = resize.partition(":")
            changes["resize"] = parse_size(size, "--resize")
            if colon:
                changes["interpolation"] = interpolation
        if crop is not None:
            size_or_none = parse_size(crop, "--crop")
            changes["crop"] = (size_or_none,) * 2 if isinstance(size_or_none, int) else size_or_none
        if channels is not None:
            changes["channels"] = channels
        if not changes:
            return self
        flags = "flags " + " ".join(f"--{key}" for key in changes if key != "interpolation")
        source = flags if self.source == "nothing" else f"{self.source}, {flags}"
        return replace(self, **changes, source=source)

    def require(self, target_shape: Shape) -> None:
        """Raises the error that names what nobody said, and the flags that would say it."""
        C = self.extents(target_shape)[0]
        flags = {"channels": "--channels rgb|bgr", "mean": "--mean R,G,B", "std": "--std R,G,B"}
        missing = [key for key in flags if getattr(self, key) is None and (key, C) != ("channels", 1)]
        if missing:
            raise InputError(f"nothing says how a picture becomes this input: {', '.join(missing)} unknown",
                             remedy=f"give {' '.join(flags[key] for key in missing)} (mean and std in units "
                                    "of 0..255), or write them into MODEL.json beside MODEL.onnx")
        wanted = 1 if self.channels in (None, "gray") else 3
        if C not in (None, wanted):
            raise InputError("the network's channels aren't the picture's", expected=f"{C} channels",
                             found=f"channels {self.channels}", accepted="gray for 1, rgb or bgr for 3")
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, wanted):
                raise InputError(f"{key} has more numbers than channels", expected=wanted, found=values)

    def extents(self, target_shape: Shape) -> tuple[int | None, int | None, int | None]:
        """C, H, W of an input's shape, None where it is left open."""
        if len(target_shape) != 4:
            raise InputError("a picture needs an input of four dimensions", expected=self.layout,
                             found=tuple(target_shape))
        a, b, c = (d if isinstance(d, int) and d > 0 else None for d in target_shape[1:])
        return (a, b, c) if self.layout == "NCHW" else (c, a, b)

    def apply(self, picture: str | Path, target_shape: Shape) -> np.ndarray:
        """The picture as the network's input, a batch of one whatever the first extent of `target_shape`.

        Shapes  (1, C, H, W) float32, or (1, H, W, C) where the layout says so; extents that `target_shape`
                leaves open (None, a name, 0 and less) are the picture's after resize and crop
        Raises  InputError for what nobody said, a file that isn't a picture, a size that doesn't fit
        """
        self.require(target_shape)
        _, H, W = self.extents(target_shape)
        is_gray = self.channels in (None, "gray")
        try:
            image = self.fit(load_picture(picture, gray=is_gray, background=self.background))
        except InputError as error:
            raise error.at(file=picture) from None
        P, Q = image.height, image.width
        if (H or P, W or Q) != (P, Q):
            raise InputError("the picture's size isn't the network's", file=picture,
                             expected=f"height {H or 'any'}, width {W or 'any'}",
                             found=f"height {P}, width {Q}, resize {self.resize}, crop {self.crop}",
                             remedy=f"--resize SHORT_SIDE --crop {H or P}x{W or Q} as in training, "
                                    f"or --resize {H or P}x{W or Q} to stretch it")
        pixels = np.asarray(image, dtype=np.float32).reshape(P, Q, -1)  # (H, W, C)
        if self.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        values = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray((values if self.layout == "NHWC" else values.transpose(2, 0, 1))[None])

    def fit(self, image: Image) -> Image:
        """The picture resized and cropped."""
        from PIL import Image as pillow

        width, height = image.size
        if isinstance(self.resize, int):
            short = min(width, height)
            width, height = self.resize * width // short, self.resize * height // short
        elif self.resize is not None:
            height, width = self.resize
        if width * height > MAX_PIXELS:
            raise InputError("resizing would make the picture too large", found=f"{width} x {height} pixels",
                             accepted=f"{MAX_PIXELS:,} pixels")
        if (width, height) != image.size:
            image = image.resize((width, height), pillow.Resampling[self.interpolation.upper()])
        P, Q = self.crop or (height, width)
        if P > height or Q > width:
            raise InputError("the crop is larger than the picture", expected=f"height {P}, width {Q} or more",
                             found=f"height {height}, width {width}, resize {self.resize}",
                             remedy="--resize to at least the size of --crop")
        top, left = round((height - P) / 2), round((width - Q) / 2)
        return image.crop((left, top, left + Q, top + P))


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """What a network's output means: which tensor, what its numbers are, what its indices are called."""

    task: str | None = None
    output: str | None = None     # the tensor's name; None: the model's first output
    scores: str | None = None     # logits (before a softmax) or probabilities
    labels: tuple[str, ...] = ()  # by index; empty: nobody has said

    @classmethod
    def from_json(cls, path: str | Path) -> AnswerFormat:
        """What a sidecar says. Its `labels` is a list, or the name of a label file in the same folder."""
        said = {key: value for key, value in read_sidecar(path).items() if key in ANSWER_KEYS}
        try:
            check_choice("task", said.get("task"))
            check_choice("scores", said.get("scores"))
            if not isinstance(said.get("output", ""), str):
                raise InputError("output isn't the name of a tensor", found=said["output"])
            labels = said.get("labels", [])
            if isinstance(labels, str) and Path(labels).name != labels:
                raise InputError("labels must lie in the sidecar's own folder", found=labels)
        except InputError as error:
            raise error.at(file=path) from None
        if isinstance(labels, str):
            said["labels"] = load_labels(Path(path).parent / labels)
        else:
            said["labels"] = label_list(labels, file=path)
        return cls(**said)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One of the best answers. `probability` is None where nobody said what the scores are."""

    index: int
    score: float
    probability: float | None
    name: str | None


def sidecar(model: str | Path) -> Path | None:
    """MODEL.json beside MODEL.onnx, if there is one."""
    path = Path(model).with_suffix(".json")
    return path if path.is_file() else None


def find_preprocess(model: str | Path, metadata: Mapping[str, str] | None = None, *, mean: str | None = None,
                    std: str | None = None, resize: str | None = None, crop: str | None = None,
                    channels: str | None = None) -> tuple[Preprocess, AnswerFormat]:
    """All that is said about a model's pictures and answers: flags, else the sidecar, else the metadata."""
    path = sidecar(model)
    known = Preprocess.from_json(path) if path else Preprocess.from_metadata(metadata or {}, file=model)
    answer = AnswerFormat.from_json(path) if path else AnswerFormat()
    return known.with_flags(mean=mean, std=std, resize=resize, crop=crop, channels=channels), answer


def load_picture(path: str | Path, *, gray: bool = False,
                 background: tuple[int, int, int] = (255, 255, 255)) -> Image:
    """A picture file as 8-bit RGB or gray, upright, without transparency; of an animation, the first frame.

    Raises  InputError for a missing file, one that isn't a picture, a damaged or oversized one, and one whose
            numbers have no agreed range (32 bits, floating point)
    """
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError:
        raise InputError("reading pictures needs Pillow", file=path, remedy="pip install pillow") from None
    if not Path(path).exists():
        raise InputError("there is no such picture", file=path)
    if not Path(path).is_file():
        raise InputError("this isn't a file", file=path, expected="a picture")
    too_large = InputError("the picture is too large", file=path, accepted=f"{MAX_PIXELS:,} pixels")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures (checked here) and of odd metadata
            with pillow.open(path, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise too_large.at(found=f"{image.width} x {image.height}")
                image.load()
                ImageOps.exif_transpose(image, in_place=True)
                return to_8_bits(image, gray=gray, background=background)
    except InputError as error:
        raise error.at(file=path) from None
    except pillow.UnidentifiedImageError:
        raise InputError("this isn't a picture of a known kind", file=path,
                         accepted=", ".join(FORMATS)) from None
    except pillow.DecompressionBombError:
        raise too_large from None
    except PermissionError:
        raise InputError("the picture may not be read", file=path) from None
    except Exception as error:  # on damaged files Pillow raises OSError, SyntaxError, struct.error and more
        raise InputError("the picture is damaged or cut short", file=path, found=error) from None


def to_8_bits(image: Image, *, gray: bool, background: tuple[int, int, int]) -> Image:
    """RGB or gray whatever the mode was: palette, alpha, 1 and 16 bits, CMYK."""
    from PIL import Image as pillow

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        wide = np.asarray(image).astype(np.int64)  # 0..65535, which Pillow keeps in 32 bits for PGM files
        image = pillow.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise InputError("the picture's numbers have no agreed range", found=f"mode {image.mode}",
                         accepted="8 or 16 bits a channel")
    elif image.has_transparency_data:
        below = pillow.new("RGBA", image.size, (*background, 255))
        image = pillow.alpha_composite(below, image.convert("RGBA"))
    if image.mode not in ("1", "L"):
        image = image.convert("RGB")
    return image.convert("L" if gray else "RGB")


def load_labels(path: str | Path) -> tuple[str, ...]:
    """Class names by index: a JSON list, or a text file with one name a line."""
    text = read_text(path, "label file")
    if text.lstrip().startswith("["):
        return label_list(parse_json(text, path), file=path)
    return label_list(text.strip("\r\n").splitlines(), file=path)


def label_list(labels: Any, *, file: str | Path) -> tuple[str, ...]:
    """Checked names. An empty one in their midst is refused: those behind it might be off by one."""
    if not isinstance(labels, list) or not all(isinstance(name, str) and name.strip() for name in labels):
        raise InputError("the labels aren't a list of names, none of them empty", file=file)
    return tuple(name.strip() for name in labels)


def top_k(scores: np.ndarray, k: int = 5, *, kind: str | None = None,
          labels: Sequence[str] = ()) -> list[Ranked]:
    """The k best classes of one picture, best first; of equals the lower index first.

    Without `kind`, scores that are a distribution (none negative, sum 1 within 0.001) are taken for
    probabilities; others are ranked, and no probability is made up for them.

    Shapes  (C,), or (1, C), (1, C, 1, 1) and the like
    Raises  InputError for several pictures, scores that aren't finite, labels of another number, k below 1
    """
    check_choice("scores", kind)
    values = np.asarray(scores, dtype=np.float64)
    if values.size == 0 or values.size != max(values.shape, default=1):
        raise InputError("scores must be those of one picture", expected="(1, C)", found=values.shape)
    values = values.reshape(-1)
    if k < 1:
        raise InputError("the number of answers must be 1 or more", found=k)
    if not np.isfinite(values).all():
        raise InputError("the scores aren't all finite", found=f"{(~np.isfinite(values)).sum()} that aren't")
    if labels and len(labels) != values.size:
        raise InputError("there aren't as many labels as scores", expected=values.size, found=len(labels))
    probabilities: np.ndarray | None = None
    if kind == "logits":
        powers = np.exp(values - values.max())
        probabilities = powers / powers.sum()
    elif kind == "probabilities" or (values.min() >= 0 and abs(values.sum() - 1) < 1e-3):
        probabilities = values
    best = np.argsort(-values, kind="stable")[:k]
    return [Ranked(index=int(i), score=float(values[i]),
                   probability=None if probabilities is None else float(probabilities[i]),
                   name=labels[i] if labels else None) for i in best]


def read_sidecar(path: str | Path) -> dict[str, Any]:
    """A sidecar's JSON object with its keys checked; null is the same as a key left out."""
    fields = parse_json(read_text(path, "sidecar"), path)
    unknown = sorted(set(fields) - set(SIDECAR_KEYS)) if isinstance(fields, dict) else [type(fields).__name__]
    if unknown:
        raise InputError("a sidecar is a JSON object of known keys", file=path, found=", ".join(unknown),
                         accepted=", ".join(SIDECAR_KEYS))
    return {key: value for key, value in fields.items() if value is not None}


def read_text(path: str | Path, what: str) -> str:
    """A small UTF-8 file."""
    try:
        if Path(path).stat().st_size > MAX_TEXT_BYTES:
            raise InputError(f"the {what} is too large", file=path, accepted=f"{MAX_TEXT_BYTES:,} bytes")
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a zero byte
        raise InputError(f"the {what} can't be read as UTF-8 text", file=path, found=error) from None


def parse_json(text: str, path: str | Path) -> Any:
    """Parsed JSON, or an error that says where it breaks."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("the file isn't valid JSON", file=path, found=error) from None


def check_choice(key: str, value: Any) -> None:
    """None, or one of the words there are for this key."""
    if value is not None and value not in CHOICES[key]:
        raise InputError(f"{key} isn't one there is", found=repr(value), accepted=", ".join(CHOICES[key]))


def listed(value: Any, key: str, kind: type, counts: tuple[int, ...]) -> tuple[Any, ...]:
    """A JSON number or list of numbers as a tuple of this kind and of one of these lengths."""
    values = value if isinstance(value, list) else [value]
    fits = len(values) in counts and all(type(v) in (int, kind) and abs(v) < 1e9 for v in values)
    if not fits:
        raise InputError(f"{key} has the wrong numbers", found=value, expected=f"{kind.__name__}, "
                         f"{' or '.join(map(str, counts))} of them")
    return tuple(kind(v) for v in values)


def parse_numbers(text: str, flag: str) -> tuple[float, ...]:
    """`123.7,116.3,103.5` or `127`, as typed behind a flag."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{flag} must be numbers with commas between", found=repr(text),
                         accepted="one for all channels, or one for each") from None


def parse_size(text: str, flag: str) -> int | tuple[int, int] | None:
    """`256`, `224x160` (height x width) or `none`, as typed behind a flag."""
    if text.lower() == "none":
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InputError(f"{flag} must be a size in pixels", found=repr(text),
                         accepted="256, 224x160 or none")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))
