"""What commands answer to mistakes; ``messages.txt`` has one line for each."""

import re
import shlex
from pathlib import Path

import pytest

LINES = Path(__file__).with_name("messages.txt").read_text().splitlines()
ROW = re.compile(r"(\d) \| (.*?) *\| (\S.*)")  # no part is empty: every message contains an empty text
MESSAGES = [ROW.fullmatch(line).groups() for line in LINES if line and line[0] != "#"]
FILES = {
    "bad.py": "config = dict(env=dict(env_id='CartPole-v1'), policy=dict(collect=dict(discount_factor=1.5), "
    "learn=dict(gamma=0.9, batch_size='64', learning_rat=1e-3)))",
    "empty.py": "x = 1\n",
    "list.json": "[1]",
    "cut.json": '{"a": 1',
    "exit.py": "import sys\nsys.exit(0)\n",
    "raises.py": "1 / 0\n",
    "syntax.py": "seed = 3\nconfig = dict(seed=seed\n",
    # In the working folder it is found before an installed one, and behaves as one that is not there.
    "ale_py.py": "raise ModuleNotFoundError(\"No module named 'ale_py'\", name='ale_py')\n",
    "fails.py": """\
import gymnasium as gym


class Fails(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        raise ValueError("mine")


config = dict(exp_name="fails", env=dict(type=Fails))
""",
    "there/log.txt": "",
}


@pytest.mark.parametrize(("code", "words", "part"), MESSAGES, ids=[words for _, words, _ in MESSAGES])
def test_mistake_is_answered_in_one_paragraph(code, words, part, ding_lite, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = ding_lite(*shlex.split(words))
    assert done.code == int(code), done.err
    assert part in (done.err or done.out)  # check-env prints its findings
    assert "Traceback" not in done.err
    assert set(FILES) | {"tiny.py"} == {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and not {"__pycache__", "runs"} & set(path.parts)
    }
