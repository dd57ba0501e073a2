"""Leave out what other libraries say that a user of lrl can do nothing about."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_LIGHTNING = "lightning.pytorch.utilities.rank_zero"
_WARNINGS = (
    "Experiment logs directory .* exists",
    ".*(LeafSpec|all_gather).*deprecated",
    "The number of training batches .* is smaller",
    "You called `self.log.*no logger configured",
    r"It is recommended to use `self.log\('eval/",
)
_ADVERTISEMENTS = ("litlogger", "litmodels")
_IN_OTHER_WORDS = (  # lrl's own lines say it
    "GPU available: ",
    "TPU available: ",
    "Seed set to ",
    "`Trainer.fit` stopped: `max_steps=",
)


def quieten() -> None:
    """Leave out warnings about how lrl uses Lightning, and advertisements; idempotent."""
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger(_LIGHTNING).addFilter(_is_no_advertisement)


def quieten_command_line() -> None:
    """Leave out more, where nobody has a Trainer of their own; idempotent."""
    quieten()
    for name in (_LIGHTNING, "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(_is_no_repetition)


@contextlib.contextmanager
def silence(*loggers: str) -> Iterator[None]:
    """Leave out all warnings, and what these loggers say below an error."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in loggers:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return not any(name in record.getMessage() for name in _ADVERTISEMENTS)


def _is_no_repetition(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_IN_OTHER_WORDS)
