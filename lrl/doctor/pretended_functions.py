"""What Python asks of tensors and their devices, answered for a pretended GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from typing_extensions import override

from lrl.doctor.pretended_tensor import CUDA, PretendedTensor, host_of

_CPU = torch.device("cpu")
_OF_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
_parse_to: Any = vars(torch._C)["_nn"]._parse_to


class PretendedFunctions(TorchFunctionMode):
    """Answers what is asked of devices before torch looks for one."""

    def __init__(self, gpu: Any) -> None:
        super().__init__()
        self._gpu = gpu
        of_tensors: Any = Tensor
        self._answers: dict[Any, Callable[..., Any]] = {
            of_tensors.device.__get__: self._device,
            of_tensors.is_cuda.__get__: lambda tensor: isinstance(tensor, PretendedTensor),
            of_tensors.is_cpu.__get__: lambda tensor: not isinstance(tensor, PretendedTensor),
            Tensor.get_device: lambda tensor: 0 if isinstance(tensor, PretendedTensor) else -1,
            Tensor.to: self._to,
            Tensor.cuda: lambda tensor, *args, **kwargs: self._to(tensor, "cuda"),
            Tensor.cpu: lambda tensor, *args, **kwargs: self._to(tensor, "cpu"),
            Tensor.pin_memory: lambda tensor, *args: gpu._pin(tensor.clone()),
            Tensor.is_pinned: lambda tensor, *args: gpu._is_pinned(tensor),
            Tensor.tolist: self._list,
            Tensor.new_tensor: self._new_tensor,
            one_hot: self._one_hot,
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._numpy,
        }

    @override
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._answers:
            return self._answers[func](*args, **kwargs)
        is_pinned = kwargs.pop("pin_memory", False)
        if func in _OF_DATA and args:
            found = self._of_data(func, args[0], kwargs)
        elif kwargs.get("device") is None:
            found = func(*args, **kwargs)
        elif torch.device(kwargs["device"]).type == "cuda":
            return self._made_there(func, args, {**kwargs, "device": _CPU})
        else:  # such as zeros_like
            found = host_of(func(*args, **kwargs))
        return self._gpu._pin(found) if is_pinned else found

    def _of_data(self, func: Any, data: Any, kwargs: Mapping[str, Any]) -> Tensor:
        """Make a tensor of numbers of the host, or of the device, which are read for it."""
        if isinstance(data, PretendedTensor):
            return self._to(data, kwargs.get("device"), kwargs.get("dtype") or data.dtype)
        data = tree_map(lambda x: x.item() if isinstance(x, PretendedTensor) else x, data)
        if torch.device(kwargs.get("device") or _CPU).type != "cuda":
            return func(data, **kwargs)
        self._gpu._read(f"{func.__name__} from the host")
        return PretendedTensor(func(data, **{**kwargs, "device": _CPU}), self._gpu)

    def _made_there(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """Make a tensor; what is made of others, such as zeros_like, may be there by itself."""
        gpu = self._gpu
        found = func(*args, **kwargs)
        if isinstance(found, PretendedTensor):
            return found
        gpu._note("kernel", str(getattr(func, "__name__", func)))
        made = PretendedTensor(found, gpu)
        if gpu._capturing is not None:
            gpu._capturing.after(func, args, kwargs, made)
        return made

    @staticmethod
    def _device(tensor: Tensor) -> torch.device:
        with torch._C.DisableTorchFunction():
            return CUDA if isinstance(tensor, PretendedTensor) else tensor.device

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copies = kwargs.pop("copy", False)
        if args and isinstance(args[0], Tensor):
            args = (self._device(args[0]), args[0].dtype, *args[1:])
        device, dtype, non_blocking, memory_format = _parse_to(*args, **kwargs)
        dtype = dtype or tensor.dtype
        here = isinstance(tensor, PretendedTensor)
        there = here if device is None else device.type == "cuda"
        change: dict[str, Any] = {"dtype": dtype, "copy": copies}
        if memory_format is not None:
            change["memory_format"] = memory_format
        with torch._C.DisableTorchFunction():
            if here == there or (device is not None and device.type == "meta"):
                return tensor.to(**change)
            gpu = self._gpu
            if there:
                found = PretendedTensor(torch.empty_like(tensor, requires_grad=False), gpu)
                gpu._send(tensor.detach(), found.host, non_blocking)
                return found.to(**{**change, "copy": False})
            source: Any = tensor
            host = torch.empty_like(source.host, requires_grad=False)
            if non_blocking:  # torch takes page-locked memory
                gpu._pin(host)
            gpu._fetch(source.host.detach(), host, non_blocking)
            return host.to(**{**change, "copy": False})

    def _new_tensor(self, tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
        like = {"dtype": tensor.dtype, "device": self._device(tensor)}
        return self._of_data(torch.tensor, data, {**like, **kwargs})

    @staticmethod
    def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        """Do it in Python: in C++ torch makes a tensor of the host for it."""
        if not isinstance(tensor, PretendedTensor):
            return one_hot(tensor, num_classes)
        if num_classes < 0:
            num_classes = int(tensor.max().item()) + 1
        found = tensor.new_zeros(*tensor.shape, num_classes)
        return found.scatter_(-1, tensor.unsqueeze(-1), 1)

    def _list(self, tensor: Tensor) -> Any:
        if isinstance(tensor, PretendedTensor):
            self._gpu._read("tolist")
            tensor = tensor.host
        return tensor.tolist()

    @staticmethod
    def _numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, PretendedTensor):
            raise TypeError(f"can't convert a tensor on {CUDA} to numpy: use Tensor.cpu() first")
        return tensor.numpy(*args, **kwargs)
