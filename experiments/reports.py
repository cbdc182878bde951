"""The gallery of reports: ``python -m experiments.reports OUT [--data DIR] [--pictures DIR]``.

Two need nothing (digits, docstrings); the others need their data set below DIR and are left out, by
name, where it is not there. OUT/index.html lists what was made.
"""

from __future__ import annotations

import argparse
import html
import importlib
import inspect
import io
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from experiments.data import NoDataError, Source, bird_features, bird_trunk, images, sheet
from experiments.fit import outputs
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import vicinal
from vicinal.audits import About, Audit, Media
from vicinal.audits.demo import audited, demonstration
from vicinal.files import write_atomically

SUPPORT, QUERY = 2500, 1200
CLOTHES = "T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
CIFAR = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
LIBRARIES = ["numpy", "scipy.stats", "scipy.signal", "scipy.optimize", "sklearn.metrics"]
GIVEAWAY = re.compile("numpy|scipy|sklearn|scikit-learn|np|stats|signal|optimize|metrics", re.I)


@dataclass(frozen=True)
class Shown:
    """One report of the gallery: what it is of, in a sentence, and how it is made."""

    title: str
    what: str
    make: Callable[[Source], Audit]


def digits(_source: Source) -> Audit:
    return audited(demonstration())


def docstrings(_source: Source) -> Audit:
    texts, labels = [], []
    for library in LIBRARIES:
        module = importlib.import_module(library)
        docs = [inspect.getdoc(getattr(module, name)) or "" for name in dir(module)]
        found = sorted({GIVEAWAY.sub("", " ".join(d.split()))[:200] for d in docs if len(d) > 60})
        texts += found
        labels += [library] * len(found)
    order = np.random.default_rng(0).permutation(len(texts))
    text, label = [texts[i] for i in order], np.array(labels)[order]
    cut = len(text) * 6 // 10
    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    encoder = make_pipeline(words, TruncatedSVD(64, random_state=0)).fit(text[:cut])
    z = encoder.transform(text).astype(np.float32)
    media = Media("texts", text[cut:], text[:cut])
    about = About(name="docstrings", media=media)
    return vicinal.audit(support=(z[:cut], label[:cut]), query=(z[cut:], label[cut:]), about=about)


def clothes(source: Source) -> Audit:
    x, y = images(source, "fashion_mnist")
    return pictures("FashionMNIST pixels", x.flatten(1), x, np.array(CLOTHES.split(","))[y.numpy()])


def cifar10n(source: Source) -> Audit:
    """What people called pictures ("worse": 4 of 10 wrong), in a pretrained net's features."""
    x, _ = images(source, "cifar10")
    where = np.load(source.file("cifar10", "labels.npz"))["train_index"]
    human = np.load(source.file("cifar10", "cifar10n_full50000.npz"))["worse_label"][where]
    clean = np.load(source.file("cifar10", "cifar10n_full50000.npz"))["clean_label"][where]
    names, order = np.array(CIFAR.split(",")), mixed(len(x))
    z = outputs(bird_trunk(source), x[order], 64).numpy()
    label = np.concatenate([names[human[order[:SUPPORT]]], names[clean[order[SUPPORT:]]]])
    return pictures("CIFAR-10N worse", torch.from_numpy(z), x[order], label, ordered=True)


def birds(source: Source) -> Audit:
    z, y = bird_features(source, "train_classes")
    x = sheet(source.file("cub200", "train_classes_64px.jpg"), len(y), 64)
    x = torch.from_numpy(x.transpose(0, 3, 1, 2) / np.float32(255))
    keep = y < 20  # twenty of the hundred: a page one can read
    return pictures("birds", z[keep], x[keep], np.array([f"bird {c:02d}" for c in y[keep]]))


def mixed(n: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(n)[: SUPPORT + QUERY]


def pictures(
    name: str, z: torch.Tensor, x: torch.Tensor, label: np.ndarray, *, ordered: bool = False
) -> Audit:
    order = np.arange(len(z)) if ordered else mixed(len(z))
    cut = len(order) * SUPPORT // (SUPPORT + QUERY)
    pixels = (x[order].permute(0, 2, 3, 1) * 255).round().to(torch.uint8).squeeze(-1).numpy()
    rows, label = z[order].numpy(), label[order]
    about = About(name=name, media=Media("images", pixels[cut:], pixels[:cut]))
    return vicinal.audit(
        support=(rows[:cut], label[:cut]), query=(rows[cut:], label[cut:]), about=about
    )


REPORTS = {
    "digits": Shown("Digits", "The demo: wrong labels and letters were planted.", digits),
    "docstrings": Shown("Docstrings", "Which library is a sentence from?", docstrings),
    "clothes": Shown("FashionMNIST", "Pixels of clothes, in the space that fits.", clothes),
    "cifar10n": Shown("CIFAR-10N", "Labels as hurried people gave them: 4 of 10 wrong.", cifar10n),
    "birds": Shown("Birds", "Features of a pretrained net, twenty kinds.", birds),
}


def picture(page: Path, target: Path) -> None:
    """The top of a page as the browser shows it, in few colors."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as browsers:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = browsers.chromium.launch(executable_path=found, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 860})
        view.goto(page.resolve().as_uri())
        view.wait_for_timeout(2500)
        shot = Image.open(io.BytesIO(view.screenshot()))
        browser.close()
    small = shot.convert("RGB").resize((960, 645), Image.Resampling.LANCZOS).quantize(160)
    small.save(target, optimize=True)


def main() -> None:
    ask = argparse.ArgumentParser(prog="python -m experiments.reports")
    ask.add_argument("out", type=Path)
    ask.add_argument("--data", type=Path)
    ask.add_argument("--pictures", type=Path)
    ask.add_argument("--only", choices=REPORTS, action="append")
    given = ask.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    made = []
    warnings.simplefilter("ignore")
    for name in given.only or REPORTS:
        page = given.out / f"{name}.html"
        try:
            REPORTS[name].make(Source(given.data)).save(page)
        except (NoDataError, ModuleNotFoundError) as missing:
            print(f"{name}: left out, {missing}")
            continue
        made.append(name)
        print(page, f"{page.stat().st_size / 1e6:.1f} MB", flush=True)
        if given.pictures:
            picture(page, given.pictures / f"{name}.png")
    cards = [
        f'<li><a href="{name}.html">{html.escape(REPORTS[name].title)}</a>: '
        f"{html.escape(REPORTS[name].what)}</li>"
        for name in made
    ]
    text = f"<!doctype html><meta charset=utf-8><title>Reports</title><ul>{''.join(cards)}</ul>"
    write_atomically(given.out / "index.html", text)


if __name__ == "__main__":
    main()
