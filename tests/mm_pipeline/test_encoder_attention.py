import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.encoder_attention import encoder_attention

BACKENDS = ("reference", "cpu", "differentiable")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def inputs(lengths, heads=4, kv_heads=2, width=8, value_width=8, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(num_heads, size):
        return torch.randn(sum(lengths), num_heads, size, generator=generator).to(dtype)

    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return make(heads, width), make(kv_heads, width), make(kv_heads, value_width), cu_seqlens


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch):
    """Uninitialised memory holds NaN, so that a read of it shows."""
    plain = torch.Tensor.new_empty

    def poisoned(self, *size, **options):
        return plain(self, *size, **options).fill_(float("nan"))

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@given(
    lengths=st.lists(st.integers(0, 90) | st.just(70), min_size=1, max_size=4),
    groups=st.sampled_from([1, 2, 4]),
    kv_heads=st.sampled_from([1, 2]),
    value_width=st.sampled_from([8, 5]),
    window=st.none() | st.integers(0, 100),
    causal=st.booleans(),
    sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 5),
)
@settings(max_examples=80, deadline=None)
def test_every_backend_equals_the_reference(
    lengths, groups, kv_heads, value_width, window, causal, sinks, dtype, seed
):
    query, key, value, cu_seqlens = inputs(
        lengths, groups * kv_heads, kv_heads, value_width=value_width, dtype=dtype, seed=seed
    )
    logits = torch.linspace(-2, 6, query.shape[1]) if sinks else None
    expected, *others = (
        encoder_attention(
            query, key, value, cu_seqlens, window=window, causal=causal, sinks=logits, backend=backend
        )
        for backend in ("reference", "cpu", "differentiable")
    )
    for made in others:
        assert made.dtype == dtype
        torch.testing.assert_close(made, expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("sinks", [None, torch.tensor([1.0, -1.0, 30.0, 0.0])])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_in_several_steps(monkeypatch, causal, window, sinks):
    monkeypatch.setattr("kernels.encoder_attention.cpu._MAX_SCORES", 4 * 64 * 82 * 2)
    query, key, value, cu_seqlens = inputs([300, 300, 5])
    made, expected = (
        encoder_attention(
            query, key, value, cu_seqlens, window=window, causal=causal, sinks=sinks, backend=backend
        )
        for backend in ("cpu", "reference")
    )
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_definition_by_hand(backend):
    """Equal scores: the result is the mean of the visible values, thinned by the sink's share."""
    query = torch.zeros(5, 1, 4)
    value = torch.arange(5.0).view(5, 1, 1)
    cu_seqlens = torch.tensor([0, 3, 5])
    full = encoder_attention(query, query, value, cu_seqlens, backend=backend)
    torch.testing.assert_close(full.flatten(), torch.tensor([1, 1, 1, 3.5, 3.5]))
    near = encoder_attention(query, query, value, cu_seqlens, window=1, backend=backend)
    torch.testing.assert_close(near.flatten(), torch.tensor([0.5, 1, 1.5, 3.5, 3.5]))
    sunk = encoder_attention(query, query, value, cu_seqlens, window=1, sinks=torch.zeros(1), backend=backend)
    torch.testing.assert_close(sunk.flatten(), torch.tensor([1 / 3, 3 / 4, 1, 7 / 3, 7 / 3]))
    before = encoder_attention(query, query, value, cu_seqlens, causal=True, backend=backend)
    torch.testing.assert_close(before.flatten(), torch.tensor([0, 0.5, 1, 3, 3.5]))
    latest = encoder_attention(query, query, value, cu_seqlens, causal=True, window=1, backend=backend)
    torch.testing.assert_close(latest.flatten(), torch.tensor([0, 0.5, 1.5, 3, 3.5]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 3])
def test_nothing_crosses_segments(backend, window):
    query, key, value, cu_seqlens = inputs([10, 7])
    together = encoder_attention(query, key, value, cu_seqlens, window=window, backend=backend)
    value[10:] = float("nan")
    key[10:] = float("nan")
    alone = encoder_attention(
        query[:10], key[:10], value[:10], cu_seqlens[:2], window=window, backend=backend
    )
    torch.testing.assert_close(together[:10], alone, atol=1e-6, rtol=0)


def with_gradients(window, causal, dtype):
    """Leaves for query, key, value and sinks, and the call that takes them and a backend."""
    query, key, value, cu_seqlens = inputs([5, 5, 3], value_width=6, dtype=dtype)
    leaves = [
        tensor.requires_grad_() for tensor in (query, key, value, torch.linspace(-1, 2, 4, dtype=dtype))
    ]

    def attend(query, key, value, sinks, backend="differentiable"):
        return encoder_attention(
            query, key, value, cu_seqlens, window=window, causal=causal, sinks=sinks, backend=backend
        )

    return leaves, attend


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_finite_differences(causal, window):
    leaves, attend = with_gradients(window, causal, torch.float64)
    assert torch.autograd.gradcheck(attend, leaves, fast_mode=True)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_the_reference(causal, window):
    leaves, attend = with_gradients(window, causal, torch.float32)
    weight = torch.randn(13, 4, 6, generator=torch.Generator().manual_seed(1))
    made, expected = (
        torch.autograd.grad((attend(*leaves, backend) * weight).sum(), leaves)
        for backend in ("differentiable", "reference")
    )
    for ours, theirs in zip(made, expected, strict=True):
        assert theirs.abs().max() > 0.01
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_wrong_calls():
    query, key, value, cu_seqlens = inputs([4])
    good = {"query": query, "key": key, "value": value, "cu_seqlens": cu_seqlens, "backend": "cpu"}
    for change, text in (
        ({"backend": "gpu"}, "'cpu', 'differentiable', 'reference'"),
        ({"query": query[0]}, "each must be"),
        ({"key": key[:3]}, "token counts"),
        ({"key": key[..., :7]}, "one width"),
        ({"query": query.half()}, "one floating dtype"),
        ({"cu_seqlens": cu_seqlens.float()}, "int32 or int64"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "rise from 0 to 4"),
        ({"cu_seqlens": torch.tensor([0, 5, 4])}, "rise from 0 to 4"),
        ({"window": -1}, "window is -1"),
        ({"sinks": torch.zeros(3)}, "sinks is"),
    ):
        with pytest.raises(ValueError, match=text):
            encoder_attention(**{**good, **change})
