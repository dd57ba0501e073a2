"""What started processes make of the main module, without starting one."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
import types
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from lrl.actors.exploration import Greedy
from lrl.envs import EnvConfig
from lrl.processes.main_module import check_main_guard, check_parts, without_missing_main
from lrl.types import ConfigError


@pytest.fixture
def main(monkeypatch):
    """A main module of its own, as a notebook has: without a file."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def run_script(main: types.ModuleType, folder: Path, text: str) -> None:
    """Run a script as `python script.py` does."""
    path = folder / "script.py"
    path.write_text(text)
    main.__file__ = str(path)
    vars(main)["start"] = check_main_guard
    exec(compile(text, str(path), "exec"), vars(main))


UNGUARDED = {  # with the line that starts processes
    "a call": (1, "start()\n"),
    "a function": (6, "def work():\n    if True:\n        start()\n\n\nwork()\n"),
    "a block": (3, "with open(__file__):\n    for _ in range(3):\n        start()\n"),
    "beside a guard": (3, "if __name__ == '__main__':\n    pass\nstart()\n"),
}
GUARDED = {
    "the usual one": "if __name__ == '__main__':\n    start()\n",
    "in a block": "with open(__file__):\n    if __name__ == '__main__':\n        start()\n",
    "an expression": "__name__ == '__main__' and start()\n",
    "another condition": "import os\nif 'RANK' not in os.environ:\n    start()\n",
}


@pytest.mark.parametrize("name", UNGUARDED)
def test_a_script_that_would_start_again_is_ended_with_a_sentence(name, main, tmp_path):
    line, text = UNGUARDED[name]
    with pytest.raises(SystemExit) as caught:
        run_script(main, tmp_path, text)
    assert str(caught.value.code).startswith(f"lrl: error: line {line} of script.py starts")
    assert "put the script's work under `if __name__ == '__main__':`" in str(caught.value.code)


@pytest.mark.parametrize("name", GUARDED)
def test_a_script_with_a_condition_goes_on(name, main, tmp_path):
    run_script(main, tmp_path, GUARDED[name])


def test_a_process_that_imports_the_script_ends_silently(main, monkeypatch):
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_inheriting", True, raising=False)
    with pytest.raises(SystemExit) as caught:
        check_main_guard()
    assert caught.value.code == 1


@pytest.mark.parametrize("how", ["no file", "a package", "standard input"])
def test_what_processes_do_not_run_again_needs_no_guard(how, main, tmp_path):
    vars(main)["start"] = check_main_guard
    if how == "standard input":
        main.__file__ = "<stdin>"
    elif how == "a package":
        path = tmp_path / "__main__.py"
        path.write_text("start()\n")
        main.__file__ = str(path)
        main.__spec__ = ModuleSpec("package.__main__", None)
    exec(compile("start()\n", "anything", "exec"), vars(main))


def test_a_file_that_is_none_is_hidden_while_processes_start(main):
    main.__file__ = "<stdin>"
    with without_missing_main():
        assert not hasattr(main, "__file__")
    assert main.__file__ == "<stdin>"
    main.__file__ = __file__
    with without_missing_main():
        assert main.__file__ == __file__


def test_threads_hide_it_one_after_the_other(main):
    main.__file__, found = "<stdin>", []

    def start() -> None:
        with without_missing_main():
            found.append(hasattr(main, "__file__"))
            time.sleep(0.1)
            found.append(hasattr(main, "__file__"))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join()
    assert found == [False] * 6
    assert main.__file__ == "<stdin>"


class Mine(Greedy):
    """As if it were defined in a cell."""


def test_parts_of_a_notebook_are_named(main, monkeypatch):
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.setattr(main, "Mine", Mine, raising=False)
    named = {"class_path": "__main__.Mine"}
    for part in (Mine(), partial(Mine), named, "__main__:Mine", EnvConfig(factory="__main__.Mine")):
        with pytest.raises(ConfigError, match=r"^Mine is defined in a notebook.*a module \(a \.py"):
            check_parts("CartPole-v1", part)
    check_parts(Greedy(), partial(Greedy), {"class_path": "lrl.networks.MLPEncoder"})
    main.__file__ = __file__
    check_parts(Mine())


def test_what_cannot_be_pickled_is_left_to_the_start_of_processes(main):
    check_parts(lambda: None, iter([]))
