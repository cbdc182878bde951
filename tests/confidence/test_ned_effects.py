"""What-if effects equal what editing and predicting would give; the module equals the estimator."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.confidence.ned.classifier import NEDClassifier

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def cloud(rng):
    y = torch.randint(0, 3, (60,), generator=rng)
    x = torch.randn(60, 4, generator=rng).double()
    x[:, 0] += 1.2 * y
    return x, y, torch.randn(25, 4, generator=rng).double()


FORMS = [
    {"k": 7},
    {"k": 60, "temperature": 0.5},  # every row votes: nobody to move up
    {"k": 9, "background": 0.05, "sharpness": 2.0, "prior": "uniform"},
    {"k": 12, "bandwidth": "class", "sharpness": "fit", "background": "fit"},
    {"k": 5, "temperature": 0.0},
]


@pytest.mark.parametrize("form", FORMS)
def test_removing_a_row_does_to_the_queries_what_the_effects_say(cloud, form):
    x, y, queries = cloud
    ned = NEDClassifier(**form).fit(x, y)
    ids = [3, 17, 40, 59]
    told = ned.label_effects(queries, ids, probabilities=True)
    before = ned.predict(queries)
    for position, row in enumerate(ids):
        edited = NEDClassifier(**{**form, "k": min(form["k"], 59)}).fit(x, y)
        edited.set_params(k=form["k"] if form["k"] < 60 else 59)
        edited.remove([row], refit=False)
        edited.parameters_ = ned.parameters_
        after, proba = edited.predict(queries), edited.predict_proba(queries)
        assert told.changed[position] == int((after != before).sum())
        mine = told.edit == position
        assert_close(torch.from_numpy(told.probabilities[mine]), proba[told.query[mine]])
        assert told.after[mine].tolist() == after[told.query[mine]].tolist()
        untouched = np.setdiff1d(np.arange(25), told.query[mine])
        assert_close(proba[untouched], ned.predict_proba(queries)[untouched])


@pytest.mark.parametrize("form", FORMS)
def test_relabeling_a_row_does_to_the_queries_what_the_effects_say(cloud, form):
    x, y, queries = cloud
    ned = NEDClassifier(**form).fit(x, y)
    ids, new = [3, 17, 40, 59], (y[[3, 17, 40, 59]] + 1) % 3
    told = ned.label_effects(queries, ids, new, probabilities=True)
    before = ned.predict(queries)
    for position, row in enumerate(ids):
        edited = NEDClassifier(**form).fit(x, y).relabel([row], new[[position]], refit=False)
        edited.parameters_ = ned.parameters_
        after, proba = edited.predict(queries), edited.predict_proba(queries)
        assert told.changed[position] == int((after != before).sum())
        mine = told.edit == position
        assert told.touched[position] == mine.sum()
        assert_close(torch.from_numpy(told.probabilities[mine]), proba[told.query[mine]])
        label = torch.from_numpy(told.before[mine])
        assert_close(
            torch.from_numpy(told.p_after[mine]),
            proba[told.query[mine]].gather(1, label[:, None])[:, 0],
        )


@pytest.mark.parametrize("form", FORMS)
def test_all_edits_together_equal_editing_and_predicting(cloud, form):
    x, y, queries = cloud
    ned = NEDClassifier(**form).fit(x, y)
    ids = list(range(0, 40, 2))
    new = (y[ids] + 1) % 3
    told = ned.joint_effect(queries, ids, new)
    edited = NEDClassifier(**form).fit(x, y).relabel(ids, new, refit=False)
    edited.parameters_ = ned.parameters_
    assert_close(torch.from_numpy(told.probabilities_after), edited.predict_proba(queries))
    assert told.after.tolist() == edited.predict(queries).tolist()
    gone = ned.joint_effect(queries, ids)
    left = NEDClassifier(**{**form, "k": min(form["k"], 40)}).fit(x, y).remove(ids, refit=False)
    left.parameters_ = ned.parameters_
    assert_close(torch.from_numpy(gone.probabilities_after), left.predict_proba(queries))
    assert gone.changed.tolist() == np.flatnonzero(gone.before != gone.after).tolist()


def test_effects_on_soft_labels_equal_editing(cloud):
    x, y, queries = cloud
    soft = 0.8 * torch.eye(3).double()[y] + 0.2 / 3
    ned = NEDClassifier(k=9).fit(x, soft)
    told = ned.label_effects(queries, [5], torch.tensor([[0.1, 0.1, 0.8]]), probabilities=True)
    edited = NEDClassifier(k=9).fit(x, soft)
    edited.relabel([5], torch.tensor([[0.1, 0.1, 0.8]]), refit=False)
    assert_close(torch.from_numpy(told.probabilities), edited.predict_proba(queries)[told.query])


def test_a_row_near_no_query_changes_nothing(cloud):
    x, y, queries = cloud
    x = torch.cat([x, torch.full((1, 4), 99.0).double()])
    ned = NEDClassifier(k=7).fit(x, torch.cat([y, y[:1]]))
    told = ned.label_effects(queries, [60])
    assert (told.touched[0], told.changed[0], len(told.edit)) == (0, 0, 0)


def test_wrong_edits_are_named(cloud):
    x, y, queries = cloud
    ned = NEDClassifier(k=7).fit(x, y)
    with pytest.raises(InputError, match="no class of the support"):
        ned.label_effects(queries, [1], [9])
    with pytest.raises(InputError, match="twice"):
        ned.label_effects(queries, [1, 1])
    with pytest.raises(InputError, match="same number of rows"):
        ned.label_effects(queries, [1, 2], [0])
    with pytest.raises(InputError, match="whole support"):
        ned.joint_effect(queries, range(60))


# ------------------------------------------------------------------ the module


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_the_module_says_what_the_estimator_says(cloud, form, metric):
    x, y, queries = cloud
    ned = NEDClassifier(**form, metric=metric).fit(x, y)
    assert_close(ned.module()(queries).exp(), ned.predict_proba(queries))


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
@pytest.mark.parametrize("full", [False, True])
def test_gradients_pass_through_the_head(cloud, metric, full):
    x, y, queries = cloud
    ned = NEDClassifier(k=20, metric=metric, bandwidth="class", sharpness=1.7, background=0.03)
    head = ned.fit(x, y).module(full_support=full)
    assert torch.autograd.gradcheck(head, queries[:3].clone().requires_grad_())


def test_a_class_outside_the_neighborhood_sends_no_nan_back(cloud):
    x, y, queries = cloud
    x = torch.cat([x, torch.full((1, 4), 50.0).double()])
    ned = NEDClassifier(k=5).fit(x, torch.cat([y, torch.tensor([3])]))
    q = queries.clone().requires_grad_()
    ned.module()(q)[:, :3].logsumexp(1).sum().backward()
    assert q.grad.isfinite().all()
    q.grad = None
    absent = torch.full((25,), 3)  # an attack towards a class that no neighbor has
    torch.nn.functional.cross_entropy(ned.module()(q), absent, reduction="none")[:1].backward()
    assert q.grad.isfinite().all()
    assert ned.module(full_support=True)(queries).isfinite().all()


def test_a_hotter_surrogate_has_gradients_where_the_fitted_head_is_saturated(rng):
    y = torch.arange(40) % 2
    x = torch.randn(40, 3, generator=rng).double() + 20.0 * y[:, None]
    ned = NEDClassifier(k=20, temperature=0.01).fit(x, y)
    q = x[:1].clone().requires_grad_()

    def slope(head):
        log_p = head(q)
        return float(torch.autograd.grad(log_p[0, 0].exp(), q)[0].abs().max())

    assert slope(ned.module()) == 0
    assert slope(ned.module(temperature=400.0, full_support=True)) > 0


def test_the_module_is_a_snapshot_with_buffers(cloud):
    x, y, queries = cloud
    ned = NEDClassifier(k=7).fit(x, y)
    head = ned.module()
    told = head(queries)
    ned.remove([0, 1, 2])
    assert_close(head(queries), told)
    assert set(head.state_dict()) == {"support", "labels"}
    assert head.float()(queries.float()).dtype == torch.float32
    with pytest.raises(InputError, match="5 dimensions"):
        head(torch.zeros(1, 5))
    with pytest.raises(InputError, match="`temperature`"):
        ned.module(temperature=-1.0)
