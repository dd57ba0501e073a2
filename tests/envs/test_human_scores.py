import pytest
from ale_py import roms

from lrl.envs.atari import RANDOM_AND_HUMAN, human_normalised


def test_there_are_57_games_and_all_are_of_ale_py():
    assert len(RANDOM_AND_HUMAN) == 57
    assert RANDOM_AND_HUMAN.keys() <= set(roms.get_all_rom_ids())
    assert all(random < human for random, human in RANDOM_AND_HUMAN.values())


@pytest.mark.parametrize("game", RANDOM_AND_HUMAN)
def test_random_play_is_0_and_a_human_is_1(game: str):
    random, human = RANDOM_AND_HUMAN[game]
    assert human_normalised(game, random) == 0.0
    assert human_normalised(game, human) == 1.0


@pytest.mark.parametrize(
    ("game", "score", "expected"),
    [
        ("pong", 21.0, 41.7 / 35.3),  # (21 + 20.7) / (14.6 + 20.7)
        ("breakout", 401.2, 399.5 / 28.8),  # DQN of Mnih et al. 2015
        ("double_dunk", -20.8, -1.0),
        ("adventure", 1.0, None),
        ("CartPole-v1", 500.0, None),
    ],
)
def test_by_hand(game: str, score: float, expected: float | None):
    result = human_normalised(game, score)
    assert result == (None if expected is None else pytest.approx(expected))
