import signal
import threading
from collections.abc import Iterator

import pytest

from lrl.processes.ending import ending
from lrl.processes.interrupt import AT_ONCE, Interrupt


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = Interrupt()
    yield interrupt
    interrupt.uninstall()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def lightning() -> Iterator[list[int]]:
    """Takes SIGTERM over before, as the Trainer does."""
    heard: list[int] = []

    def hear(signum: int, frame: object) -> None:
        heard.append(signum)

    before = signal.signal(signal.SIGTERM, hear)
    yield heard
    assert signal.getsignal(signal.SIGTERM) is hear
    signal.signal(signal.SIGTERM, before)


def test_a_second_sigterm_raises_at_once_if_it_is_no_echo(interrupt, lightning, monkeypatch):
    now = 100.0
    monkeypatch.setattr("lrl.processes.interrupt.time.monotonic", lambda: now)
    interrupt.watch_sigterm(SystemExit)
    signal.raise_signal(signal.SIGTERM)
    now += 1.9
    signal.raise_signal(signal.SIGTERM)
    assert len(lightning) == 2
    now += 0.2
    with pytest.raises(SystemExit, match=AT_ONCE):
        signal.raise_signal(signal.SIGTERM)
    interrupt.release_sigterm()
    signal.raise_signal(signal.SIGTERM)
    assert len(lightning) == 3


def test_a_sigterm_of_an_earlier_run_does_not_count(interrupt, lightning, monkeypatch):
    now = 100.0
    monkeypatch.setattr("lrl.processes.interrupt.time.monotonic", lambda: now)
    for _ in range(2):
        interrupt.watch_sigterm(SystemExit)
        signal.raise_signal(signal.SIGTERM)
        interrupt.uninstall()
        now += 60.0
    assert len(lightning) == 2


def assert_quiet(interrupt: Interrupt) -> None:
    """Check without letting a wrong KeyboardInterrupt end the whole test session."""
    try:
        interrupt.check()
    except KeyboardInterrupt:
        pytest.fail("check raised although nothing was asked for")


def test_without_a_signal_nothing_happens(interrupt: Interrupt):
    interrupt.install()
    assert_quiet(interrupt)
    assert not interrupt.requested


def test_the_first_ctrl_c_waits_for_check_and_raises_once(interrupt: Interrupt):
    interrupt.install()
    signal.raise_signal(signal.SIGINT)
    assert interrupt.requested
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()
    assert_quiet(interrupt)


def test_the_second_ctrl_c_raises_at_once_and_settles_the_first(interrupt: Interrupt):
    interrupt.install()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert_quiet(interrupt)


def test_uninstall_gives_python_its_own_handler_back(interrupt: Interrupt):
    interrupt.install()
    interrupt.uninstall()
    interrupt.uninstall()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not interrupt.requested


def test_a_request_does_not_reach_the_next_run(interrupt: Interrupt):
    interrupt.install()
    signal.raise_signal(signal.SIGINT)
    interrupt.uninstall()
    interrupt.install()
    assert_quiet(interrupt)


def test_installing_twice_is_installing_once(interrupt: Interrupt):
    interrupt.install()
    interrupt.install()
    interrupt.uninstall()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_stays(interrupt: Interrupt):
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    interrupt.install()
    signal.raise_signal(signal.SIGINT)
    interrupt.uninstall()
    assert seen == [signal.SIGINT]
    assert not interrupt.requested
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_leave_signals_alone(interrupt: Interrupt):
    thread = threading.Thread(target=interrupt.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_says_that_it_came_in_the_middle(interrupt: Interrupt):
    interrupt.install()
    interrupt._handle(2, None)
    with pytest.raises(KeyboardInterrupt, match="at once"):
        interrupt._handle(2, None)
    interrupt.check()  # the request is spent


def test_once_given_back_it_waits_for_nobody_though_lightning_puts_it_back(interrupt: Interrupt):
    interrupt.install()
    handler = signal.getsignal(signal.SIGINT)
    interrupt.uninstall()
    signal.signal(signal.SIGINT, handler)  # as Lightning does at the end of an interrupted run
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interrupt.install()
    signal.raise_signal(signal.SIGINT)
    assert interrupt.requested


def test_once_given_back_it_leaves_ctrl_c_to_the_command_line(interrupt: Interrupt, monkeypatch):
    heard: list[int] = []
    monkeypatch.setattr(ending, "_end_at_once", lambda: heard.append(signal.SIGINT))
    signal.signal(signal.SIGINT, ending.handle)
    interrupt.install()
    handler = signal.getsignal(signal.SIGINT)
    interrupt.uninstall()
    signal.signal(signal.SIGINT, handler)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pytest.fail("the command is over: nothing can be in its middle")
    finally:
        ending.__init__()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [signal.SIGINT]


@pytest.fixture
def hang_up() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_in_a_script_a_closed_terminal_is_a_sigterm_until_the_run_has_ended(
    interrupt, lightning, hang_up
):
    interrupt.watch_sigterm(SystemExit)
    signal.raise_signal(signal.SIGHUP)
    interrupt.release_sigterm()
    signal.raise_signal(signal.SIGHUP)  # while the last checkpoint is saved
    assert lightning == [signal.SIGTERM, signal.SIGTERM]
    interrupt.uninstall()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_a_script_that_ignores_a_closed_terminal_goes_on(interrupt, lightning, hang_up):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt.watch_sigterm(SystemExit)
    signal.raise_signal(signal.SIGHUP)
    interrupt.uninstall()
    assert lightning == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_handler_of_the_command_line_is_taken_over_and_given_back(interrupt):
    signal.signal(signal.SIGINT, ending.handle)
    interrupt.install()
    signal.raise_signal(signal.SIGINT)
    assert interrupt.requested
    interrupt.uninstall()
    assert signal.getsignal(signal.SIGINT) == ending.handle
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_one_of_several_ranks_names_the_signal_that_asks_for_the_end(interrupt):
    interrupt.install()
    assert interrupt.asked == 0
    signal.raise_signal(signal.SIGINT)
    assert interrupt.asked == signal.SIGINT
    interrupt.terminated = True
    assert interrupt.asked == signal.SIGTERM
    interrupt.install()  # the next run
    assert interrupt.asked == 0


def test_a_rank_to_which_sigterm_is_passed_on_never_ends_alone(interrupt, lightning, monkeypatch):
    now = 100.0
    monkeypatch.setattr("lrl.processes.interrupt.time.monotonic", lambda: now)
    interrupt.watch_sigterm(SystemExit, raises=False)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
        now += 60.0
    interrupt.uninstall()
    assert len(lightning) == 2
