"""The common corruptions of Hendrycks & Dietterich (2019) at five severities, on tensors.

Written from the paper's descriptions and its two published sets of severity constants: those of
ImageNet-C, made for 224 x 224, and of CIFAR-10-C, milder and made for 32 x 32. One file per family:
``noise``, ``blur``, ``weather`` and ``digital``. At those sizes constants, order and
mean change are the published ones (a table of them is in the tests). Frost is drawn, not
photographed, as bright as the photographs.

A severity is a row of the published constants, not a promise: elastic transform and glass blur have
published severities that lie nearer to the original than the one before.

**Sizes.** ImageNet-C's lengths are pixels of a 224-pixel image. On an image whose shorter side is
smaller they are multiplied by side/224, but never by less than 32/224: below 32 pixels a stroke is
about a pixel wide whatever the image shows. CIFAR-10-C's lengths are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_choice, check_finite, closest, same_kind
from vicinal.perturbations import blur, digital, noise, weather

CONSTANTS = ("imagenet", "cifar")
_REFERENCE = {"imagenet": 224, "cifar": 32}
_SMALLEST = 32


class _Corruption(NamedTuple):
    apply: Callable[[Tensor, Any, float, torch.Generator | None], Tensor]
    constants: Mapping[str, tuple[Any, ...]]


_TABLE: dict[str, _Corruption] = {
    "gaussian_noise": _Corruption(noise.gaussian_noise, noise.GAUSSIAN_NOISE),
    "shot_noise": _Corruption(noise.shot_noise, noise.SHOT_NOISE),
    "impulse_noise": _Corruption(noise.impulse_noise, noise.IMPULSE_NOISE),
    "defocus_blur": _Corruption(blur.defocus_blur, blur.DEFOCUS_BLUR),
    "glass_blur": _Corruption(blur.glass_blur, blur.GLASS_BLUR),
    "motion_blur": _Corruption(blur.motion_blur, blur.MOTION_BLUR),
    "zoom_blur": _Corruption(blur.zoom_blur, blur.ZOOM_BLUR),
    "snow": _Corruption(weather.snow, weather.SNOW),
    "frost": _Corruption(weather.frost, weather.FROST),
    "fog": _Corruption(weather.fog, weather.FOG),
    "brightness": _Corruption(weather.brightness, weather.BRIGHTNESS),
    "contrast": _Corruption(digital.contrast, digital.CONTRAST),
    "elastic_transform": _Corruption(digital.elastic_transform, digital.ELASTIC_TRANSFORM),
    "pixelate": _Corruption(digital.pixelate, digital.PIXELATE),
    "jpeg_compression": _Corruption(digital.jpeg_compression, digital.JPEG_COMPRESSION),
}
_EXTRA: dict[str, _Corruption] = {
    "speckle_noise": _Corruption(noise.speckle_noise, noise.SPECKLE_NOISE),
    "gaussian_blur": _Corruption(blur.gaussian_blur, blur.GAUSSIAN_BLUR),
    "spatter": _Corruption(weather.spatter, weather.SPATTER),
    "saturate": _Corruption(digital.saturate, digital.SATURATE),
}
CORRUPTIONS: tuple[str, ...] = tuple(_TABLE)
"""The names, in the paper's order: noise ×3, blur ×4, weather ×4, digital ×4."""
EXTRA_CORRUPTIONS: tuple[str, ...] = tuple(_EXTRA)
"""Four more, held out of the paper's means: for choosing among models without looking at them."""


def corrupt(
    images: Any,
    name: str,
    severity: int,
    *,
    constants: str = "imagenet",
    generator: torch.Generator | None = None,
) -> Any:
    """The images under one corruption: same shape, dtype, range and kind (numpy or torch).

    Parameters
    ----------
    images
        A batch ``(n, h, w)`` of gray or ``(n, c, h, w)`` of gray (c = 1) or RGB (c = 3) images of
        at least 8 x 8; floats in [0, 1] or uint8.
    name
        One of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
    severity
        1, the mildest, to 5.
    constants
        The published set of severities: ``"imagenet"`` or ``"cifar"``, milder.
    generator
        The same state gives the same result, and the same random numbers at every severity; None
        uses torch's default generator.

    Examples
    --------
    >>> images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> foggy = corrupt(images, "fog", 3, generator=torch.Generator().manual_seed(1))
    >>> foggy.shape, bool((foggy >= 0).all() and (foggy <= 1).all())
    (torch.Size([4, 3, 32, 32]), True)
    """
    check_corruption(name)
    _check_severity(severity)
    check_choice(constants, "constants", CONSTANTS)
    given = as_tensor(images, "images")
    _check_images(given)
    x = _as_unit(given)
    side = min(max(min(x.shape[2:]), _SMALLEST), _REFERENCE[constants])
    apply, table = (_TABLE | _EXTRA)[name]
    with torch.no_grad():
        result = apply(x, table[constants][severity - 1], side / _REFERENCE[constants], generator)
    return same_kind(_as_given(result.clamp(0, 1), given), images)


def check_corruption(name: object) -> None:
    """An unknown corruption is answered with the closest names."""
    if name not in _TABLE | _EXTRA:
        near = closest(str(name), (*CORRUPTIONS, *EXTRA_CORRUPTIONS))
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(
            f"`name` {name!r} is not a corruption.{hint} "
            f"The fifteen are {', '.join(CORRUPTIONS)}; "
            f"four more are {', '.join(EXTRA_CORRUPTIONS)}."
        )


def _check_severity(severity: object) -> None:
    whole = isinstance(severity, Integral) and not isinstance(severity, bool)
    if not whole or severity not in (1, 2, 3, 4, 5):
        raise InputError(
            f"`severity` must be 1, 2, 3, 4 or 5, got {severity!r}. "
            "Severity 0, the clean image, needs no call."
        )


def _check_images(images: Tensor) -> None:
    shape = tuple(images.shape)
    if images.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        raise InputError(
            f"`images` must be (n, c, h, w), got shape {shape} with the channels last. "
            "Pass images.permute(0, 3, 1, 2) (numpy: images.transpose(0, 3, 1, 2))."
        )
    if images.ndim not in (3, 4) or (images.ndim == 4 and shape[1] not in (1, 3)):
        raise InputError(
            f"`images` must be a batch (n, h, w) or (n, c, h, w) with 1 or 3 channels, got shape "
            f"{shape}. For one image pass image[None]."
        )
    if len(images) == 0 or min(shape[-2:]) < 8:
        raise InputError(
            f"`images` must hold at least one image of at least 8 x 8 pixels, got shape {shape}."
        )
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise InputError(
            f"`images` must be uint8 or floats in [0, 1], got {images.dtype}. "
            "Pass images.to(torch.uint8) for values 0 to 255."
        )
    check_finite(images, "images")
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        raise InputError(
            f"`images` of dtype {images.dtype} must lie in [0, 1], got values from {low:.4g} to "
            f"{high:.4g}. Divide by 255, or undo the normalization, and normalize afterwards."
        )


def _as_unit(images: Tensor) -> Tensor:
    """(n, c, h, w) floats in [0, 1]; half precision and bytes are computed in float32."""
    x = images if images.ndim == 4 else images[:, None]
    if images.dtype == torch.uint8:
        return x.float() / 255
    return x if images.dtype == torch.float64 else x.float()


def _as_given(x: Tensor, images: Tensor) -> Tensor:
    x = x.reshape(images.shape)
    return (x * 255).round().to(torch.uint8) if images.dtype == torch.uint8 else x.to(images.dtype)
