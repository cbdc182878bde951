"""The corruptions: what they keep, how they grow, and what others make of the same ones."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_digits

import reference
from published_corruptions import MEANS, crops
from vicinal.checks import InputError
from vicinal.perturbations import CONSTANTS, CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from vicinal.perturbations.blur import (
    BORDERS_OF_SCIPY,
    _disk,
    along_a_path,
    convolve,
    defocus_blur,
    smoothing_matrix,
    splat,
    zoom_matrix,
)
from vicinal.perturbations.digital import PIXELATE, cell_counts
from vicinal.perturbations.weather import plasma

each_corruption = pytest.mark.parametrize("name", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
FIXED = {
    "gaussian_blur",
    "saturate",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
}
each_set = pytest.mark.parametrize("constants", CONSTANTS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def digits(n=48, size=8):
    """Handwritten digits (8 x 8, in [0, 1]), enlarged smoothly where a larger size is asked for."""
    images = torch.tensor(load_digits().images[:n] / 16, dtype=torch.float32)
    if size == 8:
        return images
    return F.interpolate(images[:, None], size=size, mode="bicubic")[:, 0].clamp(0, 1)


def color(n=6, size=32):
    """Three digits as the three channels: edges, flat parts, colors."""
    return digits(3 * n, size).view(n, 3, size, size)


# Elsewhere the published severities are not in the order of the distance to the original.
GROWING = [
    name
    for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    if all(list(MEANS[c][name]) == sorted(MEANS[c][name]) for c in CONSTANTS)
]


@each_set
@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize(
    "images", [digits(64), digits(24, 28), color(16, 32)], ids=["8", "28", "32c"]
)
def test_a_higher_severity_lies_farther_where_the_published_one_does(name, constants, images):
    moved = [
        corrupt(images, name, severity, constants=constants, generator=seeded())
        for severity in range(1, 6)
    ]
    distance = [float((m - images).flatten(1).norm(dim=1).mean()) for m in moved]
    assert distance[0] > 0
    assert distance == sorted(distance)
    assert len(set(distance)) == 5


@each_set
@pytest.mark.parametrize("name", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
def test_images_change_as_much_as_under_the_published_scripts(name, constants):
    """Within 10 % at every severity, at the size the constants were made for."""
    images = crops(constants)
    draws = 1 if name in FIXED or name == "glass_blur" else 30 if constants == "cifar" else 6
    images = images.repeat(draws * (2 if name == "frost" else 1), 1, 1, 1)
    for severity, published in enumerate(MEANS[constants][name], 1):
        moved = corrupt(images, name, severity, constants=constants, generator=seeded(severity))
        # Half of the table's last digit is rounding.
        change = float((moved - images).abs().mean())
        assert change == pytest.approx(published, rel=0.1, abs=5e-5), severity


@each_corruption
@pytest.mark.parametrize(
    "images",
    [
        digits(2),
        digits(2)[:, None].double(),
        (color(2, 12) * 255).byte(),
        color(2, 12).half(),
        F.pad(color(2, 16), (0, 7)),
        torch.zeros(2, 9, 9),
        torch.ones(1, 3, 9, 17),
    ],
    ids=["nhw", "float64", "bytes", "half", "wide", "black", "white"],
)
def test_shape_dtype_and_range_are_kept(name, images):
    before = images.clone()
    moved = corrupt(images, name, 5, generator=seeded())
    assert moved.shape == images.shape
    assert moved.dtype == images.dtype
    assert torch.isfinite(moved.float()).all()
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= (255 if images.dtype == torch.uint8 else 1)
    assert torch.equal(images, before)


@each_set
@each_corruption
def test_the_same_seed_gives_the_same_images_and_leaves_the_global_seed_alone(name, constants):
    images, state = color(3, 16), torch.get_rng_state()
    first = corrupt(images, name, 3, constants=constants, generator=seeded(5))
    assert torch.equal(first, corrupt(images, name, 3, constants=constants, generator=seeded(5)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", sorted({*CORRUPTIONS, *EXTRA_CORRUPTIONS} - FIXED))
def test_another_seed_gives_other_images_and_no_two_of_a_batch_are_corrupted_alike(name):
    images = digits(1, 28).expand(4, -1, -1).clone()
    moved = corrupt(images, name, 3, generator=seeded(1))
    assert not torch.equal(moved, corrupt(images, name, 3, generator=seeded(2)))
    assert not torch.equal(moved[0], moved[1])


def test_numpy_in_gives_numpy_out():
    images = digits(3).numpy()
    moved = corrupt(images, "fog", 2, generator=seeded())
    assert isinstance(moved, np.ndarray)
    assert moved.dtype == images.dtype
    assert np.array_equal(moved, corrupt(torch.from_numpy(images), "fog", 2, generator=seeded()))


@each_corruption
def test_the_two_published_sets_of_constants_differ(name):
    images = color(4, 32)
    imagenet, cifar = (corrupt(images, name, 3, constants=c, generator=seeded()) for c in CONSTANTS)
    assert not torch.equal(imagenet, cifar)


def test_gray_images_are_treated_as_one_channel():
    for name in CORRUPTIONS:
        flat = corrupt(digits(2, 28), name, 3, generator=seeded())
        assert torch.equal(flat, corrupt(digits(2, 28)[:, None], name, 3, generator=seeded())[:, 0])


# ------------------------------------------------------------------ against other implementations


def test_gaussian_noise_has_the_published_deviation():
    gray = torch.full((1, 1, 256, 256), 0.5)
    for severity, sigma in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1):
        moved = corrupt(gray, "gaussian_noise", severity, constants="cifar", generator=seeded())
        assert float(moved.std()) == pytest.approx(sigma, rel=0.02)


def test_shot_noise_has_the_mean_and_variance_of_counted_photons():
    gray = torch.full((1, 1, 256, 256), 0.3)
    moved = corrupt(gray, "shot_noise", 1, constants="cifar", generator=seeded())
    assert float(moved.mean()) == pytest.approx(0.3, rel=0.01)
    assert float(moved.var()) == pytest.approx(0.3 / 500, rel=0.03)


def test_impulse_noise_changes_the_published_share_to_black_and_white_evenly():
    gray = torch.full((1, 1, 256, 256), 0.5)
    moved = corrupt(gray, "impulse_noise", 5, generator=seeded())
    assert float((moved == 0).float().mean()) == pytest.approx(0.27 / 2, rel=0.05)
    assert float((moved == 1).float().mean()) == pytest.approx(0.27 / 2, rel=0.05)
    milder = corrupt(gray, "impulse_noise", 4, generator=seeded())
    assert not ((milder != gray) & (moved == gray)).any()  # what flips early stays flipped


@pytest.mark.parametrize("border", BORDERS_OF_SCIPY)
@pytest.mark.parametrize("sigma", [0.05, 0.7, 3.0, 40.0])
def test_the_gaussian_filter_is_scipys(border, sigma):
    image = digits(1, 20)[0].double()
    rows = smoothing_matrix(20, sigma, image, truncate=3, border=border)
    theirs = ndimage.gaussian_filter(image.numpy(), sigma, mode=border, truncate=3)
    assert np.allclose(rows @ image @ rows.T, theirs)


def test_convolution_is_scipys_correlation(rng):
    x = torch.rand(2, 3, 9, 11, generator=rng, dtype=torch.float64)
    kernels = torch.rand(2, 5, 5, generator=rng, dtype=torch.float64)
    for ours, theirs in (("reflect", "mirror"), ("replicate", "nearest")):
        result = convolve(x, kernels, ours)
        for i in range(2):
            expected = ndimage.correlate(x[i, 1].numpy(), kernels[i].numpy(), mode=theirs)
            assert np.allclose(result[i, 1], expected)


@pytest.mark.parametrize("constants", [(3, 0.1), (4, 0.5), (10, 0.5), (0.3, 0.4), (1.5, 0.1)])
def test_defocus_is_a_disk_softened_by_a_gaussian(constants):
    radius, edge = constants
    steps = np.arange(-12, 13)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(float)
    rim = 1 if radius <= 8 else 2
    bell = np.exp(-0.5 * (np.arange(-rim, rim + 1) / edge) ** 2)
    soft = ndimage.convolve(
        disk / disk.sum(), np.outer(bell, bell) / bell.sum() ** 2, mode="constant"
    )
    image = digits(1, 40)[:, None].double()
    expected = ndimage.correlate(image[0, 0].numpy(), soft, mode="mirror")
    assert np.allclose(defocus_blur(image, constants, 1.0, None)[0, 0], expected)


def test_a_scaled_kernel_keeps_its_light_and_its_spread():
    moves, weights = _disk(10, 0.5)
    spread = float((moves[:, 0] ** 2 * weights).sum())
    for scale in (1 / 7, 0.3, 0.5):
        kernel = splat((moves * scale)[None], weights)[0]
        place = torch.arange(len(kernel)).double() - len(kernel) // 2
        assert float(kernel.sum()) == pytest.approx(1)
        # Splitting between pixels adds at most the variance of a tent, 1/4 pixel².
        excess = float((place[:, None] ** 2 * kernel).sum()) - spread * scale**2
        assert 0 <= excess <= 0.25


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_motion_blur_is_the_loop_along_its_path(rng, scale):
    image = torch.rand(2, 1, 10, 9, generator=rng, dtype=torch.float64)
    angles = torch.tensor([0.3, -2.0], dtype=torch.float64)
    moved = along_a_path(image, angles, 4, 2.0, scale)
    for i in range(2):
        slow = reference.blur_along_a_path(image[i, 0].tolist(), float(angles[i]), 6, 2.0, scale)
        assert np.allclose(moved[i, 0], slow)


@pytest.mark.parametrize("factor", [1.0, 1.03, 1.4])
def test_zoom_is_scipys_affine_map_about_the_center(factor):
    image = digits(1, 15)[0].double()
    middle = 7 - 7 / factor
    theirs = ndimage.affine_transform(
        image.numpy(), [1 / factor] * 2, middle, order=1, mode="nearest"
    )
    rows = zoom_matrix(15, factor, image)
    assert np.allclose(rows @ image @ rows.T, theirs)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.04, 1.25])
@pytest.mark.parametrize("size", [32, 61])
def test_from_32_pixels_on_zoom_is_the_published_crop_and_scipys_zoom(factor, size):
    image = digits(1, size)[0].double()
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    wide = ndimage.zoom(image.numpy()[top : top + crop, top : top + crop], factor, order=1)
    trim = (len(wide) - size) // 2
    rows = zoom_matrix(size, factor, image)
    assert np.allclose(rows @ image @ rows.T, wide[trim : trim + size, trim : trim + size])


def test_zoom_blur_is_the_mean_of_the_published_magnifications():
    image = digits(1, 32).double()
    total = image[0].clone()
    factors = np.arange(1, 1.21, 0.02)
    for factor in factors:
        rows = zoom_matrix(32, float(factor), image)
        total += rows @ image[0] @ rows.T
    moved = corrupt(image, "zoom_blur", 3)
    assert torch.allclose(moved[0], total / (len(factors) + 1))


def test_glass_blur_at_no_sigma_only_copies_pixels_and_not_from_far():
    image = torch.arange(18 * 18, dtype=torch.float64).view(1, 1, 18, 18) / 1000
    moved = corrupt(image, "glass_blur", 1, constants="cifar", generator=seeded())  # sigma 0.05
    assert not torch.equal(moved, image)
    came_from = (moved * 1000).round().long()[0, 0]
    assert torch.allclose(came_from.double() / 1000, moved[0, 0])
    rows = torch.arange(18)[:, None].expand(18, 18)
    assert int((came_from // 18 - rows).abs().float().median()) <= 1


def test_the_haze_is_a_diamond_square_fractal(rng):
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    mirror, step = torch.Generator().manual_seed(0), 8
    drawn = []
    while step >= 2:
        cells_ = 8 // step
        shape = (3, 1, cells_, cells_)
        drawn += (torch.rand(shape, generator=mirror, dtype=x.dtype) * 2 - 1).flatten().tolist()
        step //= 2
    slow = torch.tensor(reference.diamond_square(8, iter(drawn), 1.7), dtype=torch.float64)
    slow = slow - slow.mean()
    slow = 0.5 + slow / (2 * slow.abs().max())
    assert torch.allclose(plasma(x, 1.7, rng)[0], slow)


def test_fog_keeps_the_brightest_value_a_bound():
    images = digits(4, 28) * 0.6
    foggy = corrupt(images, "fog", 5, generator=seeded())
    assert float(foggy.max()) <= float(images.max()) + 1e-6


def test_brightness_raises_the_value_of_hsv():
    image = color(1, 8)
    moved = corrupt(image, "brightness", 3)
    for row in range(8):
        for column in range(8):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[0, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1))
            assert np.allclose(moved[0, :, row, column], expected, atol=1e-5)


def test_saturate_scales_the_saturation_of_hsv():
    image = color(1, 8)
    image[..., 0, 0] = 0.5
    moved = corrupt(image, "saturate", 4)
    for row in range(8):
        for column in range(8):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[0, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb(hue, min(5 * saturation + 0.1, 1), value)
            assert np.allclose(moved[0, :, row, column], expected, atol=1e-5)
    assert torch.equal(corrupt(digits(2), "saturate", 5), digits(2))


def test_speckle_noise_is_in_proportion_to_the_light():
    gray = torch.full((2, 1, 256, 256), 0.2)
    gray[1] = 0.5
    moved = corrupt(gray, "speckle_noise", 1, constants="cifar", generator=seeded())
    assert moved.std((1, 2, 3)).tolist() == pytest.approx([0.2 * 0.06, 0.5 * 0.06], rel=0.02)


def test_gaussian_blur_is_scipys():
    image = digits(1, 224).double()
    theirs = ndimage.gaussian_filter(image[0].numpy(), 2.0, mode="nearest")
    assert np.allclose(corrupt(image, "gaussian_blur", 2)[0], theirs)


def test_mud_covers_and_water_lightens():
    images = color(4, 32)
    water, mud = (
        corrupt(images, "spatter", s, constants="cifar", generator=seeded()) for s in (2, 5)
    )
    assert (water >= images).all()
    assert bool((water > images).any())
    brown = torch.tensor([63, 42, 20])[:, None, None] / 255
    touched = mud != images
    nearer = (mud - brown).abs() <= (images - brown).abs() + 1e-6
    assert bool(touched.any())
    assert bool(nearer[touched].all())


def test_contrast_draws_each_channel_to_its_mean():
    image = color(2, 16).double()
    moved = corrupt(image, "contrast", 2)
    mean = image.mean((2, 3), keepdim=True)
    assert torch.allclose(moved - mean, 0.3 * (image - mean))
    assert torch.allclose(moved.mean((2, 3), keepdim=True), mean)


@pytest.mark.parametrize("size", [32, 48, 64])
@pytest.mark.parametrize("constants", CONSTANTS)
def test_pixelate_is_pillows_box_filter_down_and_up(constants, size):
    images = (color(2, size) * 255).byte()
    for severity, share in enumerate(PIXELATE[constants], 1):
        moved = corrupt(images, "pixelate", severity, constants=constants)
        for i in range(2):
            small = Image.fromarray(images[i].movedim(0, -1).numpy())
            small = small.resize((int(size * share),) * 2, Image.Resampling.BOX)
            theirs = np.asarray(small.resize((size, size), Image.Resampling.BOX)).astype(int)
            gap = np.abs(theirs - moved[i].movedim(0, -1).numpy().astype(int))
            assert gap.max() <= 1  # Pillow rounds after each axis


@pytest.mark.parametrize("size", [8, 9, 12, 16, 32, 224])
@pytest.mark.parametrize("shares", PIXELATE.values(), ids=CONSTANTS)
def test_each_pixelation_has_fewer_cells_than_the_milder_one(size, shares):
    counts = cell_counts(size, shares)
    assert all(a > b > 0 for a, b in zip([size, *counts], counts, strict=False))


@pytest.mark.parametrize("severity", [1, 5])
def test_jpeg_is_what_pillow_reads_back(severity):
    images = (color(2, 24) * 255).byte()
    moved = corrupt(images, "jpeg_compression", severity)
    for i in range(2):
        buffer = io.BytesIO()
        quality = (25, 18, 15, 10, 7)[severity - 1]
        Image.fromarray(images[i].movedim(0, -1).numpy()).save(buffer, "JPEG", quality=quality)
        assert np.array_equal(np.asarray(Image.open(buffer)), moved[i].movedim(0, -1))


def test_an_elastic_transform_leaves_a_flat_image_flat_and_moves_no_brightness_in_between():
    flat = torch.full((3, 1, 20, 20), 0.4)
    assert torch.allclose(corrupt(flat, "elastic_transform", 5, generator=seeded()), flat)
    images = digits(8, 28)
    moved = corrupt(images, "elastic_transform", 3, generator=seeded())
    assert float(moved.max()) <= float(images.max())


def test_the_elastic_ripple_is_the_same_part_of_the_image_at_every_size():
    """A ramp read through the transform shows the displacement itself."""
    shifts = []
    for size in (32, 64):
        ramp = torch.linspace(0, 1, size, dtype=torch.float64).expand(16, 1, size, size).clone()
        moved = corrupt(ramp, "elastic_transform", 3, generator=seeded())
        inner = slice(size // 4, -size // 4)
        shifts.append(float((moved - ramp)[..., inner, inner].std()))
    assert shifts[0] == pytest.approx(shifts[1], rel=0.5)


# ------------------------------------------------------------------ wrong input


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, 3.0, True, "3", None])
def test_a_severity_outside_one_to_five_is_an_error(severity):
    with pytest.raises(InputError, match="`severity` must be 1, 2, 3, 4 or 5, got"):
        corrupt(digits(1), "fog", severity)


def test_an_unknown_corruption_is_answered_with_the_closest_names():
    with pytest.raises(
        InputError, match=r"'motion_blurr' is not a corruption. Did you mean 'motion_blur'"
    ):
        corrupt(digits(1), "motion_blurr", 1)
    with pytest.raises(InputError, match="jpeg_compression"):
        corrupt(digits(1), "xyz", 1)


@pytest.mark.parametrize("value", [1.01, -0.01, 255.0])
def test_images_outside_their_range_are_an_error_that_says_the_range(value):
    images = digits(2).clone()
    images[0, 0, 0] = value
    with pytest.raises(InputError, match=r"must lie in \[0, 1\], got values from .* Divide by 255"):
        corrupt(images, "fog", 1)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(8, 8), "For one image pass"),
        (torch.rand(2, 2, 9, 9), "1 or 3 channels"),
        (torch.rand(2, 9, 9, 3), "channels last"),
        (torch.rand(2, 7, 9), "at least 8 x 8"),
        (torch.rand(0, 9, 9), "at least one image"),
        (torch.full((1, 9, 9), math.nan), "NaN"),
        (torch.zeros(1, 9, 9, dtype=torch.int64), "must be uint8 or floats"),
    ],
)
def test_what_is_no_batch_of_images_is_told_what_to_pass(images, words):
    with pytest.raises(InputError, match=words):
        corrupt(images, "contrast", 1)


def test_unknown_constants_are_an_error():
    with pytest.raises(InputError, match="`constants` must be one of 'imagenet', 'cifar'"):
        corrupt(digits(1), "fog", 1, constants="imagenet-c")
