"""Event files, read back as TensorBoard does: records of a length, a checksum, an event, a checksum."""

import math
import struct

from ding_lite.run.tensorboard import EventFile
from tensorboardX.proto.event_pb2 import Event, SessionLog


def events(file):
    data, records = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        records.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return records


def scalars(event):
    return {value.tag: value.simple_value for value in event.summary.value}


def test_rows_are_read_back_under_their_steps(tmp_path):
    file = EventFile(tmp_path / "tb")
    file.write(100, {"learn/policy_loss": 0.5, "collect/episode_return": 3})
    file.write(200, {"learn/policy_loss": math.nan})
    file.close()
    head, first, second = events(next((tmp_path / "tb").iterdir()))
    assert head.file_version == "brain.Event:2"
    assert (first.step, scalars(first)) == (100, {"learn/policy_loss": 0.5, "collect/episode_return": 3.0})
    assert second.step == 200
    assert math.isnan(scalars(second)["learn/policy_loss"])


def test_a_row_can_be_seen_before_the_file_is_closed(tmp_path):
    file = EventFile(tmp_path)
    file.write(1, {"a/b": 1.0})
    assert [event.step for event in events(next(tmp_path.iterdir()))] == [0, 1]
    file.close()


def test_a_session_that_goes_on_has_a_file_of_its_own_and_hides_what_came_later(tmp_path):
    for purge in (None, 151):
        file = EventFile(tmp_path, purge)
        file.write(150, {"a/b": 1.0})
        file.close()
    first, second = sorted(tmp_path.iterdir())  # both within a second
    assert [e.session_log.status for e in events(first)] == [0, 0]
    _, start, row = events(second)
    assert (start.step, start.session_log.status, row.step) == (151, SessionLog.START, 150)
