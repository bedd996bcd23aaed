"""What NVIDIA's driver says of its GPUs, without a CUDA context: names that are the same in every process, and memory."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver has it, in its order (that of the bus)."""

    uuid: str
    product: str
    memory_bytes: int


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The driver's own library, which comes with it; None where there is no driver, or it does not answer."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def gpus() -> tuple[Gpu, ...]:
    """All GPUs of this machine that this process may see, whatever CUDA_VISIBLE_DEVICES says."""
    library, count = _library(), ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return ()
    found = []
    for index in range(count.value):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        product = "" if library.nvmlDeviceGetName(handle, text, 96) else text.value.decode(errors="replace")
        uuid = "" if library.nvmlDeviceGetUUID(handle, text, 96) else text.value.decode(errors="replace")
        memory = _memory(library, handle)
        found.append(Gpu(uuid, product, memory.total if memory else 0))
    return tuple(found)


def memory_used(uuid: str) -> int | None:
    """Bytes in use on a GPU or MIG instance, by all processes; None where the driver does not say."""
    found = _by_uuid(uuid)
    return None if found is None else int(found.used)


def memory_total(uuid: str) -> int:
    """Bytes that a GPU or MIG instance has; 0 where the driver does not say."""
    found = _by_uuid(uuid)
    return 0 if found is None else int(found.total)


def _by_uuid(uuid: str) -> _Memory | None:
    library, handle = _library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    return _memory(library, handle)


def _memory(library: ctypes.CDLL, handle: ctypes.c_void_p) -> _Memory | None:
    memory = _Memory()
    return None if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else memory
