"""A name for the content of weights, for keys of caches and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import WeightFiles
from fastvideo_core.runtime.weights.header import FileHeader, TensorEntry

_SAMPLE_BYTES = 4096


def weights_version(*components: WeightFiles) -> str:
    """Return a short name that differs when weights differ, and does not depend on where or in which files they lie.

    It is a SHA-256 over every tensor's component, name, dtype, shape and sampled bytes: the first, middle and last
    4 KiB, so all of a tensor up to 12 KiB. Copying, renaming or re-sharding a checkpoint keeps it; training, merging
    an adapter or changing the number format changes it. A change inside one large tensor that leaves all three
    samples alone is not seen. Reads at most three pages or so a tensor.

    Returns:
        `w1-` and 24 hexadecimal digits; the prefix names this rule.

    Raises:
        CheckpointError: If a file cannot be read.
    """
    digest = hashlib.sha256()
    for component in sorted(components, key=lambda files: files.label):
        samples = {name: digest_ for header in component.headers for name, digest_ in _digest_tensors(header)}
        for name in sorted(samples):
            digest.update(repr((component.label, name)).encode() + samples[name])
    return f"w1-{digest.hexdigest()[:24]}"


def _digest_tensors(header: FileHeader) -> Iterator[tuple[str, bytes]]:
    try:
        with header.path.open("rb") as file:
            for entry in header.tensors.values():
                yield entry.name, _digest_tensor(file, entry)
    except OSError as error:
        raise CheckpointError(f"cannot read {header.path}: {error.strerror or error}") from error


def _digest_tensor(file: BinaryIO, entry: TensorEntry) -> bytes:
    digest = hashlib.sha256(repr((entry.dtype, entry.shape)).encode())
    if entry.num_bytes <= 3 * _SAMPLE_BYTES:
        file.seek(entry.start)
        digest.update(file.read(entry.num_bytes))
        return digest.digest()
    middle = entry.start + (entry.num_bytes - _SAMPLE_BYTES) // 2
    for offset in (entry.start, middle, entry.end - _SAMPLE_BYTES):
        file.seek(offset)
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
