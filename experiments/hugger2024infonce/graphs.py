"""Cora and CiteSeer with their public split; digits joined to their neighbors for a quick run."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from experiments.data import Source, images, planetoid
from sklearn.neighbors import kneighbors_graph
from torch import Tensor


def graph_of(source: Source, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The smoothing matrix Â (sparse), Â X, labels, rows to train on, rows to test on."""
    if name == "digits":
        pixels, y = images(source, name)
        x = pixels.flatten(1).numpy()
        links = kneighbors_graph(x, 8).maximum(kneighbors_graph(x, 8).T)
        train, test = np.arange(200), np.arange(1000, 1700)
    else:
        held = planetoid(source, name)
        parts = (held["feat_data"], held["feat_indices"], held["feat_indptr"])
        x = sp.csr_matrix(parts, shape=held["feat_shape"]).toarray()
        a, b = held["edges_undirected"].T
        links = sp.csr_matrix((np.ones(2 * len(a)), (np.r_[a, b], np.r_[b, a])), shape=[len(x)] * 2)
        y, train, test = torch.tensor(held["label"]).long(), held["train_index"], held["test_index"]
    links = links + sp.eye(len(x))
    scale = sp.diags(np.asarray(links.sum(1)).ravel() ** -0.5)
    smooth = (scale @ links @ scale).tocoo()
    places = torch.tensor(np.stack([smooth.row, smooth.col]))
    matrix = torch.sparse_coo_tensor(
        places, torch.tensor(smooth.data).float(), smooth.shape, check_invariants=True
    )
    rows = torch.tensor(train).long(), torch.tensor(test).long()
    found = (matrix.coalesce(), matrix @ torch.tensor(x).float(), y, *rows)
    return tuple(part.to(source.device) for part in found)
