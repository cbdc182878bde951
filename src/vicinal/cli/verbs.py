"""Every verb with its line of help, an example and its flags: the command line at one glance.

A flag is called as its field, unless it says otherwise. Those that several verbs share come first,
in groups that a verb's own record inherits. Nothing here needs torch: a verb's module is loaded
when the verb is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Argument, Option

Out = Annotated[Path | None, Option("--out", "-o", help="Where to write.")]
Seed = Annotated[int, Option(help="The same seed gives the same numbers.", min=0, max=2**32 - 1)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Say nothing but warnings.")]
Fresh = Annotated[bool, Option(help="Start anew; ignore what a stopped run left.")]
Metric = Annotated[str, Option(help="l2 or cosine.")]
DropBad = Annotated[bool, Option(help="Skip rows with NaN/Inf; list them.")]
TargetAccuracy = Annotated[
    float | None,
    Option(
        help="Accuracy the accepted rows keep; default: the highest of 0.90, 0.95, 0.97, 0.99 "
        "that half of the rows can meet."
    ),
]
TrustPickle = Annotated[bool, Option(help="Load pickled objects. They can run any code.")]
Unfamiliar = Annotated[float, Option(help="Share of ordinary rows that may be called so.")]
TrustFolder = Annotated[bool, Option(help="Run the model that config.json names. It is code.")]
On = Annotated[str | None, Option(help="ray, or ray://host:10001: work in a Ray cluster.")]
LARGEST = 4096  # pixels of a side
METRICS = ("l2", "cosine")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which key or column holds what, where the usual names do not."""

    embedding_key: Annotated[str | None, Option(help="Key or column of the embeddings.")] = None
    label_key: Annotated[str | None, Option(help="Key or column of the labels.")] = None
    id_col: Annotated[str | None, Option(help="Key or column of the ids.")] = None
    image_col: Annotated[str | None, Option(help="Images, or paths of images.")] = None
    text_col: Annotated[str | None, Option(help="Key or column of the texts.")] = None
    media_root: Annotated[
        Path | None, Option(help="Folder that paths of pictures in data files may name.")
    ] = None
    align: Annotated[str | None, Option(help="'ids': match labels to rows by id.")] = None
    trust_pickle: TrustPickle = False


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """How stored features become one vector per row."""

    pool: Annotated[str | None, Option(help="mean, max or flatten, for 4-D features.")] = None
    transpose: Annotated[bool, Option(help="Embeddings are stored as (d, n).")] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is made ready."""

    weights: Annotated[str | None, Option(help="Checkpoint for --model.")] = None
    model_arg: Annotated[
        list[str] | None, Option(help="name=value for the factory; repeatable.")
    ] = None
    output: Annotated[str | None, Option(help="Which of several model outputs are the logits.")] = (
        None
    )
    online: Annotated[bool, Option(help="Let hf:, timm: and others download a model.")] = False
    trust_pickle: TrustPickle = False


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """What the model's outputs stand for, in their order."""

    classes: Annotated[
        str | None, Option(help="In the order of the model's outputs: a file, or a,b,c.")
    ] = None
    labels: Annotated[Path | None, Option(help="The same as a file, one name per line.")] = None


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are read for a model."""

    size: Annotated[
        int | None, Option(help="Resize images to this square.", min=1, max=LARGEST)
    ] = None
    gray: Annotated[bool, Option(help="Read images with one channel.")] = False
    mean: Annotated[str | None, Option(help="Subtracted from pixels in [0, 1]: 0.5 or r,g,b.")] = (
        None
    )
    std: Annotated[str | None, Option(help="What they are then divided by: 0.5 or r,g,b.")] = None


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """What is printed, and where."""

    as_json: Annotated[bool, Option("--json", help="Print the result as JSON on stdout, only.")] = (
        False
    )
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class DemoOptions(ConsoleOptions):
    """Digits with planted wrong labels and planted letters: an audit that says what it missed."""

    EXAMPLE: ClassVar[str] = "vicinal demo -o vicinal-demo"

    out: Out = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class AuditOptions(
    DataOptions, VectorOptions, ModelOptions, ClassOptions, ImageOptions, ConsoleOptions
):
    """How far may each prediction be trusted, which labels look wrong, and who says so."""

    EXAMPLE: ClassVar[str] = (
        "vicinal audit train.npz test.npz --target-accuracy 0.99   ·   "
        "vicinal audit photos/train photos/test --model net.py:make --weights w.pt"
    )

    support: Annotated[
        str | None, Argument(help="Labeled reference rows: file, folder, pattern.")
    ] = None
    query: Annotated[str | None, Argument(help="Rows to judge.")] = None
    calib: Annotated[str | None, Option(help="Held-out rows to fit on.")] = None
    foreign: Annotated[str | None, Option(help="Rows of none of the classes: would it show?")] = (
        None
    )
    out: Out = None
    k: Annotated[str, Option(help="Neighbors that vote, or auto.")] = "auto"
    metric: Metric = "l2"
    normalize: Annotated[
        bool, Option("--normalize/--no-normalize", help="Scale every row to length 1 first.")
    ] = False
    space: Annotated[
        str,
        Option(
            help="Where rows are compared: raw, unit, centered-unit, standardized, whitened, "
            "learned, or fit: what held-out rows choose."
        ),
    ] = "fit"
    map: Annotated[str, Option(help="tsne keeps neighbors near; linear is quicker; none.")] = "tsne"
    search: Annotated[
        str, Option(help="Who finds neighbors: exact, faiss, or auto: what costs less here.")
    ] = "auto"
    recall: Annotated[float, Option(help="Share of the true neighbors to find, at least.")] = 0.98
    target_accuracy: TargetAccuracy = None
    unfamiliar: Unfamiliar = 0.05
    prior: Annotated[str, Option(help="Class shares: support, uniform.")] = "support"
    ignore_unknown: Annotated[bool, Option(help="Do not score classes the support lacks.")] = False
    force_ece: Annotated[bool, Option(help="ECE even on few rows.")] = False
    model: Annotated[
        str | None, Option(help="file.py:factory, pkg.module:factory, .ts, .pt2, timm:, hf:.")
    ] = None
    embedding: Annotated[str | None, Option(help="Layer to search in; default: last but one.")] = (
        None
    )
    layer: Annotated[list[str] | None, Option(help="Layer for the story; repeatable.")] = None
    stress: Annotated[
        bool | None,
        Option(
            "--stress/--no-stress",
            help="All corruptions and attacks on images, or none; by default a few.",
        ),
    ] = None
    checkpoints: Annotated[
        str | None, Option(help="'ckpt/*.pt': entanglement by layer over training.")
    ] = None
    apply: Annotated[
        Path | None, Option(help="Decisions exported from the page: relabel first.")
    ] = None
    drop_bad: DropBad = False
    no_images: Annotated[bool, Option(help="No thumbnails.")] = False
    hash_ids: Annotated[bool, Option(help="Ids as checksums.")] = False
    max_mb: Annotated[float, Option(help="Size of the page.", min=0.1, max=1000.0)] = 10.0
    seed: Seed = 0
    config: Annotated[Path | None, Option(help="Settings of an earlier run (config.json).")] = None
    trust_folder: TrustFolder = False
    memory: Annotated[
        str | None, Option(help="2GB: what may be taken; rows are then streamed.")
    ] = None
    on: On = None
    fresh: Fresh = False


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(ModelOptions, ImageOptions, DataOptions, ConsoleOptions):
    """Run a model over data and keep layers; interrupted, the same command goes on."""

    EXAMPLE: ClassVar[str] = (
        "vicinal embed model.py:make photos/ --weights w.pt --layer fc1 -o train-embeddings"
    )

    model: Annotated[
        str, Argument(help="file.py:factory, pkg.module:factory, .ts, .pt2, timm:, hf:.")
    ]
    data: Annotated[str, Argument(help="Image folder, .npz, .npy or module:dataset.")]
    layer: Annotated[list[str] | None, Option(help="Layer to keep; repeatable.")] = None
    out: Out = None
    pool: Annotated[str, Option(help="flatten, mean, max or first.")] = "flatten"
    batch_size: Annotated[int, Option(help="Rows per forward pass.", min=1, max=2**20)] = 256
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    on: On = None
    fresh: Fresh = False


@dataclass(frozen=True, kw_only=True)
class FitOptions(DataOptions, VectorOptions, ConsoleOptions):
    """Fit temperature and thresholds, and write a .vic file that predict and your service load."""

    EXAMPLE: ClassVar[str] = (
        "vicinal fit train.npz --calib val.npz --target-accuracy 0.99 -o trust.vic"
    )

    support: Annotated[str, Argument(help="Labeled reference rows; or a table, pg:TABLE.")]
    store: Annotated[
        str | None, Option(help="pg:TABLE: keep the rows there, not in the .vic file.")
    ] = None
    calib: Annotated[str | None, Option(help="Held-out labeled rows.")] = None
    target_accuracy: TargetAccuracy = None
    unfamiliar: Unfamiliar = 0.05
    out: Out = None
    k: Annotated[int | None, Option(help="Neighbors that vote.", min=1)] = None
    metric: Metric = "l2"
    drop_bad: DropBad = False


@dataclass(frozen=True, kw_only=True)
class PredictOptions(DataOptions, VectorOptions, ModelOptions, ImageOptions, ConsoleOptions):
    """Label, confidence, credibility, verdict and reason of each row; one line each."""

    EXAMPLE: ClassVar[str] = (
        "vicinal predict trust.vic new.npz   ·   "
        "vicinal predict trust.vic photos/ --model net.py:make   ·   "
        "cat rows.jsonl | vicinal predict trust.vic - --jsonl -"
    )

    head: Annotated[Path, Argument(help="A .vic file of fit or audit.")]
    query: Annotated[str, Argument(help="Rows to judge; - reads JSON lines from stdin.")]
    model: Annotated[
        str | None, Option(help="What embeds images; layer and size are the head's own.")
    ] = None
    embedding: Annotated[str | None, Option(help="Another layer than the head's own.")] = None
    out: Out = None
    jsonl: Annotated[str | None, Option(help="Write JSON lines to this file, or - for stdout.")] = (
        None
    )
    show: Annotated[int, Option("--head", help="Print this many rows.", min=0)] = 0


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ConsoleOptions):
    """Differences with paired 95 % intervals; what changed, was fixed, was broken."""

    EXAMPLE: ClassVar[str] = (
        'vicinal compare runs/base runs/new --fail-if "ece > +0.01" --fail-if "coverage < -0.02"'
    )

    a: Annotated[Path, Argument(help="The run to compare with.")]
    b: Annotated[Path, Argument(help="The run to judge.")]
    fail_if: Annotated[
        list[str] | None, Option(help="'ece > +0.01': a gate; exit code 1 if it is true.")
    ] = None
    out: Out = None
    markdown: Annotated[bool, Option("--md", help="Print the table as Markdown.")] = False
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class LayersOptions(ModelOptions, ConsoleOptions):
    """List layer names, kinds and parameter counts; with --input also output shapes."""

    EXAMPLE: ClassVar[str] = "vicinal layers model.py:make --weights w.pt --input 1,28,28"

    model: Annotated[str, Argument(help="file.py:factory or pkg.module:factory.")]
    shape: Annotated[
        str | None, Option("--input", help="Shape of one input, e.g. 3,224,224: show shapes.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DataOptions, VectorOptions, ConsoleOptions):
    """Validate inputs only: shapes, labels, NaN, dimensions that match. Exit code 2 if not."""

    EXAMPLE: ClassVar[str] = "vicinal check train.npz test.npz"

    files: Annotated[list[str], Argument(help="Data files, or one saved head (.vic).")]
    metric: Metric = "l2"


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Serve the page of a run on 127.0.0.1, read-only, behind a token in its address."""

    EXAMPLE: ClassVar[str] = "vicinal explore runs/audit-0001"

    folder: Annotated[Path, Argument(help="Folder of an audit.")]
    port: Annotated[int, Option(help="0: any free port.", min=0, max=65535)] = 0
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="Open the page, or only print its address.")
    ] = False
    model: Annotated[
        str | None, Option(help="The run's model, typed: it embeds pictures to judge.")
    ] = None
    trust_pickle: TrustPickle = False
    trust_folder: TrustFolder = False
    quiet: Quiet = False


VectorVerb = AuditOptions | FitOptions | PredictOptions | CheckOptions
VERBS: dict[str, type[Any]] = {
    "demo": DemoOptions,
    "audit": AuditOptions,
    "embed": EmbedOptions,
    "fit": FitOptions,
    "predict": PredictOptions,
    "compare": CompareOptions,
    "layers": LayersOptions,
    "check": CheckOptions,
    "explore": ExploreOptions,
}
