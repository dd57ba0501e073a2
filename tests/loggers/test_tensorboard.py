"""What TensorBoard finds in a run's file beside its scalars: charts and histograms."""

from __future__ import annotations

import errno
import re
from itertools import chain
from typing import Any

import numpy as np
import pytest
from helpers.named_tests import ROOT
from helpers.training_runs import make_run, quiet
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from lrl import DQN, ActorLearnerCallback, ConfigError
from lrl.learner.updater import Losses
from lrl.loggers import records
from lrl.loggers.charts import LAYOUT
from lrl.loggers.histograms import ERRORS, VALUES
from lrl.types import Batch

pytestmark = quiet


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    callback = ActorLearnerCallback(5, 10, 0, histogram_period_learner_steps=10)
    return make_run(folder, callback, log_every_n_steps=5).fit()


@pytest.fixture(scope="module")
def events(run):
    return EventAccumulator(str(run.folder), size_guidance={"histograms": 0}).Reload()


def documented() -> set[str]:
    """Metrics of docs/metrics.md, of whose rows some name several that differ in their ends."""
    found = set()
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        if match := re.match(r"\| `(\w+/\w+)`((?: `_\w+`)*) \|", line):
            first, ends = match[1], re.findall(r"`(_\w+)`", match[2])
            found |= {first, *(first.rpartition("_")[0] + end for end in ends)}
    return found


def test_the_layout_in_the_file_names_metrics_that_exist(run, events):
    (summary,) = events.Tensors(metadata.CONFIG_SUMMARY_TAG)
    proto: Any = layout_pb2
    layout = proto.Layout.FromString(summary.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == list(LAYOUT)
    charts = [chart for category in layout.category for chart in category.chart]
    tags = [tag.strip("^$") for chart in charts for tag in chart.multiline.tag]
    assert tags == list(chain.from_iterable(c for each in LAYOUT.values() for c in each.values()))
    assert set(tags) <= documented()
    missing = {tag for tag in tags if tag not in events.Tags()["scalars"]}
    assert missing == {"replay/priority_max"}  # replay is uniform here


def test_histograms_are_of_the_batches_that_were_logged(run, events):
    scalars = {
        name: {int(float(row["step"])): float(row[name]) for row in run.metrics() if name in row}
        for name in ("train/q_mean", "train/target_minus_q_mean")
    }
    for tag, name in ((VALUES, "train/q_mean"), (ERRORS, "train/target_minus_q_mean")):
        found = events.Histograms(tag)
        assert [each.step for each in found] == [10, 20]
        for each in found:
            value = each.histogram_value
            assert value.sum / value.num == pytest.approx(scalars[name][each.step], abs=1e-5)
            assert np.sum(value.bucket) == value.num


def test_without_being_asked_nothing_is_written_elsewhere(tmp_path):
    callback = ActorLearnerCallback(5, 10, 0)
    run = make_run(tmp_path, callback, logger=CSVLogger(tmp_path)).fit()
    assert not list(tmp_path.rglob("events.out*"))
    assert run.trainer.global_step == 20


def test_histograms_that_nobody_would_see_are_refused(tmp_path):
    callback = ActorLearnerCallback(5, 10, 0, histogram_period_learner_steps=5)
    make_run(tmp_path / "trial", callback, fast_dev_run=7).fit()  # which replaces all loggers
    words = "histogram_period_learner_steps is 5, but histograms go to TensorBoard and the Trainer"
    with pytest.raises(ConfigError, match=words):
        make_run(tmp_path, callback, logger=CSVLogger(tmp_path)).fit()


def test_histograms_between_logged_batches_are_refused(tmp_path):
    callback = ActorLearnerCallback(5, 10, 0, histogram_period_learner_steps=5)
    words = r"is 5, but .* must be a multiple of trainer\.log_every_n_steps, 2"
    with pytest.raises(ConfigError, match=words):
        make_run(tmp_path, callback, log_every_n_steps=2).fit()


class OwnMeasure(DQN):
    def measure(self, batch: Batch, losses: Losses, learns: Tensor | None = None) -> None: ...


def test_histograms_of_an_agent_that_measures_something_else_are_refused(tmp_path):
    callback = ActorLearnerCallback(5, 10, 0, histogram_period_learner_steps=5)
    words = r"is 5, but OwnMeasure\.measure replaces DQN's, which keeps what histograms show"
    with pytest.raises(ConfigError, match=words):
        make_run(tmp_path, callback, module=OwnMeasure()).fit()


@pytest.mark.parametrize(("pause", "asked"), [(0.0, 5), (60.0, 1)])
def test_a_full_disk_ends_neither_training_nor_the_writing_of_histograms(
    tmp_path, caplog, monkeypatch, pause, asked
):
    """A writer that has failed once raises its error for ever, so that another one is begun."""
    monkeypatch.setattr(records, "_PAUSE_SECONDS", pause)
    writers: list[SummaryWriter] = []
    write = SummaryWriter.add_histogram

    def add_histogram(self: SummaryWriter, *arguments: Any, **more: Any) -> None:
        writers.append(self)
        if self is writers[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, *arguments, **more)

    monkeypatch.setattr(SummaryWriter, "add_histogram", add_histogram)
    callback = ActorLearnerCallback(5, 0, 0, histogram_period_learner_steps=5)
    run = make_run(tmp_path, callback, max_steps=15).fit()
    assert run.trainer.global_step == 15
    assert len(writers) == asked  # once at 5, and for values and errors at 10 and 15
    assert caplog.text.count("TensorBoardLogger could not log: OSError: [Errno 28]") == 1
    assert "Traceback" not in caplog.text
    events = EventAccumulator(str(run.folder)).Reload()  # of both files
    assert metadata.CONFIG_SUMMARY_TAG in events.Tags()["tensors"]


def test_a_period_below_zero_is_refused():
    with pytest.raises(ConfigError, match=r"histogram_period_learner_steps must be .*, got -1"):
        ActorLearnerCallback(histogram_period_learner_steps=-1)
