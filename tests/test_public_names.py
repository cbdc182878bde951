"""The public names and their parameters: what others call must not change unseen."""

import dataclasses
import importlib
import inspect
import re

import pytest

NAMES = {
    "vicinal": ["audit(model, train, test, *, support, query, calib)", "load(path)"],
    "vicinal.losses": [
        "soft_nearest_neighbor_loss(x, labels, *, temperature=1.0, metric='sqeuclidean', "
        "reference=None, reference_labels=None, weight=None, reduction='mean')",
        "graph_smoothness_loss(x, labels, *, alpha=2.0, k=None, symmetry='union', normalize=True, "
        "reduction='sum')",
        "triplet_loss(x, labels, *, margin=0.2, mining='all', metric='euclidean', "
        "reduction='mean')",
        "info_nce(logits, targets, *, noise=None, temperature=1.0, noise_targets=None, "
        "reduction='mean')",
        "soft_distribution_info_nce(logits, targets, *, noise=None, temperature=1.0, "
        "generator=None, reduction='mean')",
        "supervised_contrastive_loss(x, labels, *, temperature=0.1)",
        "nt_xent_loss(x, labels, *, temperature)",
        "n_pairs_loss(x, labels, *, temperature=1.0, l2_reg=0.0, reduction='mean')",
        "proxy_nca_loss(x, labels, proxies, *, temperature=1.0, include_positive=True, "
        "reduction='mean')",
        "normalized_softmax_loss(x, labels, weights, *, temperature=0.05, reduction='mean')",
        "soft_target_cross_entropy(logits, targets, *, reduction='mean')",
        "SoftNearestNeighborLoss(temperature=1.0, learn_temperature=False, entangle='min', "
        "metric='sqeuclidean')",
        "GraphSmoothnessLoss()",
        "LayerwiseLoss(loss, layers)",
        "EntanglementCallback(data, layers, *, log=None, every=1)",
        "DistributedLoss(loss, group=None)",
        "MemoryBank(dim, size)",
        "CrossBatchLoss(loss, bank)",
        "contrastive_loss(x, labels, *, pos_margin=0.0, neg_margin=1.0, metric='euclidean', "
        "reference=None, reference_labels=None, exclude_self=False, reduction='mean')",
        "multi_similarity_loss(x, labels, *, alpha=2.0, beta=50.0, base=0.5, reduction='mean')",
        "circle_loss(x, labels, *, margin=0.4, gamma=80.0, attached=False, reduction='mean')",
        "arcface_loss(x, labels, weights, *, margin=0.5, scale=64.0, reduction='mean')",
        "cosface_loss(x, labels, weights, *, margin=0.35, scale=64.0, reduction='mean')",
        "moco_loss(queries, keys, queue, *, temperature=0.07, reduction='mean')",
        "ContrastiveLoss()",
        "MultiSimilarityLoss()",
        "CircleLoss()",
        "ArcFaceLoss(num_classes, dim, *, margin=0.5, scale=64.0, sub_centers=1)",
        "CosFaceLoss(num_classes, dim, *, margin=0.35, scale=64.0, sub_centers=1)",
        "MoCoLoss(dim, size, *, temperature=0.07)",
        "momentum_update(slow, fast, momentum=0.999)",
        "hard_triplets(x, labels, *, metric='euclidean')",
        "semihard_triplets(x, labels, *, margin=0.2, metric='euclidean')",
        "distance_weighted_triplets(x, labels, *, cutoff=0.5, farthest=1.4, generator=None)",
        "multi_label_targets(labels, *, epsilon=0.0)",
        "GradCache(model, loss, micro_batch)",
    ],
    "vicinal.losses.targets": [
        "smooth_labels(labels, num_classes, epsilon, noise=None)",
        "mixup(x, targets, alpha, generator=None)",
        "cutmix(x, targets, alpha, generator=None)",
        "MixedTargets(a, b, lam, epsilon, num_classes)",
    ],
    "vicinal.neighbors": [
        "optimal_temperature(x, labels, *, metric='sqeuclidean', k=None)",
        "snnl_profile(x, labels, temperatures)",
        "chance_level(labels)",
    ],
    "vicinal.capture": [
        "capture(model, data, layers, *, pool='flatten', batch_size=256, device=None)",
        "layer_names(model)",
    ],
    "vicinal.similarity": [
        "GradientKernel(model, *, outputs='logits', params=None, engine='auto', strict=True, "
        "memory_budget=2147483648)",
        "fit_diagnosis(kernel, data, labels)",
        "uncertainty(kernel, queries, data)",
        "denoising(kernel, data, predictions=None)",
        "perceptual_gram(model, a, b=None, *, layers)",
        "SetSimilarityLoss()",
        "PairSimilarityLoss()",
        "TwoBatchSimilarityLoss()",
        "OrbitSimilarityLoss(transforms)",
        "TangentInvarianceLoss(generators)",
        "DensityLoss(q)",
    ],
    "vicinal.confidence": [
        "NEDClassifier(k=100, temperature=None, sharpness=1.0, background=0.0, "
        "bandwidth='shared', prior='support', metric='sqeuclidean', search='exact', space='raw')",
        "KNNClassifier(k=10, weights='uniform', metric='sqeuclidean', search='exact', "
        "smoothing=0.0)",
        "LinearClassifier(l2=None, folds=5)",
        "NEDLinear(ned=None, linear=None, weights='fit', background='fit')",
        "TrustScore(k=1)",
        "TemperatureScaling()",
        "ConformalSets(base, score='lac', alpha=0.1)",
        "DeepKNN(k=75, metric='cosine')",
    ],
    "vicinal.evaluation": [
        "expected_calibration_error(confidence, correct, *, bins=15, scheme='width')",
        "reliability(confidence, correct)",
        "noise_floor(confidence)",
        "negative_log_likelihood(probabilities, labels)",
        "brier_score(probabilities, labels)",
        "risk_coverage(confidence, correct)",
        "area_under_risk_coverage(confidence, correct)",
        "threshold_for_accuracy(confidence, correct, target, delta=0.05)",
        "outlier_scores()",
        "auroc(inliers, outliers)",
        "fpr_at_tpr(inliers, outliers, tpr=0.95)",
        "recall_at_k()",
        "map_at_r()",
        "mean_corruption_error(errors, baseline, relative=False)",
        "entanglement(activations, labels)",
    ],
    "vicinal.perturbations": [
        "fgsm(model, x, y, epsilon)",
        "bim(model, x, y, epsilon)",
        "pgd(model, x, y, epsilon)",
        "corrupt(images, name, severity)",
    ],
    "vicinal.studies": [
        "compare_heads()",
        "robustness_report()",
        "attack_audit()",
        "outlier_study()",
    ],
}
METHODS = {
    "vicinal.confidence.NEDClassifier": "fit calibrate predict predict_proba predict_log_proba "
    "kneighbors add remove save module",
    "vicinal.confidence.LinearClassifier": "fit logits predict predict_proba predict_log_proba "
    "save",
    "vicinal.confidence.NEDLinear": "fit fit_parts predict predict_proba predict_log_proba judge "
    "neighborhood_of log_probs_of label_effects module save",
    "vicinal.confidence.DeepKNN": "fit calibrate predict credibility confidence p_values "
    "prediction_sets",
    "vicinal.similarity.GradientKernel": "gram topk histogram neighbors explain",
    "vicinal.neighbors.ExactSearch": "build query add remove",
    "vicinal.studies.Audit": "save summary to_json from_json",
}


def written(text):
    """The call as a signature: names, keyword-only ones, and the defaults that are given."""
    name, _, rest = text.partition("(")
    promised, keyword_only = {}, False
    for part in _split(rest):
        if part == "*":
            keyword_only = True
            continue
        parameter, equals, default = part.partition("=")
        promised[parameter] = (keyword_only, default if equals else None)
    return name, promised


def _split(text):
    return [part.strip() for part in text.strip("()").split(",") if part.strip()]


CASES = [(module, call) for module, calls in NAMES.items() for call in calls]


@pytest.mark.parametrize(
    ("module", "call"), CASES, ids=[f"{m}.{c.split('(')[0]}" for m, c in CASES]
)
def test_a_public_call_keeps_its_parameters(module, call):
    name, promised = written(call)
    found = getattr(importlib.import_module(module), name)
    have = inspect.signature(found).parameters
    for at, (parameter, (keyword_only, default)) in enumerate(promised.items()):
        assert parameter in have, f"{name} has no parameter {parameter}"
        kind = have[parameter].kind
        if keyword_only:
            assert kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        else:
            assert list(have).index(parameter) == at, f"{parameter} is not argument {at}"
        if default is not None:
            assert repr(have[parameter].default) == default


@pytest.mark.parametrize(("path", "methods"), METHODS.items())
def test_a_public_object_keeps_its_methods(path, methods):
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert not [method for method in methods.split() if not hasattr(found, method)]


def test_the_fifteen_corruptions_are_named():
    from vicinal.perturbations import CORRUPTIONS

    assert len(CORRUPTIONS) == 15


ROOMS = (
    "losses", "losses.targets", "neighbors", "capture", "similarity", "confidence", "evaluation",
    "perturbations", "studies", "report",
)  # fmt: skip
WRITTEN_BY_USERS = ("AuditSettings", "About")  # the other records are only read


def public_calls():
    """Functions, methods and constructors that users call, with where their help is written."""
    for room in ROOMS:
        module = importlib.import_module(f"vicinal.{room}")
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if not inspect.isclass(found):
                yield f"{room}.{name}", found, [found]
            elif name in WRITTEN_BY_USERS or not dataclasses.is_dataclass(found):
                yield f"{room}.{name}", found.__init__, [found, found.__init__]
                for method, code in inspect.getmembers(found, inspect.isfunction):
                    if not method.startswith("_") and code.__module__.startswith("vicinal"):
                        yield f"{room}.{name}.{method}", code, [code]


def unexplained(call, written_in):
    """Parameters of a call of more than three that its help does not name."""
    parameters = [name for name in inspect.signature(call).parameters if name != "self"]
    text = "\n".join(inspect.getdoc(place) or "" for place in written_in)
    if len(parameters) <= 3 or "arameters as in :func:" in text:
        return []
    return [name for name in parameters if not re.search(rf"\b{name}\b", text)]


def test_help_names_every_parameter_of_a_public_call_that_has_more_than_three():
    calls = {
        name: (call, written_in)
        for name, call, written_in in public_calls()
        if inspect.isfunction(call)
    }
    assert len(calls) > 200
    silent = {name: missing for name, call in calls.items() if (missing := unexplained(*call))}
    assert not silent
