"""Which words `lrl completion` knows."""

from __future__ import annotations

import sys

import pytest
from helpers.command_line import quiet_commands

from lrl.cli.command_list import COMMANDS
from lrl.cli.completion import all_commands
from lrl.cli.shells import FILES

pytestmark = quiet_commands


@pytest.mark.slow
def test_commands_have_their_settings_and_values(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lrl", "completion", "bash"])
    commands = all_commands()
    assert list(commands) == list(COMMANDS)
    fit = commands["fit"].options
    assert len(fit) > 150
    assert fit["--data.actors.on_failure"] == ("restart", "fail")
    assert fit["--trainer.enable_progress_bar"] == ("true", "false")
    assert {"recipe:pong", FILES} <= set(fit["--config"])
    assert {"--model.optimizer.init_args.lr", "--data.env.atari.frame_skip"} <= set(fit)
    assert fit["--ckpt_path"] == commands["evaluate"].options["--ckpt_path"]
    assert commands["completion"].first == ("bash", "zsh", "fish")
    assert "cartpole" in commands["recipes"].first
    for command in commands.values():
        assert not [option for option in command.options if " " in option or option[0] != "-"]
