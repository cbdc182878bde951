"""Models by name: from a folder or a cache, with their own size, normalization and class names."""

import json
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

from vicinal.checks import InputError
from vicinal.cli.named_models import named_model


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 15), ("test", 12)):
        for code, kind in enumerate(("cat", "dog", "owl")):
            folder = tmp_path / part / kind
            folder.mkdir(parents=True)
            for at in range(n):
                pixels = np.clip(rng.normal(60 + 70 * code, 20, (20, 20, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{at}.png")
    return tmp_path


def test_a_folder_of_hugging_face_is_read_with_its_own_size_and_classes(vicinal, photos):
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = library.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=8, id2label={0: "owl", 1: "cat", 2: "dog"},
        label2id={"owl": 0, "cat": 1, "dog": 2},
    )  # fmt: skip
    library.ViTForImageClassification(config).save_pretrained(photos / "vit")
    facts = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (photos / "vit" / "preprocessor_config.json").write_text(json.dumps(facts))
    words = ("audit", "train", "test", "--model", "hf:vit", "--k", "10", "-o", "run")
    code, out, err = vicinal(*words)
    assert code == 0, err
    assert "in the order of the model's own config.id2label" in " ".join(out.split())
    saved = json.loads((photos / "run" / "config.json").read_text())
    assert (saved["size"], saved["mean"]) == (16, "0.5,0.5,0.5")
    code, _, err = vicinal("predict", "run/trust.vic", "test", "--model", "hf:vit")
    assert code == 0, err


def test_texts_are_read_by_a_model_of_hugging_face(vicinal, tmp_path):
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    library.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    library.BertTokenizer(str(tmp_path / "bert" / "vocab.txt")).save_pretrained(tmp_path / "bert")
    lines = [
        f"a {kind} film{' film' * (i % 4)},{kind}" for i in range(30) for kind in ("good", "bad")
    ]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines[:40]) + "\n")
    (tmp_path / "b.csv").write_text("text,label\n" + "\n".join(lines[40:]) + "\n")
    code, _, err = vicinal(
        "audit", "a.csv", "b.csv", "--model", "hf:bert", "--k", "10", "-o", "run"
    )
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["data"]["support"]["rows"] == 40
    assert "softmax" in summary["heads"]


def timm_with(create_model, **facts):
    """As much of timm 1.0 as is called, by its own names and parameters."""

    def resolve_model_data_config(
        model, args=None, pretrained_cfg=None, use_test_size=False, verbose=False
    ):
        usual = {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406),
                 "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}  # fmt: skip
        return {**usual, **facts}

    data = types.SimpleNamespace(resolve_model_data_config=resolve_model_data_config)
    known = ("tiny", "resnet18")
    return types.SimpleNamespace(
        create_model=create_model, data=data, is_model=known.__contains__, list_models=lambda: known
    )


def test_a_name_that_is_not_there_is_told_without_asking_the_network(vicinal, photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    code, _, err = vicinal("audit", "train", "test", "--model", "timm:resnet18")
    assert code == 2
    assert "timm: models need timm, which cannot be imported: pip install timm." in err

    def missing(model_name, pretrained=False, **kwargs):
        import os

        assert os.environ["HF_HUB_OFFLINE"] == "1"
        raise FileNotFoundError(f"no weights of {model_name}")

    monkeypatch.setitem(sys.modules, "timm", timm_with(missing))
    code, _, err = vicinal("audit", "train", "test", "--model", "timm:resnet18")
    assert code == 2
    assert "Give --weights, or add --online to download them." in err
    code, _, err = vicinal("audit", "train", "test", "--model", "timm:resnet81")
    assert code == 2
    assert "timm has no model 'resnet81'. Did you mean 'resnet18'?" in err


def test_a_model_of_timm_brings_its_size_and_normalization(vicinal, photos, monkeypatch):
    asked, seen = [], []

    class Tiny(torch.nn.Sequential):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    def make(model_name, pretrained=False, num_classes=3, **kwargs):
        asked.append((model_name, pretrained, num_classes, kwargs))
        torch.manual_seed(0)
        nn = torch.nn
        return Tiny(nn.Flatten(), nn.Linear(432, 8), nn.ReLU(), nn.Linear(8, num_classes))

    facts = {"input_size": (3, 12, 12), "mean": (0.5,) * 3, "std": (0.25,) * 3}
    monkeypatch.setitem(sys.modules, "timm", timm_with(make, **facts))
    code, _, err = vicinal("embed", "timm:tiny", "train", "--layer", "1", "-o", "e")
    assert code == 0, err
    assert json.loads((photos / "e" / "embed.json").read_text())["model"] == "timm:tiny"
    assert asked == [("tiny", True, 3, {})]
    assert seen[-1].shape[1:] == (3, 12, 12)
    assert seen[-1].min() < 0  # pixels in [0, 1], less the mean
    torch.save(make("tiny", num_classes=5).state_dict(), photos / "w.pt")
    code, _, err = vicinal(
        "layers", "timm:tiny", "--model-arg", "num_classes=5", "--weights", photos / "w.pt"
    )
    assert code == 0, err
    assert asked[-1] == ("tiny", False, 5, {})  # weights that follow are not looked for
    code, _, err = vicinal("layers", "hf:tiny", "--model-arg", "num_labels=5")
    assert code == 2
    assert "--model-arg is for factories and timm" in err


def test_texts_are_embedded_by_sentence_transformers(vicinal, tmp_path, monkeypatch):
    class Sentences(torch.nn.Module):
        def __init__(self, name, local_files_only):
            super().__init__()
            assert local_files_only

        def encode(self, texts, show_progress_bar):
            return np.array([[len(t), t.count("o"), t.count("a"), 1.0] for t in texts])

    module = types.SimpleNamespace(SentenceTransformer=Sentences)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    lines = [f"{'o' * (3 + i % 5)}{kind},{kind}" for i in range(40) for kind in ("aaa", "ooo")]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    spec = "sentence-transformers:mini"
    code, out, err = vicinal("audit", "a.csv", "--model", spec, "--k", "10", "-o", "run")
    assert code == 0, err
    assert "80 x 4" in out
    code, _, err = vicinal("predict", "run/trust.vic", "a.csv", "--model", spec, "-o", "p.csv")
    assert code == 0, err


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16}  # fmt: skip


@pytest.fixture
def transformers():
    torch.manual_seed(0)
    return pytest.importorskip("transformers", reason="transformers is not installed")


def bert_in(folder, library, kind):
    """A tiny BERT and its tokenizer, as ``save_pretrained`` leaves them."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    getattr(library, kind)(library.BertConfig(vocab_size=len(WORDS), **TINY)).save_pretrained(
        folder
    )
    library.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def answers(folder, texts):
    named = named_model(f"hf:{folder}", online=False, arguments={}, weighted=False)
    with torch.no_grad():
        return named.model(named.tokenize(texts))


def test_padding_is_no_part_of_what_a_bare_model_says_of_a_text(transformers, tmp_path):
    """Nor are weights that the checkpoint lacks, like the pooler of a masked language model."""
    folder = bert_in(tmp_path / "bert", transformers, "BertForMaskedLM")
    alone = answers(folder, ["a good film"])
    among = answers(folder, ["a good film", "a bad film a bad film a bad film"])
    torch.testing.assert_close(among[:1], alone)


def test_a_checkpoint_that_lacks_weights_is_refused(transformers, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = bert_in(tmp_path / "bert", transformers, "BertForSequenceClassification")
    state = load_file(f"{folder}/model.safetensors")
    gone = {key: value for key, value in state.items() if not key.startswith("classifier.")}
    save_file(gone, f"{folder}/model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="lacks 2 weights .*first: classifier.bias.*random"):
        answers(folder, ["a good film"])


def test_a_decoder_without_a_padding_token_reads_texts_of_any_length(
    vicinal, transformers, tmp_path
):
    from tokenizers import ByteLevelBPETokenizer

    lines = [f"a {kind} film{' film' * (i % 4)}" for i in range(20) for kind in ("good", "bad")]
    words = ByteLevelBPETokenizer()
    words.train_from_iterator(lines, vocab_size=280, special_tokens=["<|endoftext|>"])
    words.save_model(str(tmp_path))
    files = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    config = transformers.GPT2Config(vocab_size=280, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    transformers.GPT2TokenizerFast(*files).save_pretrained(tmp_path / "gpt2")
    rows = [f"{line},{'ab'['bad' in line]}" for line in lines]
    (tmp_path / "t.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("text\na good film\n")
    code, _, err = vicinal("audit", "t.csv", "t.csv", "--model", "hf:gpt2", "-o", "run")
    assert code == 0, err
    assert "Loading weights" not in err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["embedding"] == "output"
    code, _, err = vicinal("predict", "run/trust.vic", "new.csv", "--model", "hf:gpt2", "-q")
    assert code == 0, err


@pytest.mark.parametrize(
    ("facts", "side", "mean"),
    [
        ({"size": 20, "crop_size": 16, "do_center_crop": True, "image_mean": [0.5] * 3}, 16, 3),
        ({"size": {"shortest_edge": 24}, "crop_size": {"height": 16, "width": 16},
          "do_center_crop": True}, 16, 0),
        ({"size": {"height": 16, "width": 16}, "do_normalize": False, "image_mean": [0.5] * 3},
         16, 0),
        (None, 16, 0),
    ],
)  # fmt: skip
def test_images_come_as_large_as_a_model_gets_them_behind_its_cropping(
    transformers, tmp_path, facts, side, mean
):
    config = transformers.ViTConfig(**TINY, image_size=16, patch_size=8)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    if facts is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(facts))
    named = named_model(f"hf:{tmp_path}", online=False, arguments={}, weighted=False)
    assert (named.size, len(named.mean)) == (side, mean)
    assert named.model(torch.zeros(2, 3, side, side)).shape == (2, 2)
