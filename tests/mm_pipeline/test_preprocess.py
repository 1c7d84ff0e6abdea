import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.errors import InvalidMediaError
from mm_pipeline.image import ImageSettings, preprocess_image, smart_resize
from mm_pipeline.image.resize import flatten_patches
from mm_pipeline.limits import MediaLimits
from tests.golden import golden_dir, load_golden, load_golden_json
from tests.mm_pipeline.pictures import encode, gradient, noisy

LIMITS = MediaLimits()
TOLERANCE = 1e-4
# The raw `rgba` item shows the hidden colours that the reference keeps; here alpha is composited on white.
STILLS = [
    name
    for name, item in load_golden_json("config_image_preprocess")["items"].items()
    if "file" in item and name != "rgba_201x150"
]


@pytest.fixture(scope="module")
def golden():
    return load_golden("golden_image_preprocess"), load_golden_json("config_image_preprocess")


def settings_of(config) -> ImageSettings:
    processor = config["processor"]
    return ImageSettings(
        min_pixels=processor["image_min_pixels"],
        max_pixels=processor["image_max_pixels"],
        mean=tuple(processor["mean"]),
        std=tuple(processor["std"]),
    )


@pytest.mark.parametrize("backend", ["fast", "reference"])
@pytest.mark.parametrize("name", STILLS)
def test_golden_stills(golden, name, backend):
    tensors, config = golden
    item = config["items"][name]
    made = preprocess_image(
        (golden_dir() / item["file"]).read_bytes(), settings_of(config), LIMITS, backend=backend
    )
    assert list(made.grid_thw) == item["grid_thw"]
    assert made.patches.shape == (item["n_patches"], 1536)
    assert made.num_tokens == item["n_tokens"]
    # A fixture holds all rows, or some runs of rows together with the statistics of all.
    starts = {
        "pixel_values": 0,
        "pixel_values_first16": 0,
        "pixel_values_mid16": item.get("mid_row_start", item["n_patches"] // 2),
        "pixel_values_last16": item["n_patches"] - 16,
    }
    held = {part: tensors[f"{name}.{part}"] for part in starts if f"{name}.{part}" in tensors}
    assert held
    for part, expected in held.items():
        rows = made.patches[starts[part] :][: expected.shape[0]]
        torch.testing.assert_close(rows, expected, atol=TOLERANCE, rtol=0)
    if "mean" in item:
        assert made.patches.double().mean().item() == pytest.approx(item["mean"], abs=1e-5)
        assert made.patches.double().std(correction=0).item() == pytest.approx(item["std"], abs=1e-4)


def test_golden_patch_order(golden):
    tensors, _ = golden
    source = tensors["order_probe.source"]
    made = flatten_patches(source.expand(2, -1, -1, -1), ImageSettings())
    assert torch.equal(made, tensors["order_probe.patches"])


def test_golden_size_table(golden):
    _, config = golden
    for case in config["smart_resize_table"]:
        height, width = case["height"], case["width"]
        if max(height, width) > 200 * min(height, width):
            # The reference skips its own limit for sides under 32; here it holds for all.
            with pytest.raises(InvalidMediaError, match="at most 200 times"):
                smart_resize(height, width, factor=32, min_pixels=8192, max_pixels=8_388_608)
            continue
        made = smart_resize(height, width, factor=32, min_pixels=8192, max_pixels=8_388_608)
        assert list(made) == case["result_hw"], case


@given(
    height=st.integers(1, 20_000),
    width=st.integers(1, 20_000),
    max_pixels=st.integers(1024, 1 << 24),
    min_share=st.floats(0, 1),
)
def test_size_rule_properties(height, width, max_pixels, min_share):
    min_pixels = max(1, int(max_pixels * min_share / 4))
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(InvalidMediaError):
            smart_resize(height, width, factor=32, min_pixels=min_pixels, max_pixels=max_pixels)
        return
    new_height, new_width = smart_resize(
        height, width, factor=32, min_pixels=min_pixels, max_pixels=max_pixels
    )
    assert new_height % 32 == new_width % 32 == 0
    assert min(new_height, new_width) >= 32
    if min(new_height, new_width) > 32:
        assert new_height * new_width <= max(max_pixels, 4 * min_pixels)
    assert new_height * new_width >= min(min_pixels, max_pixels // 4)


@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    max_pixels=st.sampled_from([1024, 4096, 100_000]),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_fast_path_equals_reference(height, width, max_pixels, seed):
    if max(height, width) > 200 * min(height, width):
        return
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)
    numbers = ImageSettings(min_pixels=min(8192, max_pixels), max_pixels=max_pixels)
    fast = preprocess_image(pixels, numbers, LIMITS)
    plain = preprocess_image(pixels, numbers, LIMITS, backend="reference")
    assert fast.grid_thw == plain.grid_thw
    torch.testing.assert_close(fast.patches, plain.patches, atol=TOLERANCE, rtol=0)


def test_fast_path_equals_reference_on_a_large_jpeg():
    """Large enough for the threads and the touched buffer."""
    data = encode(noisy(2400, 1600), "JPEG", quality=90)
    fast = preprocess_image(data, ImageSettings(), LIMITS)
    plain = preprocess_image(data, ImageSettings(), LIMITS, backend="reference")
    # One level of the JPEG decoders' difference is 1 / (255 x 0.26) = 0.015 after normalisation.
    assert (fast.patches - plain.patches).abs().max().item() < 0.03
    pixels = torch.from_numpy(noisy(2400, 1600)).permute(2, 0, 1)
    torch.testing.assert_close(
        preprocess_image(pixels, ImageSettings(), LIMITS).patches,
        preprocess_image(pixels, ImageSettings(), LIMITS, backend="reference").patches,
        atol=TOLERANCE,
        rtol=0,
    )


def test_other_patch_geometry():
    numbers = ImageSettings(
        patch_size=14, merge_size=1, temporal_patch_size=3, min_pixels=196, max_pixels=50_000
    )
    pixels = torch.from_numpy(noisy(150, 100)).permute(2, 0, 1)
    fast = preprocess_image(pixels, numbers, LIMITS)
    assert fast.patches.shape == (fast.num_tokens, 3 * 3 * 14 * 14)
    plain = preprocess_image(pixels, numbers, LIMITS, backend="reference")
    torch.testing.assert_close(fast.patches, plain.patches, atol=TOLERANCE, rtol=0)


def test_one_pixel_works_and_thin_lines_are_refused():
    one = preprocess_image(encode(gradient(1, 1)), ImageSettings(), LIMITS)
    assert one.grid_thw == (1, 6, 6)
    for size in ((1, 5000), (5000, 1)):
        with pytest.raises(InvalidMediaError, match=f"{size[0]} x {size[1]}.*at most 200 times") as caught:
            preprocess_image(encode(np.zeros((size[1], size[0], 3), np.uint8)), ImageSettings(), LIMITS)
        assert caught.value.status == 400


def test_orientation_comes_before_the_size_rule():
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    made = preprocess_image(encode(gradient(320, 160), "JPEG", exif=exif), ImageSettings(), LIMITS)
    assert made.grid_thw == (1, 20, 10)


def test_settings_come_from_the_checkpoint_and_a_request_only_lowers():
    config = {"processor_config": {"patch_size": 16, "merge_size": 2, "image_max_pixels": 65536}}
    numbers = ImageSettings.from_config(config)
    assert (numbers.max_pixels, numbers.min_pixels) == (65536, 8192)
    lowered = numbers.lowered(4096)
    assert (lowered.max_pixels, lowered.min_pixels) == (4096, 4096)
    for wrong in (65537, 1023, 0, -5):
        with pytest.raises(InvalidMediaError, match="this server takes 1024 to 65536"):
            numbers.lowered(wrong)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="'fast' or 'reference'"):
        preprocess_image(b"", ImageSettings(), LIMITS, backend="gpu")
    with pytest.raises(ValueError, match="need uint8"):
        preprocess_image(torch.zeros(3, 4, 4), ImageSettings(), LIMITS)
    with pytest.raises(ValueError, match="min_pixels"):
        ImageSettings(max_pixels=5)
