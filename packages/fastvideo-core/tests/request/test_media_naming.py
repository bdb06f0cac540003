from __future__ import annotations

import itertools
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.errors import ParameterError
from fastvideo_core.request.media.naming import MAX_STEM_BYTES, check_stem, default_stem, numbered, slugify


@pytest.mark.parametrize(
    ("prompt", "slug"),
    [
        ("a red circle moving right", "a-red-circle-moving-right"),
        ("  A  Cat, on a mat!  ", "A-Cat-on-a-mat"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "video"),
        (".hidden", "hidden"),
        ('a\\b:c*d?e"f<g>h|i', "a-b-c-d-e-f-g-h-i"),
        ("line\nbreak\0zero\x1b[31m", "line-break-zero-31m"),
        ("-rf *", "rf"),
        ("ein grüner Kreis", "ein-grüner-Kreis"),
        ("gru\u0308n", "grün"),
        ("红色圆圈向右移动", "红色圆圈向右移动"),
        ("नमस्ते दुनिया", "नमस्ते-दुनिया"),
        ("a 🐈 sits", "a-sits"),
        ("🐈", "video"),
        ("", "video"),
        ("CON", "CON-"),
        ("com1", "com1-"),
        ("console", "console"),
        ("snake_case", "snake_case"),
        ("\u202eevil", "evil"),
        ("bad \udcff byte", "bad-byte"),
    ],
)
def test_slugs(prompt, slug):
    assert slugify(prompt) == slug


@given(st.text(max_size=300))
def test_slugs_are_always_plain_names(prompt):
    slug = slugify(prompt)
    encoded = slug.encode()
    assert 0 < len(encoded) <= MAX_STEM_BYTES
    assert Path(slug).name == slug
    assert not slug.startswith(("-", "."))
    assert not set(slug) & set('/\\:*?"<>|. \0')
    assert all(unicodedata.category(character)[0] not in "CZ" for character in slug)
    assert slug == unicodedata.normalize("NFC", slug)
    assert check_stem(slug) == slug


@given(st.text(max_size=300), st.integers(0, 2**64))
def test_default_names_end_in_the_seed_and_fit(prompt, seed):
    stem = default_stem(prompt, seed)
    assert stem.endswith(f"-{seed}")
    assert len(stem.encode()) <= MAX_STEM_BYTES


def test_default_name_for_the_readme():
    assert default_stem("a red circle moving right", 7) == "a-red-circle-moving-right-7"


def test_long_names_are_cut_between_characters():
    slug = slugify("é" * 100, max_bytes=21)
    assert slug == "é" * 10


@pytest.mark.parametrize("name", ["a", "0007", "shot 3 (final)", "a.b", "x_y-z+1@2,3", "圆"])
def test_ordinary_ids_are_kept(name):
    assert check_stem(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc/x", "a/b", "a\\b", "c:x", ".hidden", "x.", "x ", " x", "-x", "nul", "NUL.txt", "a\0b"]
    + ["a\nb", "x" * 121, "bad\udcff"],
)
def test_ids_that_are_paths_or_worse_are_refused(name):
    with pytest.raises(ParameterError, match="not usable as a file name") as caught:
        check_stem(name)
    assert caught.value.field == "id"
    assert check_stem(caught.value.nearest) == caught.value.nearest
    assert "\n" not in str(caught.value)


def test_numbered_names():
    names = itertools.islice(numbered(Path("out/a.b.mp4")), 3)
    assert list(names) == [Path("out/a.b.mp4"), Path("out/a.b-2.mp4"), Path("out/a.b-3.mp4")]
