"""Tensors as the object store carries them: same values, same memory, no warnings."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from serve_apps.deployments.tensors import pack_tensor, unpack_tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4)])
def test_a_tensor_comes_back_bit_for_bit(dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    back = unpack_tensor(pack_tensor(tensor))
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_packing_and_unpacking_share_memory_even_when_it_is_read_only():
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    packed = pack_tensor(tensor)
    assert packed.array.ctypes.data == tensor.data_ptr()
    packed.array.flags.writeable = False
    assert unpack_tensor(packed).data_ptr() == tensor.data_ptr()


def test_the_array_travels_out_of_band():
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pack_tensor(torch.zeros(1000, 10)), protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert sum(buffer.raw().nbytes for buffer in buffers) == 40_000
    frozen = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    assert torch.equal(unpack_tensor(pickle.loads(data, buffers=frozen)), torch.zeros(1000, 10))


def test_gradients_and_strides_do_not_travel():
    tensor = torch.randn(4, 6, requires_grad=True).T
    assert torch.equal(unpack_tensor(pack_tensor(tensor)), tensor.detach())


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"torch\.int64"):
        pack_tensor(torch.zeros(2, dtype=torch.int64))
