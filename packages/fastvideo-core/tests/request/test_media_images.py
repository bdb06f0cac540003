from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.images import MAX_IMAGE_PIXELS, load_image

GENERATOR_SEED = 3


def noise(height=20, width=30, channels=3):
    return np.random.default_rng(GENERATOR_SEED).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_come_back_exactly(tmp_path, kind):
    pixels = noise()
    data = encoded(Image.fromarray(pixels), kind, **({"lossless": True} if kind == "WEBP" else {}))
    path = tmp_path / "image.bin"
    path.write_bytes(data)
    for source in (data, path, str(path), Image.fromarray(pixels), pixels):
        assert np.array_equal(load_image(source), pixels)


def test_jpeg_is_near():
    pixels = np.full((16, 16, 3), (200, 40, 90), np.uint8)
    loaded = load_image(encoded(Image.fromarray(pixels), "JPEG", quality=95))
    assert np.abs(loaded.astype(int) - pixels).max() <= 3


def test_the_first_picture_of_an_animation():
    first, second = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    assert (load_image(encoded(first, "GIF", save_all=True, append_images=[second])) == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    """An upright picture, stored the other way round, is upright again; TIFF 6.0, tag 274."""
    upright = noise(12, 18)
    store = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: a[:, ::-1].swapaxes(0, 1)[::-1, ::-1],
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: a[:, ::-1].swapaxes(0, 1),
    }[orientation]
    # 6 is shown by a quarter turn clockwise, so it is stored turned counterclockwise; 8 the other way.
    stored = {6: np.rot90(upright, 1), 8: np.rot90(upright, -1)}.get(orientation, store(upright))
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    assert np.array_equal(load_image(data), upright)


def test_transparency_lies_over_white():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0] = [(255, 0, 0, 255), (255, 0, 0, 0), (0, 0, 0, 128)]
    expected = [[255, 0, 0], [255, 255, 255], [127, 127, 127]]
    for source in (encoded(Image.fromarray(pixels)), pixels):
        assert np.abs(load_image(source)[0].astype(int) - expected).max() <= 1


def test_transparent_palettes():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    assert load_image(encoded(image)).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    assert load_image(encoded(image, transparency=1)).tolist() == [[[255, 0, 0], [255, 255, 255]]]


def test_grey_with_alpha():
    image = Image.new("LA", (1, 1), (0, 0))
    assert load_image(encoded(image)).tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (65535, 255), (32768, 128), (257 * 77, 77)])
def test_sixteen_bit_grey_keeps_its_brightness(value, expected):
    wide = np.full((3, 4), value, np.uint16)
    assert (load_image(encoded(Image.fromarray(wide))) == expected).all()
    assert (load_image(wide) == expected).all()


def test_sixteen_bit_colour():
    """Pillow does not write such files, so this one is put together by hand from the PNG specification."""
    row = b"\0" + struct.pack(">HHH", 65535, 257 * 100, 0)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(row)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    assert load_image(data).tolist() == [[[255, 100, 0]]]


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "RGBX"])
def test_other_modes_become_rgb(mode):
    image = Image.new("RGB", (4, 4), "white").convert(mode)
    kind = "TIFF" if mode in {"CMYK", "RGBX"} else "PNG"
    assert np.abs(load_image(encoded(image, kind)).astype(int) - 255).max() <= 1


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((2, 3), 7, np.uint8), 7),
        (np.full((2, 3, 1), 7, np.uint8), 7),
        (np.full((2, 3, 3), 0.5, np.float32), 128),
        (np.ones((2, 3), np.float64), 255),
    ],
)
def test_arrays(array, expected):
    loaded = load_image(array)
    assert loaded.shape == (2, 3, 3)
    assert loaded.dtype == np.uint8
    assert (loaded == expected).all()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3, 2), np.uint8),
        np.zeros((3, 4, 5, 3), np.uint8),
        np.zeros((0, 3, 3), np.uint8),
        np.zeros((2, 3), np.int32),
        np.full((2, 3), np.nan),
        np.full((2, 3), -1.0),
        np.full((2, 3), 255.0),
    ],
)
def test_arrays_that_are_no_images(array):
    with pytest.raises(MediaError):
        load_image(array)


def test_floats_have_no_brightness():
    with pytest.raises(MediaError, match="no defined brightness"):
        load_image(encoded(Image.new("F", (2, 2), 0.5), "TIFF"))
    with pytest.raises(MediaError, match="no defined brightness"):
        load_image(Image.new("I", (2, 2), 100_000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"hello", "not an image that can be read; allowed: PNG, JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (b"\x89PNG\r\n\x1a\n", "not an image"),
    ],
)
def test_files_that_are_no_images(tmp_path, data, message):
    path = tmp_path / "image.png"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(MediaError, match=message) as caught:
            load_image(source, field="last_image")
        assert caught.value.field == "last_image"
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_truncated_files(kind):
    data = encoded(Image.fromarray(noise(64, 64)), kind)
    for keep in (0.5, 0.9):
        with pytest.raises(MediaError):
            load_image(data[: int(len(data) * keep)])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF"])
def test_damaged_files_never_raise_anything_else(kind):
    data = encoded(Image.fromarray(noise(24, 24)), kind)
    generator = np.random.default_rng(0)
    for _ in range(60):
        broken = bytearray(data)
        for place in generator.integers(0, len(data), 6):
            broken[place] = int(generator.integers(0, 256))
        with contextlib.suppress(MediaError):
            assert load_image(bytes(broken)).shape[2] == 3


def test_missing_folder_and_device(tmp_path):
    with pytest.raises(MediaError, match="no such file"):
        load_image(tmp_path / "gone.png")
    with pytest.raises(MediaError, match="no such file"):
        load_image("https://example.com/image.png")
    with pytest.raises(MediaError, match="is a folder, not the file of an image"):
        load_image(tmp_path)
    with pytest.raises(MediaError, match="cannot be read"):
        load_image("a\0b.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(MediaError, match="no ordinary file"):
        load_image(tmp_path / "pipe.png")


def bomb(width, height):
    """A valid PNG head of that size, with next to nothing behind it."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


@pytest.mark.parametrize("size", [(8001, 8000), (10_000, 10_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_decompression_bombs_are_refused_by_their_head(size):
    with pytest.raises(MediaError, match="too large"):
        load_image(bomb(*size))


def test_limits():
    assert MAX_IMAGE_PIXELS >= 8000 * 8000
    data = encoded(Image.fromarray(noise()))
    with pytest.raises(MediaError, match=r"too large: 30x20; allowed: 0\.0005 million"):
        load_image(data, max_pixels=500)
    with pytest.raises(MediaError, match="too large: 30x20"):
        load_image(noise(), max_pixels=500)
    with pytest.raises(MediaError, match="too large for an image"):
        load_image(data, max_bytes=100)
