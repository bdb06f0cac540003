from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from fastvideo_core.errors import ExecutionError, InputError
from fastvideo_core.request.media.fragments import FragmentEncoder


def frames(count, *, first=0, height=32, width=48):
    """Frames of one grey each, which gets lighter by five a frame."""
    levels = 20 + 5 * np.arange(first, first + count)
    return np.broadcast_to(levels[:, None, None, None], (count, height, width, 3)).astype(np.uint8)


def decoded(data):
    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0]
        found = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in file.decode(stream)]
        return stream.average_rate, found


@pytest.mark.parametrize("fps", [16, 8.0, Fraction(30000, 1001)])
def test_init_and_fragments_are_one_video_with_the_right_times(fps):
    encoder = FragmentEncoder(height=32, width=48, fps=fps)
    parts = [encoder.encode(frames(9)), encoder.encode(frames(12, first=9)), encoder.encode(frames(1, first=21))]
    _, found = decoded(encoder.init + b"".join(parts))
    assert encoder.num_frames == 22
    times = [time for time, _ in found]
    assert times == pytest.approx([number / float(fps) for number in range(22)], abs=1e-3)
    for number, (_, image) in enumerate(found):
        assert abs(image.astype(int).mean() - (20 + 5 * number)) < 3


def test_a_player_can_join_at_any_fragment():
    encoder = FragmentEncoder(height=32, width=48, fps=8)
    encoder.encode(frames(5))
    later = encoder.encode(frames(4, first=5))
    _, found = decoded(encoder.init + later)
    assert [round(time * 8) for time, _ in found] == [5, 6, 7, 8]
    assert abs(found[0][1].astype(int).mean() - 45) < 3


def test_each_fragment_is_complete_when_it_is_returned():
    encoder = FragmentEncoder(height=32, width=48, fps=8)
    data = b""
    for number in range(3):
        part = encoder.encode(frames(4, first=4 * number))
        data = (data or encoder.init) + part
        assert len(decoded(data)[1]) == 4 * (number + 1)


def test_what_cannot_be_encoded_is_refused():
    with pytest.raises(InputError, match="height=31"):
        FragmentEncoder(height=31, width=48, fps=8)
    encoder = FragmentEncoder(height=32, width=48, fps=8)
    with pytest.raises(ExecutionError, match="made with the first fragment"):
        _ = encoder.init
    for wrong in (frames(2, height=30), frames(0), frames(1)[0]):
        with pytest.raises(ExecutionError, match="does not take frames of shape"):
            encoder.encode(wrong)
