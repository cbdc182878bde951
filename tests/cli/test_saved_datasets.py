"""Folders of Hugging Face ``datasets``, written here as ``save_to_disk`` writes them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows, without_labels
from vicinal.cli.in_shards import _is_sharded
from vicinal.cli.verbs import DataOptions

NAMES = ["cat", "dog", "owl"]
CODES = [2, 0, 1, 1, 0, 2]


def png(shade):
    out = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), shade, np.uint8)).save(out, "png")
    return out.getvalue()


def saved(folder, columns, features, parts=2):
    """As ``Dataset.save_to_disk``: Arrow streams, their list and the features beside them."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    size = -(-len(table) // parts)
    files = []
    for at in range(parts):
        name = f"data-{at:05d}-of-{parts:05d}.arrow"
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as out,
        ):
            out.write_table(table.slice(at * size, size))
        files.append({"filename": name})
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


LABEL = {"names": NAMES, "_type": "ClassLabel"}


@pytest.fixture
def photos(tmp_path):
    pictures = [{"bytes": png(40 * at), "path": None} for at in range(6)]
    columns = {"image": pictures, "label": CODES, "width": [5] * 6}
    return saved(tmp_path / "photos", columns, {"image": {"_type": "Image"}, "label": LABEL})


def test_class_names_and_pictures_come_in_the_order_of_the_parts(photos):
    rows = read_rows(str(photos))
    assert rows.labels.tolist() == [NAMES[code] for code in CODES]
    assert rows.embeddings is None  # the width is no embedding of a picture
    assert rows.images[3] == png(120)
    assert not _is_sharded(str(photos))


def test_a_column_of_lists_is_the_embeddings(tmp_path):
    columns = {"embedding": [[float(i), 1.0] for i in range(6)], "label": CODES}
    rows = read_rows(str(saved(tmp_path / "rows", columns, {"label": LABEL})))
    assert rows.embeddings.tolist() == [[i, 1.0] for i in range(6)]
    assert rows.labels.tolist()[0] == "owl"


def test_texts_are_texts_and_a_split_without_labels_has_none(tmp_path):
    columns = {"sentence": list("abcdef"), "label": [-1] * 6, "idx": list(range(6))}
    rows = read_rows(str(saved(tmp_path / "texts", columns, {"label": LABEL})))
    assert rows.texts == list("abcdef")
    assert rows.labels is None
    assert rows.embeddings is None


def test_parquet_files_of_datasets_name_their_classes_too(tmp_path):
    table = pa.table({"embedding": [[1.0, 2.0]] * 6, "label": CODES})
    about = json.dumps({"info": {"features": {"label": LABEL}}}).encode()
    parquet.write_table(
        table.replace_schema_metadata({b"huggingface": about}), tmp_path / "a.parquet"
    )
    assert read_rows(str(tmp_path / "a.parquet")).labels.tolist()[0] == "owl"


def test_several_splits_are_named_with_the_command_for_them(tmp_path, photos):
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["photos", "test"]}))
    with pytest.raises(InputError, match=rf"vicinal audit {tmp_path}/photos {tmp_path}/test"):
        read_rows(str(tmp_path))


def test_a_folder_without_a_known_label_column_lists_its_columns(tmp_path):
    columns = {"embedding": [[1.0, 2.0]] * 6, "kind": ["a", "b"] * 3}
    folder = saved(tmp_path / "rows", columns, {})
    rows = read_rows(str(folder))
    assert "columns: embedding, kind" in str(without_labels(rows, str(folder)))
    assert read_rows(str(folder), DataOptions(label_key="kind")).labels.tolist()[1] == "b"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("state.json", '{"_data_files": [{"filename": "../secret.arrow"}]}', "leads out of"),
        ("state.json", "[1]", "no JSON object"),
        ("dataset_info.json", '{"features": {"label": {"_type": "ClassLabel", "names": ["a"]}}}',
         "class 2 of 1 classes"),
        ("data-00000-of-00002.arrow", "no arrow", "Save the data set again"),
    ],
)  # fmt: skip
def test_a_broken_folder_is_answered_with_a_sentence(photos, name, text, sentence):
    (photos / name).write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_rows(str(photos))
