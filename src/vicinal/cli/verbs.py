"""Every verb with its line of help, an example and its flags: the command line at one glance.

A flag is called as its field, unless it says otherwise. Those that belong together come first, in
groups that a verb's own record inherits; their docstrings are the titles in its help. Nothing here
needs torch: a verb's module is loaded when the verb is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Argument, Option

Text = str | None
Texts = list[str] | None
Place = Path | None
Out = Annotated[Place, Option("--out", "-o", help="Where to write; by default a new name.")]
Seed = Annotated[int, Option(help="The same seed gives the same numbers.", min=0, max=2**32 - 1)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print warnings only.")]
Fresh = Annotated[bool, Option(help="Start over, without what a stopped run left.")]
Metric = Annotated[str, Option(help="Distance between rows: l2 or cosine.")]
DropBad = Annotated[bool, Option(help="Leave out rows with NaN or Inf, and list them.")]
CHOSEN = "by default the highest of 0.90, 0.95, 0.97 and 0.99 that half of the rows can meet."
TargetAccuracy = Annotated[
    float | None, Option(help=f"Accuracy that accepted rows must have; {CHOSEN}")
]
TrustPickle = Annotated[bool, Option(help="Load pickles, which can run any code.")]
Unfamiliar = Annotated[float, Option(help="Share of ordinary rows that may be called unfamiliar.")]
TrustFolder = Annotated[bool, Option(help="Run the model that config.json names, which is code.")]
On = Annotated[Text, Option(help="Work on a Ray cluster: ray, or ray://host:10001.")]
SPACES = "raw, unit, centered-unit, standardized, whitened, learned"
LARGEST = 4096  # pixels of a side
METRICS = ("l2", "cosine")
MODEL = "file.py:factory, pkg.module:factory, .ts, .pt2, timm:NAME, hf:NAME or folder."


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Names in your files, where they are not the usual ones"""

    embedding_key: Annotated[Text, Option(help="Key or column of the embeddings.")] = None
    label_key: Annotated[Text, Option(help="Key or column of the labels.")] = None
    id_col: Annotated[Text, Option(help="Key or column of the ids.")] = None
    image_col: Annotated[Text, Option(help="Key or column of images or their paths.")] = None
    text_col: Annotated[Text, Option(help="Key or column of the texts.")] = None
    media_root: Annotated[Place, Option(help="Folder below which pictures may lie.")] = None
    align: Annotated[Text, Option(help="'ids' matches labels to rows by ids, label_ids.")] = None
    trust_pickle: TrustPickle = False


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Stored features that are not one vector per row"""

    pool: Annotated[Text, Option(help="4-D features to vectors: mean, max or flatten.")] = None
    transpose: Annotated[bool, Option(help="The embeddings are stored as (dims, rows).")] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model"""

    weights: Annotated[Text, Option(help="Checkpoint for the model.")] = None
    model_arg: Annotated[Texts, Option(help="name=value for the factory; repeatable.")] = None
    output: Annotated[Text, Option(help="Which of the model's outputs are the logits.")] = None
    online: Annotated[bool, Option(help="Let hf:, timm: and the like download a model.")] = False
    trust_pickle: TrustPickle = False


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """The model"""

    classes: Annotated[
        Text,
        Option("--classes", "--labels", help="Its outputs in order: a file of names, or a,b,c."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are read for a model"""

    size: Annotated[
        int | None, Option(help="Resize images to so many pixels a side.", min=1, max=LARGEST)
    ] = None
    gray: Annotated[bool, Option(help="Read images as gray, with one channel.")] = False
    mean: Annotated[Text, Option(help="To subtract from pixels in [0, 1]: 0.5, or r,g,b.")] = None
    std: Annotated[Text, Option(help="Deviation to divide by then: 0.5, or r,g,b.")] = None


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """What is printed, and where"""

    as_json: Annotated[bool, Option("--json", help="Print JSON on stdout, nothing else.")] = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class DemoOptions(ConsoleOptions):
    """Audit bundled digits with planted errors: what is found?"""

    EXAMPLE: ClassVar[str] = "vicinal demo -o vicinal-demo"

    out: Out = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class NeighborOptions:
    """How rows are compared, and neighbors found"""

    k: Annotated[str, Option(help="How many neighbors vote, or auto.")] = "auto"
    metric: Metric = "l2"
    normalize: Annotated[
        bool, Option("--normalize/--no-normalize", help="Scale every row to length 1 first.")
    ] = False
    space: Annotated[str, Option(help=f"{SPACES}; fit takes the best on held-out rows.")] = "fit"
    search: Annotated[str, Option(help="exact, faiss, or auto, the cheaper one.")] = "auto"
    recall: Annotated[float, Option(help="Share of true neighbors to find.")] = 0.98
    prior: Annotated[str, Option(help="Class shares to expect: support or uniform.")] = "support"


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The model"""

    model: Annotated[Text, Option(help=MODEL)] = None
    embedding: Annotated[Text, Option(help="Layer to search in, else the last but one.")] = None
    layer: Annotated[Texts, Option(help="Layer to report on too; repeatable.")] = None
    stress: Annotated[
        bool | None, Option("--stress/--no-stress", help="All corruptions, or none; else a few.")
    ] = None
    network_rows: Annotated[
        int | None, Option(help="Rows of a set whose gradients are compared; 0: none.", min=0)
    ] = None
    checkpoints: Annotated[Text, Option(help="Weights over training, 'ckpt/*.pt'.")] = None


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The page"""

    map: Annotated[str, Option(help="tsne keeps neighbors, linear is quicker, or none.")] = "tsne"
    no_images: Annotated[bool, Option(help="No thumbnails on the page.")] = False
    hash_ids: Annotated[bool, Option(help="Write checksums instead of ids.")] = False
    max_mb: Annotated[float, Option(help="Largest size of the page.", min=0.1, max=1000.0)] = 10.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How it is run, and run again"""

    seed: Seed = 0
    config: Annotated[Place, Option(help="config.json of a run, or the run, to repeat.")] = None
    trust_folder: TrustFolder = False
    memory: Annotated[Text, Option(help="Most to use, such as 2GB; rows are streamed.")] = None
    on: On = None
    fresh: Fresh = False


@dataclass(frozen=True, kw_only=True)
class AuditOptions(
    DataOptions, VectorOptions, NeighborOptions, NetworkOptions, ModelOptions, ClassOptions,
    ImageOptions, PageOptions, RunOptions, ConsoleOptions,
):  # fmt: skip
    """How far to trust each prediction, and which labels look wrong."""

    EXAMPLE: ClassVar[str] = (
        "vicinal audit train.npz test.npz --target-accuracy 0.99\n\n"
        "vicinal audit rows.csv --label-key species\n\n"
        "vicinal audit photos/train photos/test --model net.py:make --weights w.pt"
    )

    support: Annotated[Text, Argument(help="Labeled rows: a file, folder or pattern.")] = None
    query: Annotated[Text, Argument(help="Rows to judge; without them each support row is.")] = None
    calib: Annotated[Text, Option(help="Held-out labeled rows to fit on.")] = None
    foreign: Annotated[Text, Option(help="Rows of no known class to test with.")] = None
    out: Out = None
    target_accuracy: TargetAccuracy = None
    unfamiliar: Unfamiliar = 0.05
    ignore_unknown: Annotated[bool, Option(help="Do not score unknown classes.")] = False
    force_ece: Annotated[bool, Option(help="Print the ECE even of few rows.")] = False
    apply: Annotated[Place, Option(help="decisions.csv of the page: relabel first.")] = None
    drop_bad: DropBad = False


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(ModelOptions, ImageOptions, DataOptions, ConsoleOptions):
    """Run a model over data and keep its layers; can be interrupted."""

    EXAMPLE: ClassVar[str] = (
        "vicinal embed model.py:make photos/ --weights w.pt --layer fc1 -o train-embeddings"
    )

    model: Annotated[str, Argument(help=MODEL)]
    data: Annotated[str, Argument(help="An image folder, .npz, .npy or module:dataset.")]
    layer: Annotated[Texts, Option(help="Layer to keep; repeatable.")] = None
    out: Out = None
    pool: Annotated[str, Option(help="Of maps, tokens: flatten, mean, max, first.")] = "flatten"
    batch_size: Annotated[int, Option(help="Rows per forward pass.", min=1, max=2**20)] = 256
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto"
    on: On = None
    fresh: Fresh = False


@dataclass(frozen=True, kw_only=True)
class FitOptions(DataOptions, VectorOptions, ConsoleOptions):
    """Fit a head to keep: a .vic file for predict and your service."""

    EXAMPLE: ClassVar[str] = (
        "vicinal fit train.npz --calib val.npz --target-accuracy 0.99 -o trust.vic"
    )

    support: Annotated[str, Argument(help="Labeled reference rows, or a table as pg:TABLE.")]
    store: Annotated[Text, Option(help="Keep the rows in pg:TABLE, not in the .vic file.")] = None
    calib: Annotated[Text, Option(help="Held-out labeled rows.")] = None
    target_accuracy: TargetAccuracy = None
    unfamiliar: Unfamiliar = 0.05
    out: Out = None
    k: Annotated[int | None, Option(help="How many neighbors vote.", min=1)] = None
    metric: Metric = "l2"
    drop_bad: DropBad = False


@dataclass(frozen=True, kw_only=True)
class PredictOptions(DataOptions, VectorOptions, ModelOptions, ImageOptions, ConsoleOptions):
    """Judge rows by a .vic file: label, confidence, verdict, reason."""

    EXAMPLE: ClassVar[str] = (
        "vicinal predict trust.vic new.npz\n\n"
        "vicinal predict trust.vic photos/ --model net.py:make\n\n"
        "cat rows.jsonl | vicinal predict trust.vic - --jsonl -"
    )

    head: Annotated[Path, Argument(help="A .vic file that fit or audit wrote.")]
    query: Annotated[str, Argument(help="Rows to judge; - reads JSON lines from stdin.")]
    model: Annotated[Text, Option(help="Model that embeds images, as the head was made.")] = None
    embedding: Annotated[Text, Option(help="Another layer than the head's own.")] = None
    out: Out = None
    jsonl: Annotated[Text, Option(help="Write JSON lines to this file, or - for stdout.")] = None
    show: Annotated[int, Option("--head", help="Print this many rows.", min=0)] = 0


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ConsoleOptions):
    """Compare two runs row by row, with gates for CI."""

    EXAMPLE: ClassVar[str] = (
        'vicinal compare runs/base runs/new --fail-if "ece > +0.01" --fail-if "coverage < -0.02"'
    )

    a: Annotated[Path, Argument(help="The run to compare with.")]
    b: Annotated[Path, Argument(help="The run to judge.")]
    fail_if: Annotated[Texts, Option(help="A gate like 'ece > +0.01': true is exit 1.")] = None
    out: Out = None
    markdown: Annotated[bool, Option("--md", help="Print the table as Markdown.")] = False
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class LayersOptions(ModelOptions, ConsoleOptions):
    """List the layers of a model: names, kinds, parameters, shapes."""

    EXAMPLE: ClassVar[str] = "vicinal layers model.py:make --weights w.pt --input 1,28,28"

    model: Annotated[str, Argument(help="file.py:factory or pkg.module:factory.")]
    shape: Annotated[Text, Option("--input", help="One input's shape: 3,224,224.")] = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DataOptions, VectorOptions, ConsoleOptions):
    """Check data files and heads only; exit code 2 if one is bad."""

    EXAMPLE: ClassVar[str] = "vicinal check train.npz test.npz"

    files: Annotated[list[str], Argument(help="Data files, or one saved head (.vic).")]
    metric: Metric = "l2"


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Serve the page of a run on 127.0.0.1 and judge new rows there."""

    EXAMPLE: ClassVar[str] = "vicinal explore runs/audit-0001"

    folder: Annotated[Path, Argument(help="The folder that an audit wrote.")]
    port: Annotated[int, Option(help="Port; 0 takes any free one.", min=0, max=65535)] = 0
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the page.")] = False
    model: Annotated[Text, Option(help="The run's model, to embed pictures to judge.")] = None
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
