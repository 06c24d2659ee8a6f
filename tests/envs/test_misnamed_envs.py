"""An environment that is not found under its name is answered with the name that is probably meant."""

import pytest
from small_worlds import LengthEnv

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import ENV_REGISTRY
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.misnamed import env_classes
from ding_lite.errors import EnvError, RegistryError

POINT_MASS = """\
import gymnasium
from gymnasium import Env


class Space:
    pass


class {name}(gymnasium.Env[int, int]):
    pass


class Slow{name}({name}):
    pass
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def answer(make=make_env, **env):
    with pytest.raises((RegistryError, EnvError)) as caught:
        make(compile_config({"env": env}).values.env)
    return str(caught.value)


@pytest.mark.parametrize("module", ["arms/robot_arm", "arms/robot_arm.py", "./arms/robot_arm"])
def test_module_that_is_written_as_a_file_is_answered_with_dots(home, module):
    (home / "arms").mkdir()
    (home / "arms" / "robot_arm.py").write_text("raise SystemExit('it is imported')")
    assert answer(type=f"{module}:Arm").endswith("write arms.robot_arm:Arm")


def test_file_that_is_not_there_is_named():
    assert answer(type="arms/robot_leg:Leg").endswith("there is no file arms/robot_leg.py")


def test_file_elsewhere_is_answered_with_the_option_that_imports_it(home):
    file = home / "robot_arm.py"
    file.write_text("")
    assert answer(type=f"{file}:Arm").endswith(f"write robot_arm:Arm with --import {file}")


def test_class_in_the_place_of_an_id_is_answered_with_the_key_for_classes(home):
    (home / "id_point_mass.py").write_text(POINT_MASS.format(name="PointMass"))
    assert answer(env_id="id_point_mass:PointMass").endswith("write env.type=id_point_mass:PointMass.")


@pytest.mark.parametrize("manager", ["auto", "base", "subprocess"])
def test_registered_name_in_the_place_of_an_id_is_answered_with_the_key_for_types(manager):
    ENV_REGISTRY.register("id_grid", force=True)(LengthEnv)
    made = answer(lambda cfg: make_vector_env(cfg, 2, 0), env_id="id_grid", manager=manager)
    assert made.endswith("'id_grid' is registered in ENV_REGISTRY: write env.type='id_grid'.")
    assert "--import" not in made


def test_misspelt_class_is_answered_with_the_one_of_the_module(home):
    (home / "class_point_mass.py").write_text(POINT_MASS.format(name="PointMass"))
    text = answer(type="class_point_mass:PointMas")
    assert text.endswith("has no PointMas; did you mean class_point_mass:PointMass?")
    assert "Python path" not in text
    assert answer(type="class_point_mass:Tree").endswith("environments are: PointMass, SlowPointMass")
    assert answer(lambda env: make_vector_env(env, 2, 0), type="class_point_mass:PointMas") == text
    env = {"type": "class_point_mass:PointMas", "manager": "subprocess"}
    assert answer(lambda env: make_vector_env(env, 2, 0), **env) == text


def test_module_that_is_not_there_is_asked_about_its_folder():
    assert "No module named 'no_such_module'. Is its folder on the Python path?" in answer(
        type="no_such_module:A"
    )


@pytest.mark.parametrize("written", ["point_mass", "point_mass.py", "point_mass.PointMass"])
def test_id_that_is_the_name_of_a_file_is_answered_with_its_environments(home, written):
    text = POINT_MASS.format(name="PointMass")
    (home / "point_mass.py").write_text(f"raise SystemExit('it is imported')\n{text}")
    assert answer(env_id=written).endswith("Did you mean point_mass:PointMass or point_mass:SlowPointMass?")


def test_file_without_environments_is_not_suggested(home):
    (home / "point_mass.py").write_text("class Space: pass")
    (home / "broken.py").write_text("def (")
    for name in ("point_mass", "broken", "none"):
        assert "Did you mean" not in answer(env_id=name)
    assert env_classes(home / "broken.py") == []


def test_id_without_its_namespace_is_answered_with_it():
    pytest.importorskip("ale_py")
    assert answer(env_id="Breakout-v5").endswith("Did you mean ALE/Breakout-v5?")
