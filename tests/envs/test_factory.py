"""Environments made by a function or class of the user's, given by path or itself."""

import functools
import multiprocessing
import os
import pickle
import subprocess
import sys

import pytest
from helpers import factories
from helpers.envs_rollout import rollout
from helpers.factories import Corridor, make_corridor

from lrl.envs import AtariConfig, EnvConfig, WrapperConfig, make_envs, make_spec
from lrl.parts import factory
from lrl.types import ConfigError, EnvSpec

PATH = "helpers.factories.make_corridor"
RIGHT = [1, 1]


def lengths(config: EnvConfig, steps: int = 12) -> list[int]:
    """Return the lengths of the first environment's episodes if it goes right."""
    envs = make_envs(config, 2, training=True)
    envs.reset([0, 1])
    found, length = [], 0
    for _ in range(steps):
        step = envs.step(RIGHT)
        length += 1
        if step.terminated[0] or step.truncated[0]:
            found.append(length)
            length = -1  # the next step resets
    return found


@pytest.mark.parametrize("given", [PATH, make_corridor])
def test_a_factory_makes_the_environment_with_its_arguments(given):
    config = EnvConfig(factory=given, kwargs={"length": 3})
    assert config == EnvConfig(factory=PATH, kwargs={"length": 3})
    assert (config.factory, config.id, config.kind) == (PATH, PATH, "gymnasium")
    assert make_spec(config) == EnvSpec.box((1,), "float32", 2)
    assert lengths(config) == [3, 3, 3]


def test_a_class_is_a_factory_and_the_id_its_name():
    config = EnvConfig("corridor", {"length": 5}, factory=Corridor)
    assert config.factory == "helpers.factories.Corridor"
    assert config.id == "corridor"
    assert lengths(config) == [5, 5]


def test_wrappers_stacks_and_limits_apply_as_for_ids():
    rescale = WrapperConfig("gymnasium.wrappers.RescaleObservation", {"min_obs": 0, "max_obs": 8})
    config = EnvConfig(
        factory=PATH, kwargs={"length": 4}, wrappers=[rescale], frame_stack=2, max_episode_steps=3
    )
    envs = make_envs(config, 1, training=True)
    assert envs.reset([0]).tolist() == [[[0.0], [0.0]]]
    steps = [envs.step([1]) for _ in range(3)]
    assert [step.observation.tolist() for step in steps[:2]] == [[[[0.0], [2.0]]], [[[2.0], [4.0]]]]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True]
    assert lengths(EnvConfig(factory=PATH, kwargs={"limit": 2})) == [2, 2, 2, 2]
    shorter = EnvConfig(factory=PATH, kwargs={"limit": 9}, max_episode_steps=2)
    assert lengths(shorter) == [2, 2, 2, 2]


def test_masks_are_asked_of_what_a_factory_makes():
    config = EnvConfig(factory="lrl.envs.toy.Masked", action_masks=True)
    envs = make_envs(config, 1, training=True)
    envs.reset([0])
    assert envs.action_mask is not None
    assert make_spec(config) == make_spec(EnvConfig("lrl/Masked-v0", action_masks=True))


class Call:
    def __call__(self):
        return Corridor()


def local_functions():
    def inner():
        return Corridor()

    return inner, lambda: Corridor(), functools.partial(make_corridor, 3), Call()


@pytest.mark.parametrize("given", local_functions(), ids=["inner", "lambda", "partial", "object"])
def test_what_has_no_path_is_refused(given):
    with pytest.raises(ConfigError, match=r"env\.factory is .* top level of a module.*env\.kwargs"):
        EnvConfig(factory=given)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"factory": "make_env"}, r"env\.factory is 'make_env', but must be a full import path"),
        ({"factory": 3}, r"env\.factory is 3, but must be text or a function or class or null"),
        ({"factory": PATH, "atari": AtariConfig(noop_max=0)}, r"env\.atari\.noop_max is 0"),
        ({"factory": PATH, "id": "ALE/Pong-v5"}, "env.id is 'ALE/Pong-v5', .* a name of your own"),
        ({"factory": PATH, "id": "Acrobot-v1"}, "env.id is 'Acrobot-v1', .* not that of another"),
        ({"factory": PATH, "id": "a:b"}, rf"env.id is 'a:b', .* since env\.factory is '{PATH}'"),
    ],
)
def test_settings_that_do_not_fit_a_factory_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        EnvConfig(**settings)


@pytest.mark.parametrize(
    ("path", "kwargs", "text"),
    [
        ("no_such_module.make", {}, "ModuleNotFoundError: .* in its folder, or .* on PYTHONPATH"),
        ("misses_a_module.make", {}, r"No module named 'no_such.*misses_a_module\.py, line 1\)"),
        ("helpers.factories.missing", {}, "helpers.factories has no function or class 'missing'"),
        ("helpers.factories.NOT_CALLABLE", {}, "no function or class 'NOT_CALLABLE'"),
        ("helpers.factories.make_text", {}, "returned 'a corridor', but must return a gymnasium.E"),
        ("helpers.factories.make_vector", {}, "must return a gymnasium.Env .not a vector"),
        ("helpers.factories.make_shared", {}, "returned the same environment twice"),
        ("helpers.factories.fail", {}, "RuntimeError: the corridor is closed .*factories.py, line"),
        (PATH, {"size": 3}, r"with env.kwargs {'size': 3} cannot be made: TypeError"),
        ("__main__.make_somewhere_else", {}, "of the script .* which this process cannot find"),
    ],
)
def test_a_factory_that_makes_no_environment_is_named(path, kwargs, text, tmp_path, monkeypatch):
    (tmp_path / "misses_a_module.py").write_text("import no_such_module_either")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"env\.factory (is )?'{path}'.*{text}"):
        make_envs(EnvConfig(factory=path, kwargs=kwargs), 2, training=True)


def test_a_limit_that_the_factory_undercuts_is_refused():
    config = EnvConfig(factory=PATH, kwargs={"limit": 5}, max_episode_steps=9)
    with pytest.raises(ConfigError, match=r"max_episode_steps is 9, but .* after 5 steps"):
        make_spec(config)


def return_in_child(config, sender):
    """Run in another process, which knows nothing but its arguments."""
    rewards = [row[1] for row in rollout(make_envs(config, 2, training=True), [1, 2], 30)]
    sender.send([float(row[0]) for row in rewards])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_processes_import_it_by_its_path(method):
    config = EnvConfig(factory=make_corridor, kwargs={"length": 3})
    assert b"make_corridor" in pickle.dumps(config)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=return_in_child, args=(config, sender))
    process.start()
    assert receiver.poll(40), "the child sent nothing"
    expected = [row[1] for row in rollout(make_envs(config, 2, training=True), [1, 2], 30)]
    assert receiver.recv() == [float(row[0]) for row in expected]
    process.join(100)
    assert process.exitcode == 0


SCRIPT = """
import multiprocessing, sys
from helpers.factories import Corridor
from lrl.envs import EnvConfig, make_envs

def make_env(length):
    return Corridor(length)

def child(config):
    envs = make_envs(config, 1, training=True)
    envs.reset([0])
    sys.exit(10 + int(envs.step([1]).observation[0, 0] == 0.5))

if __name__ == "__main__":
    config = EnvConfig(factory=make_env, kwargs={"length": 2})
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=child, args=(config,))
        process.start()
        process.join()
        print(config.factory, process.exitcode)
"""


def test_a_function_of_a_guarded_script_is_found_in_its_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout.splitlines() == ["__main__.make_env 11"] * 2, done.stderr


def test_what_is_imported_can_be_imported_again():
    assert factory.find("helpers.factories.Corridor") is factories.Corridor
