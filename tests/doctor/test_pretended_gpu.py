"""The pretended GPU computes what a CPU does, and notes whatever a host would wait for."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from lrl.doctor.pretended_gpu import PretendedGpu
from lrl.parts.device_copies import HostCopy, floats_of, on_host, to_device, to_device_together

CUDA = torch.device("cuda:0")


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with PretendedGpu() as gpu:
        yield gpu


def kinds(gpu: PretendedGpu) -> list[str]:
    return [note.kind for note in gpu.notes]


def test_a_network_learns_there_what_it_learns_here():
    def losses(device: str, **settings: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        twin = copy.deepcopy(network)
        optimizer = torch.optim.Adam(network.parameters(), **settings)
        inputs, found = torch.randn(16, 4).to(device), list[Tensor]()
        for _ in range(3):
            loss = (network(inputs) - twin(inputs) - 1.0).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
            assert {loss.device.type, norm.device.type} == {torch.device(device).type}
            found += [loss.detach().cpu(), norm.cpu()]
        return found, {name: weight.cpu() for name, weight in network.state_dict().items()}

    for settings in ({"fused": True}, {"foreach": True}, {}):
        here = losses("cpu", **settings)
        with PretendedGpu():
            there = losses("cuda", **settings)
        torch.testing.assert_close(there, here, rtol=0, atol=0)


def test_what_is_saved_there_is_loaded_here(gpu: PretendedGpu):
    layer, file = nn.Linear(3, 2).to(CUDA), io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert {tensor.device.type for tensor in loaded.values()} == {"cpu"}
    layer.load_state_dict(loaded)
    assert layer.weight.cpu().equal(loaded["weight"])
    assert nn.Linear(3, 2).to(CUDA).cpu().weight.device.type == "cpu"


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x.any() else 0,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", torch.float64),
    "pageable copy": lambda x: torch.empty(3).copy_(x, non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "flags as index": lambda x: x[x > 0],
    "flags written": lambda x: x.index_put_((x > 0,), torch.zeros((), device=CUDA)),
    "flags added to": lambda x: x.index_put_((x > 0,), torch.tensor(1.0), accumulate=True),
    "drawn by weights": lambda x: torch.multinomial(x, 1),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: x.equal(x),
    "allclose": lambda x: x.allclose(x),
    "a fill value": lambda x: torch.full((2,), cast(Any, x[0]), device=CUDA),
    "made of numbers": lambda x: torch.tensor([x[0]]),
    "made a twin on the host": lambda x: torch.as_tensor(x, device="cpu"),
    "how many classes": lambda x: nn.functional.one_hot(x.long()),
    "printed": lambda x: f"{x}",
    "printed as told": lambda x: f"{x[0]:.3f}",
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(3, device=CUDA).long()),
    "numbers of the host": lambda x: torch.tensor([1.0, 2.0], device=CUDA),
    "numbers of the host, alike": lambda x: x.new_tensor([1.0, 2.0]),
    "pageable memory": lambda x: torch.ones(3).to(CUDA, non_blocking=True),
    "pinned, but waited for": lambda x: torch.ones(3).pin_memory().to(CUDA),
    "indices of the host": lambda x: x[torch.tensor([0, 2])],
    "synchronize": lambda x: torch.cuda.synchronize(),
    "of a stream": lambda x: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", READS)
def test_whatever_waits_for_the_device_is_noted_with_its_line(gpu: PretendedGpu, name: str):
    tensor = torch.ones(3, device=CUDA)
    assert "read" not in kinds(gpu)
    READS[name](tensor)
    reads = [note for note in gpu.notes if note.kind == "read"]
    assert len(reads) == 1
    assert f"{__file__}:" in reads[0].where


def test_what_only_queues_work_is_no_read(gpu: PretendedGpu):
    tensor = torch.ones(3, device=CUDA)
    flags = tensor > 0
    total = torch.where(flags, tensor, 0.5).sum() + tensor[0] + tensor[torch.arange(2, device=CUDA)]
    tensor[flags] = 7.0
    tensor[1:].fill_(2.0)
    torch.full((2,), 3.0, device="cuda").mul_(total)
    classes = flags.long()
    _ = nn.functional.one_hot(classes, 2) + torch.zeros_like(classes, device=CUDA)[:, None]
    tensor.repeat_interleave(classes, output_size=3)[classes] = torch.tensor(2.0)
    assert set(kinds(gpu)) == {"kernel"}
    assert tensor.cpu().tolist() == [7.0, 2.0, 2.0]


def test_views_are_no_kernels(gpu: PretendedGpu):
    tensor = torch.ones(2, 3, device=CUDA)
    tensor.t()[1:].unsqueeze(0).squeeze().detach()
    assert kinds(gpu) == ["kernel"]


def test_a_copy_to_the_host_is_rubbish_until_somebody_waits(gpu: PretendedGpu):
    for tensor, rubbish in ((torch.ones(2, device=CUDA), torch.nan), (torch.ones(2).int(), -77)):
        host = torch.empty(2, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor.to(CUDA), non_blocking=True)
        event: Any = torch.cuda.Event()
        event.record()
        torch.testing.assert_close(host, torch.full_like(host, rubbish), equal_nan=True)
        event.synchronize()
        assert host.tolist() == [1, 1]
    late = torch.ones(2, device=CUDA).to("cpu", non_blocking=True)
    assert late.isnan().all()
    torch.cuda.synchronize()
    assert late.tolist() == [1, 1]


def test_an_event_brings_what_was_queued_before_it_alone(gpu: PretendedGpu):
    first = HostCopy.of(torch.tensor(1.0).to(CUDA))
    second = HostCopy.of(torch.tensor(2.0).to(CUDA))
    assert first.get() == 1.0
    assert second._tensor.isnan()
    assert second.get() == 2.0
    torch.zeros(1, device=CUDA).add_(1)
    third = HostCopy.of(torch.tensor(3.0).to(CUDA))
    torch.zeros(1, device=CUDA).add_(1).add_(1)
    third.get()
    assert [note.age for note in gpu.notes if note.kind == "wait"][-1] == 3  # zeros and two adds


def test_a_source_that_changes_before_its_copy_was_made_is_a_fault(gpu: PretendedGpu):
    kept, changed = (torch.ones(2).pin_memory() for _ in range(2))
    there = [source.to(CUDA, non_blocking=True) for source in (kept, changed)]
    changed[0] = 5.0
    assert "fault" not in kinds(gpu)
    torch.cuda.synchronize()
    assert kinds(gpu).count("fault") == 1
    changed[1] = 5.0  # it has arrived
    torch.cuda.synchronize()
    assert kinds(gpu).count("fault") == 1
    assert [tensor.tolist() for tensor in there] == [[1, 1], [1, 1]]


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "added": lambda here, there: here + there,
    "added in place": lambda here, there: here.add_(there),
    "counted up": lambda here, there: here[0].add_(there[0]),
    "stacked": lambda here, there: torch.stack([here[0], there[0]]),
    "looked up": lambda here, there: here[there.long()],
    "put": lambda here, there: there.index_put_((torch.arange(3, device=CUDA),), here),
    "made alike": lambda here, there: torch.zeros_like(there, device="cpu") + there,
    "filled alike": lambda here, there: there.new_full((3,), 1.0, device="cpu") + there,
    "compared": lambda here, there: there.equal(here),
    "gathered": lambda here, there: there.gather(0, here.long()),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_do_not_meet(gpu: PretendedGpu, name: str):
    with pytest.raises(RuntimeError, match=r"cuda:0.*cpu"):
        MIXED[name](torch.ones(3), torch.ones(3, device=CUDA))


def test_numbers_of_the_host_are_taken_along(gpu: PretendedGpu):
    there = torch.ones(3, device=CUDA)
    with pytest.raises(TypeError, match=r"cpu\(\) first"):
        there.numpy()
    total = there + torch.tensor(1.0) + torch.ones(3).to(there)
    assert total.sum().item() == 9.0


def test_a_graph_does_again_what_was_captured_in_the_same_memory(gpu: PretendedGpu):
    total, given, last = (torch.full((n,), float(n == 1), device=CUDA) for n in (2, 1, 1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (2 * given)[:1] + torch.rand(1, device=CUDA)
        total[0].add_(result[0])
        last.copy_(result)
    assert total.tolist() + last.tolist() == [0.0, 0.0, 1.0]  # capturing computes nothing
    results = []
    torch.manual_seed(0)
    expected = [2 * number + torch.rand(1).item() for number in (1.0, 5.0, 7.0)]
    torch.manual_seed(0)
    for number in (1.0, 5.0, 7.0):
        given.fill_(number)
        count = len(gpu.notes)
        graph.replay()
        assert [note.what for note in gpu.notes[count:]] == ["graph"]
        assert last.equal(result)
        results.append(result.item())
    assert results == pytest.approx(expected)
    assert total.tolist() == pytest.approx([sum(expected), 0.0])


@pytest.mark.parametrize("name", sorted(READS))
def test_a_graph_cannot_be_captured_of_what_waits(gpu: PretendedGpu, name: str):
    tensor = torch.ones(3, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    with refused, torch.cuda.graph(graph):
        READS[name](tensor)
    assert tensor.sum().item() == 3.0


def test_without_it_there_is_no_gpu_again():
    available = torch.cuda.is_available()
    with PretendedGpu():
        assert torch.cuda.is_available()
    assert torch.cuda.is_available() == available
    assert torch.ones(2).device.type == "cpu"


# --- The copies of lrl on it ------------------------------------------------------------------


def test_tensors_go_together_in_one_copy(gpu: PretendedGpu):
    here = {
        "flags": torch.tensor([True, False, True]),
        "numbers": torch.randn(3, 2)[:, :1],
        "bytes": torch.arange(5, dtype=torch.uint8),
        "number": torch.tensor(7),
        "nothing": torch.empty(0, 4),
    }
    already = torch.ones(2, device=CUDA)
    gpu.notes.clear()
    found = to_device_together({**here, "already": already}, CUDA)
    assert kinds(gpu) == ["to_device"]
    assert found["already"] is already
    assert list(found) == [*here, "already"]
    for name, tensor in here.items():
        assert found[name].device == CUDA
        assert found[name].dtype == tensor.dtype
        assert found[name].cpu().equal(tensor), name
    gpu.notes.clear()
    assert to_device_together({"already": already}, CUDA) == {"already": already}
    assert not gpu.notes


def test_nested_tensors_come_to_the_host_in_one_copy(gpu: PretendedGpu):
    shared = torch.tensor([True, False]).to(CUDA)
    content = {
        "weights": {"a": torch.randn(3, 2).to(CUDA).t(), "b": shared, "c": torch.ones(1)},
        "list": [shared, 3, "text", torch.tensor(5).to(CUDA), torch.tensor(0.1).double().to(CUDA)],
    }
    gpu.notes.clear()
    found = on_host(content)
    assert kinds(gpu).count("read") == 1
    assert found["weights"]["b"] is found["list"][0]
    assert found["weights"]["c"] is content["weights"]["c"]
    for name in "ab":
        assert found["weights"][name].equal(content["weights"][name].cpu())
    assert found["list"][1:3] == [3, "text"]
    assert found["list"][3:] == [torch.tensor(5), torch.tensor(0.1).double()]
    assert on_host(found) is found
    state = nn.BatchNorm1d(2).to(CUDA).state_dict()
    assert on_host(state)._metadata == state._metadata  # pyright: ignore[reportAttributeAccessIssue]


def test_numbers_come_in_one_copy(gpu: PretendedGpu):
    values = {"a": torch.tensor(1.5).to(CUDA), "b": 2.0, "c": torch.tensor(3).to(CUDA)}
    values["d"] = torch.tensor(0.25)
    assert floats_of(values) == {"a": 1.5, "b": 2.0, "c": 3.0, "d": 0.25}
    assert kinds(gpu).count("read") == 1


def test_nobody_waits_for_one_tensor_either(gpu: PretendedGpu):
    assert to_device(torch.arange(3), CUDA).cpu().tolist() == [0, 1, 2]
    assert kinds(gpu) == ["to_device", "read"]
