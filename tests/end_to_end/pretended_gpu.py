"""A pretended GPU: tensors that say they are on "cuda:0", are computed on the CPU and cannot be mixed with CPU tensors.

A pytest plugin (`-p pretended_gpu`, loaded before PyTorch) that counts kernel launches, moments in which the CPU waits
for the GPU, and operations on tensors of both devices, which raise `DeviceMismatch` as CUDA would. Code takes its CUDA
branches. Numbers, speed and memory of CUDA's kernels are not shown, nor is NCCL.

Python's `is_cuda`, the dispatcher, autocast and autograd's threads see CUDA; C++ needs a device guard and hooks for
that, which g++ compiles once for each version of PyTorch.
"""

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if "torch" in sys.modules:
    raise ImportError("import pretended_gpu before torch, which asks once whether there is CUDA")

GUARD = r"""
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
struct Guard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return Device(DeviceType::CUDA, 0); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)); }
};
extern "C" void register_guard() { static impl::DeviceGuardImplRegistrar guard(DeviceType::CUDA, new Guard); }
namespace at {
struct CUDAHooks final : CUDAHooksInterface {  // the registry knows it by this name
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
};
// preferred to those of a PyTorch that is built with CUDA
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, REGISTRY_PREFERRED, CUDAHooks);
}
"""


def load_guard() -> ctypes.CDLL:
    """Compile guard and hooks, and load them before PyTorch asks for them."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.submodule_search_locations
    root = Path(found.submodule_search_locations[0])
    version = (root / "version.py").read_text("utf-8") + GUARD
    library = Path(tempfile.gettempdir()) / f"pretended_{hashlib.sha256(version.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}.so")
        options = ["-O0", "-shared", "-fPIC", "-std=c++20", f"-I{root / 'include'}", "-x", "c++", "-", "-o", str(made)]
        libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
        subprocess.run(["g++", *options, *libraries], input=GUARD.encode(), check=True)
        made.rename(library)
    if (root / "lib/libtorch_global_deps.so").exists():
        ctypes.CDLL(str(root / "lib/libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(root / "lib/libtorch_cpu.so"))
    return ctypes.CDLL(str(library))


LIBRARY = load_guard()

import torch  # noqa: E402

LIBRARY.register_guard()  # after a PyTorch that is built with CUDA has registered its own

from torch import Tensor  # noqa: E402
from torch.utils._foreach_utils import _foreach_supported_types  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # noqa: E402

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
PACKAGE = "/hictl_hf/"
# operations that wait for all work given to the GPU, in addition to copies between the devices
WAITING = {
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.equal.default, aten.bincount.default, aten.is_nonzero.default,
    aten._unique.default,
}  # fmt: skip
NO_LAUNCH = {
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.detach.default, aten._local_scalar_dense.default, aten.lift_fresh.default,
    aten.detach_.default, aten.alias.default, aten._unsafe_view.default, aten._reshape_alias.default,
    aten.is_same_size.default, aten._version.default,
}  # fmt: skip
MANY_LAUNCHES = {  # about
    "sort": 4, "_unique2": 8, "nonzero": 4, "nonzero_static": 4, "cumsum": 2, "topk": 3, "argsort": 4,
    "_flash_attention_backward": 4, "_scaled_dot_product_flash_attention_backward": 4,
    "_scaled_dot_product_efficient_attention_backward": 3, "flash_attn_backward": 4,
}  # fmt: skip
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
LOOK_UPS = ("gather", "index", "embedding", "index_select")  # they read no more than they write, about
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


class DeviceMismatch(RuntimeError):
    """What CUDA would say: expected all tensors to be on the same device."""


class OnGpu(Tensor):
    """A tensor of the pretended GPU; its numbers are in `inner`, on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnGpu":
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=CUDA, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ACTIVE[-1].run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.inner!r})"

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def tolist(self) -> Any:
        ACTIVE[-1].wait("tolist")
        return self.inner.tolist()

    def __format__(self, how: str) -> str:
        return self.item().__format__(how) if self.dim() == 0 else object.__format__(self, how)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = self.detach().clone().requires_grad_(self.requires_grad)
            parameter = getattr(self, "_is_param", False)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if parameter else copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:  # in files it is a tensor of the CPU
        return self.inner.__reduce_ex__(protocol)

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()


_foreach_supported_types.append(OnGpu)


class Gpu(TorchDispatchMode):
    """The pretended GPU, while it is entered.

    Args:
        capability: compute capability.
        flash: whether this PyTorch was built with flash attention.

    Attributes:
        launches: of kernels, at least, by operation.
        waits: of the CPU for the GPU, by operation and line.
        mismatches: operations on tensors of both devices.
        traffic: bytes that the operations read and write, if each does so once.
    """

    def __init__(self, capability: tuple[int, int] = (9, 0), flash: bool = True) -> None:
        super().__init__()
        self.capability, self.flash = capability, flash
        self.generator = torch.Generator().manual_seed(0)
        self.reset()

    def reset(self) -> None:
        """Count from 0 again."""
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.mismatches = self.traffic = 0

    def count_launches(self) -> int:
        return sum(number * MANY_LAUNCHES.get(name, 1) for name, number in self.launches.items())

    def count_waits(self) -> int:
        return sum(self.waits.values())

    def __enter__(self) -> "Gpu":
        ACTIVE.append(self)
        self.before = torch._C._only_lift_cpu_tensors(), torch.__future__.get_swap_module_params_on_conversion()
        torch._C._set_only_lift_cpu_tensors(True)
        torch.__future__.set_swap_module_params_on_conversion(True)  # so that tied weights stay tied
        kernels = importlib.import_module("hictl_hf.models.row_attention")
        self.short, kernels.SHORT = kernels.SHORT, 0  # Triton would look for a real GPU
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        importlib.import_module("hictl_hf.models.row_attention").SHORT = self.short
        torch._C._set_only_lift_cpu_tensors(self.before[0])
        torch.__future__.set_swap_module_params_on_conversion(self.before[1])
        result = super().__exit__(*error)
        ACTIVE.pop()
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation: count it, check its devices, compute it on the CPU."""
        flat = tree_flatten((args, kwargs))[0]
        ours = [value for value in flat if isinstance(value, OnGpu)]
        to_gpu = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
        if not ours and not to_gpu:
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if func is aten._to_copy.default:
            return self.transfer(func, args[0], dict(kwargs))
        if func is aten.copy_.default and len({isinstance(value, OnGpu) for value in args[:2]}) == 2:
            if not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False)):
                self.wait(name)
            self.launches[name] += 1
            inner(args[0]).copy_(inner(args[1]))
            return args[0]
        self.check(func, name, args, [v for v in flat if isinstance(v, Tensor) and not isinstance(v, OnGpu)], ours)
        self.count(func, name, args, kwargs)
        if torch.Tag.inplace_view in func.tags:  # the wrapper has to change its shape, too
            func(*tree_map(inner, args), **tree_map(inner, kwargs))
            return change_shape(func, args, kwargs)
        return self.compute(func, name, args, kwargs, ours)

    def compute(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], ours: list[OnGpu]) -> Any:
        """The result of an operation on the CPU, as tensors of the GPU."""
        plain_args, plain_kwargs = tree_map(inner, (args, kwargs))
        if "device" in plain_kwargs:
            plain_kwargs["device"] = torch.device("cpu")
        if plain_kwargs.get("pin_memory"):
            plain_kwargs["pin_memory"] = False
        if name in KERNELS:
            result = KERNELS[name](*plain_args, **plain_kwargs)
        elif name in PRODUCTS and plain_args[1].dtype in (torch.float16, torch.bfloat16):
            result = in_single_precision(func, plain_args, plain_kwargs)
        elif func is aten._softmax.default and plain_args[2]:  # from fp16 to fp32, which a CPU does not have
            result = func(plain_args[0].float(), plain_args[1], False)
        elif torch.Tag.nondeterministic_seeded in func.tags:
            with self.random_numbers():
                result = func(*plain_args, **plain_kwargs)
        else:
            result = func(*plain_args, **plain_kwargs)
        known = {id(inner(value)): value for value in ours}
        flat, shape = tree_flatten(result)
        if not (func.is_view or func in NO_LAUNCH):
            given = () if name.startswith("new_") or name in LOOK_UPS else (plain_args, plain_kwargs)
            read = [each for each in tree_flatten(given)[0] if isinstance(each, Tensor)]
            written = [each for each in flat if isinstance(each, Tensor)]
            self.traffic += sum(each.numel() * each.element_size() for each in [*read, *written])
        return tree_unflatten([known.get(id(v), OnGpu(v)) if isinstance(v, Tensor) else v for v in flat], shape)

    def count(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        if func is aten._local_scalar_dense.default or func in WAITING:
            self.wait(name)
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.wait(name)
        for index in args[1] if func in INDEXING else ():
            fills = "put" in name and args[2].numel() == 1 and not (len(args) > 3 and args[3])  # as masked_fill
            if index is not None and index.dtype in (torch.bool, torch.uint8) and not fills:
                self.wait(f"{name}[mask]")
            if index is not None and not isinstance(index, OnGpu):
                self.wait(f"{name}[index on the CPU]")
        if not (func.is_view or func in NO_LAUNCH):
            self.launches[name] += 1

    def transfer(self, func: Any, source: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """A copy, to another device or dtype."""
        target = kwargs.pop("device", None)
        kwargs.pop("pin_memory", None)
        stays = target is None or torch.device(target).type == source.device.type
        from_pinned = isinstance(source, OnGpu) or source.untyped_storage().data_ptr() in PINNED or not source.dim()
        if not stays and source.numel() and not (kwargs.get("non_blocking", False) and from_pinned):
            self.wait(f"copy of {tuple(source.shape)}")
        self.launches["_to_copy"] += 1
        result = func(inner(source), **kwargs)
        self.traffic += sum(each.numel() * each.element_size() for each in (source, result))
        return OnGpu(result) if isinstance(source, OnGpu) == stays else result

    def check(self, func: Any, name: str, args: Any, others: list[Tensor], ours: list[OnGpu]) -> None:
        if func in INDEXING:  # a GPU's tensor can be indexed by the CPU's, but not the other way round
            given = (args[0], *args[2:3]) if isinstance(args[0], OnGpu) else args[:1]
            others = [value for value in given if isinstance(value, Tensor) and not isinstance(value, OnGpu)]
        if ours and (large := [value for value in others if value.dim() > 0]):
            self.mismatches += 1
            shapes = [tuple(value.shape) for value in large]
            raise DeviceMismatch(f"{name}: {shapes} on the CPU, {len(ours)} others on the GPU, at {where()}")

    def wait(self, name: str) -> None:
        self.waits[f"{name} {where()}"] += 1

    @contextlib.contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Random operations take the GPU's stream, not the CPU's."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)


ACTIVE: list[Gpu] = []
PINNED: set[int] = set()  # memory, which `KEPT` keeps


def inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnGpu) else value


def change_shape(func: Any, args: Any, kwargs: Any) -> Any:
    with torch.utils._mode_utils.no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)
    return args[0]


def in_single_precision(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Products of half numbers as a GPU takes them, summed in fp32; on many CPUs also many times faster."""
    kwargs = dict(kwargs)
    out, wide = kwargs.pop("out", None), any(isinstance(each, torch.dtype) for each in args)
    dtype = torch.float32 if wide else args[1].dtype
    assert {each.dtype for each in args[-2 - wide : len(args) - wide]} == {args[1].dtype}, "products of one dtype"
    assert wide or all(each.dtype == dtype for each in args), "a sum in fp32 has to be asked for"
    args = [each.float() if isinstance(each, Tensor) else each for each in args if not isinstance(each, torch.dtype)]
    result = func.overloadpacket.default(*args, **kwargs).to(dtype)
    return result if out is None else out.copy_(result)


def where() -> str:
    """The innermost line outside of PyTorch and this file, and the innermost of the package under test."""
    frame, found = sys._getframe(1), ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path and not path.startswith("<"):
            line = f"{'/'.join(path.split('/')[-2:])}:{frame.f_lineno}"
            if PACKAGE in path:
                return found and f"{found} < {line}" or line
            found = found or line
        frame = frame.f_back  # type: ignore[assignment]
    return found


# --- torch.cuda -------------------------------------------------------------------------------------------------------


class Properties:
    name, major, minor, total_memory, multi_processor_count = "pretended GPU", 9, 0, 80 * 2**30, 132
    gcnArchName = ""


class Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    record = synchronize = __init__

    def elapsed_time(self, _: Any) -> float:
        return 1.0


def inference_mode(mode: Any = True) -> Any:
    """Tensors that wrap others cannot be viewed in inference mode."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else NothingAround()


class NothingAround(contextlib.ContextDecorator):
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def pin(tensor: Tensor, *_: Any) -> Tensor:
    if isinstance(tensor, OnGpu):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    pinned = tensor.clone()
    KEPT.append(pinned)
    PINNED.add(pinned.untyped_storage().data_ptr())
    return pinned


KEPT: list[Tensor] = []


def patch() -> None:
    """Have Python's torch.cuda say that there is one GPU, before `inference_mode` decorates functions."""
    for name in ("torch._dynamo", "torch._inductor.utils"):  # they look for parts of a PyTorch built with CUDA
        importlib.import_module(name)
    cuda: Any = torch.cuda
    nothing, zero = lambda *_, **__: None, lambda *_, **__: 0

    def generator() -> torch.Generator:
        return ACTIVE[-1].generator if ACTIVE else torch.default_generator

    simple = {
        "_lazy_init": nothing, "is_available": lambda: True, "device_count": lambda: 1, "current_device": zero,
        "set_device": nothing, "is_initialized": lambda: True, "empty_cache": nothing, "ipc_collect": nothing,
        "synchronize": lambda *_: ACTIVE and ACTIVE[-1].wait("torch.cuda.synchronize"),
        "is_bf16_supported": lambda *_, **__: not ACTIVE or ACTIVE[-1].capability >= (8, 0),
        "get_device_properties": lambda *_: Properties, "get_device_name": lambda *_: Properties.name,
        "get_device_capability": lambda *_: ACTIVE[-1].capability if ACTIVE else (9, 0),
        "manual_seed_all": lambda seed: generator().manual_seed(seed),
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "get_rng_state": lambda *_: generator().get_state(),
        "set_rng_state": lambda state, *_: generator().set_state(state),
        "get_rng_state_all": lambda: [generator().get_state()],
        "set_rng_state_all": lambda states: generator().set_state(states[0]),
        "memory_allocated": zero, "max_memory_allocated": zero, "reset_peak_memory_stats": nothing,
        "memory_reserved": zero, "max_memory_reserved": zero, "mem_get_info": lambda *_: (2**36, 2**36),
        "Event": Event, "current_stream": lambda *_: Event(), "is_current_stream_capturing": lambda: False,
    }  # fmt: skip
    for name, value in simple.items():
        setattr(cuda, name, value)
        for module in (cuda.random, cuda.memory):
            if hasattr(module, name):
                setattr(module, name, value)
    torch.backends.cudnn.version = lambda: 92400
    torch.backends.cuda.is_flash_attention_available = lambda: bool(ACTIVE) and ACTIVE[-1].flash
    cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.version.cuda = "13.0"
    torch.inference_mode = inference_mode  # type: ignore[assignment, misc]
    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
    Tensor.pin_memory = pin  # type: ignore[method-assign, assignment]
    Tensor.record_stream = nothing  # type: ignore[method-assign, assignment]


from pretended_kernels import KERNELS, scaled_dot_product_attention  # noqa: E402

patch()
