"""Event files, read back as TensorBoard does: records of a length, a checksum, an event, a checksum."""

import importlib.util
import math
import struct

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from ding_lite.run.trackers import TensorboardTracker, TrackedRun


def tracker(folder, resume_at=None, config=None):
    return TensorboardTracker(TrackedRun(folder, config or {}, resume_at, identity={}))


def events(file):
    data, records = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        records.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return records


def events_in(folder):
    (file,) = (folder / "tb").iterdir()
    return events(file)


def scalars(event):
    return {value.tag: value.simple_value for value in event.summary.value}


def test_rows_are_read_back_under_their_steps(tmp_path):
    file = tracker(tmp_path)
    file.scalars(100, {"learn/policy_loss": 0.5, "collect/episode_return": 3})
    file.scalars(200, {"learn/policy_loss": math.nan})
    file.close()
    head, _, first, second = events_in(tmp_path)
    assert head.file_version == "brain.Event:2"
    assert (first.step, scalars(first)) == (100, {"learn/policy_loss": 0.5, "collect/episode_return": 3.0})
    assert second.step == 200
    assert math.isnan(scalars(second)["learn/policy_loss"])


def test_a_row_can_be_seen_before_the_file_is_closed(tmp_path):
    file = tracker(tmp_path)
    assert [event.step for event in events_in(tmp_path)] == [0, 0]  # the head and the config
    file.close()


def test_a_session_that_goes_on_has_a_file_of_its_own_and_hides_what_came_later(tmp_path):
    for resume_at in (None, 150):
        file = tracker(tmp_path, resume_at)
        file.scalars(150, {"a/b": 1.0})
        file.close()
    first, second = sorted((tmp_path / "tb").iterdir())  # both within a second
    assert [e.session_log.status for e in events(first)] == [0, 0, 0]
    _, start, config, row = events(second)
    assert (start.step, start.session_log.status) == (151, SessionLog.START)
    assert (config.step, row.step) == (150, 150)


def test_histogram_has_the_values_and_the_config_is_text(tmp_path):
    file = tracker(tmp_path, config={"seed": 3})
    values = np.repeat([0.0, 1.0, 4.0], [5, 2, 1])
    file.histogram(100, "collect/action", values)
    file.close()
    _, config, histogram = events_in(tmp_path)
    (text,) = config.summary.value
    assert text.metadata.plugin_data.plugin_name == "text"
    assert b'"seed": 3' in text.tensor.string_val[0]
    (value,) = histogram.summary.value
    assert (histogram.step, value.tag, value.histo.num) == (100, "collect/action", 8)
    assert (value.histo.min, value.histo.max, value.histo.sum) == (0.0, 4.0, values.sum())
    filled = {
        round(limit): count
        for limit, count in zip(value.histo.bucket_limit, value.histo.bucket, strict=True)
        if count
    }
    assert filled == {0: 5, 1: 2, 4: 1}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="needs the extra video")
# moviepy leaves the pipes of ffmpeg to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_video_is_shown_as_a_gif(tmp_path):
    from moviepy import ImageSequenceClip

    frames = [np.full((32, 48, 3), shade, np.uint8) for shade in range(0, 240, 12)]
    ImageSequenceClip(frames, fps=20).write_videofile(str(tmp_path / "v.mp4"), logger=None)
    file = tracker(tmp_path)
    file.video(100, "eval/episode", tmp_path / "v.mp4")
    file.close()
    *_, event = events_in(tmp_path)
    (value,) = event.summary.value
    assert (value.tag, value.image.width, value.image.height) == ("eval/episode", 48, 32)
    assert value.image.encoded_image_string[:6] == b"GIF89a"
