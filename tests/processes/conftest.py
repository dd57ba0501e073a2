"""The fixture of the manager's tests."""

from helpers.learner_fixture import learner as learner
