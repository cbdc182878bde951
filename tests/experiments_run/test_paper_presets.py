"""The paper presets: data as their authors publish them, nets of the paper's size."""

import numpy as np
import pytest
import torch
from experiments import nets
from experiments.bontonou2019graph import smooth
from experiments.data import NoDataError, Source, images
from experiments.runner import module_of, names
from scipy.io import savemat

GENERATED = ("beyond/", "toy", "digits", "sinusoid", "fig04_released", "mixtures", "listing")
NEED_DATA = [n for n in names() if not any(word in n for word in GENERATED)]


@pytest.mark.parametrize("name", NEED_DATA)
def test_a_paper_preset_names_data_that_have_a_reader(name, tmp_path):
    module = module_of(name)
    with pytest.raises(NoDataError, match=r"pass --data DIR that holds .* \(.+\)\."):
        module.run(module.PRESETS["paper"], 0, Source(tmp_path))


def test_all_of_cifar10_is_read_from_its_binary_version(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    for name, held in zip(
        [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], rows, strict=True
    ):
        held.tofile(folder / f"{name}.bin")
    x, y = images(Source(tmp_path), "cifar10_whole")
    assert x.shape == (10, 3, 32, 32)
    assert y.tolist() == rows[:5, :, 0].ravel().tolist()
    assert x[3, 1, 0, 2] == pytest.approx(rows[1, 1, 1 + 1024 + 2] / 255)
    assert len(images(Source(tmp_path), "cifar10_whole", "test")[1]) == 2


def test_svhn_has_the_digit_zero_where_the_file_says_ten(tmp_path):
    (tmp_path / "svhn").mkdir()
    pixels = np.arange(32 * 32 * 3 * 2, dtype=np.uint8).reshape(32, 32, 3, 2)
    savemat(tmp_path / "svhn" / "train_32x32.mat", {"X": pixels, "y": np.array([[10], [3]])})
    x, y = images(Source(tmp_path), "svhn")
    assert y.tolist() == [0, 3]
    assert x[1, 2, 5, 7] == pytest.approx(pixels[5, 7, 2, 1] / 255)


def test_the_papers_resnet_has_four_groups_and_eleven_million_weights():
    net = nets.preact_resnet18(3)
    assert 11.1e6 < sum(p.numel() for p in net.parameters()) < 11.2e6
    assert net[:5](torch.rand(2, 3, 32, 32)).shape == (2, 512, 4, 4)


def test_the_papers_resnet_is_trained_where_a_preset_names_it(monkeypatch):
    built = []
    monkeypatch.setattr(
        nets, "preact_resnet18", lambda c, out: built.append(c) or nets.res8(c, 4, out)
    )
    rows = torch.rand(40, 3, 8, 8), torch.arange(10).repeat(4)
    for net in ("res8", "preact_resnet18"):
        model = smooth.trained(rows, 2, 3, 0, smooth={"alpha": 2.0}, net=net)
        assert all(p.isfinite().all() for p in model.parameters())
    assert built == [3]
    for name in names(["bontonou*"]):
        presets = module_of(name).PRESETS
        assert (presets["cpu"].net, presets["paper"].net) == ("res8", "preact_resnet18")


def test_a_jittered_image_is_a_shifted_copy_or_mirror_of_itself():
    image = torch.arange(1.0, 65).view(1, 1, 8, 8).expand(20, 3, -1, -1)
    moved = smooth.jittered(image, torch.Generator().manual_seed(0))
    assert moved.shape == image.shape
    padded = torch.nn.functional.pad(image[:1], (4, 4, 4, 4))
    cuts = {
        tuple(way[0, 0, a : a + 8, b : b + 8].flatten().tolist())
        for way in (padded, padded.flip(3)) for a in range(9) for b in range(9)
    }  # fmt: skip
    seen = {tuple(one[0].flatten().tolist()) for one in moved}
    assert seen <= cuts
    assert len(seen) > 5
