"""The papers in plain loops: slow, obvious, float64, one term at a time.

Every fast path in ``src`` is tested against its twin here. No vectorization in this file: a loop
per sum of the formula, ``math.exp`` and ``math.log`` on Python floats. Grouped by room.
"""

from __future__ import annotations

import math

from scipy.stats import chi2

# ---------------------------------------- neighbors


def distance(a, b, metric="sqeuclidean"):
    """Distance between two vectors, scipy's names. A zero row has cosine distance 1 to all."""
    if metric == "cosine":
        na = math.sqrt(sum(float(u) ** 2 for u in a))
        nb = math.sqrt(sum(float(v) ** 2 for v in b))
        dot = sum(float(u) * float(v) for u, v in zip(a, b, strict=True))
        return 1.0 - (dot / (na * nb) if na > 0 and nb > 0 else 0.0)
    squared = sum((float(u) - float(v)) ** 2 for u, v in zip(a, b, strict=True))
    return squared if metric == "sqeuclidean" else math.sqrt(squared)


def log_sum_exp(values):
    """log Σ exp v, the largest taken out first; -inf of nothing."""
    values = list(values)
    if not values or max(values) == -math.inf:
        return -math.inf
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


# ------------------------------------------------- neighbors: kernels, masses, search


def exponential_shares(distances, temperature):
    """Normalized weights of one row; the limits T = 0 and T = inf by their definition."""
    if temperature == 0:
        ties = [d == min(distances) for d in distances]
        return [t / sum(ties) for t in ties]
    if temperature == math.inf:
        return [1 / len(distances) for _ in distances]
    total = log_sum_exp(-float(d) / temperature for d in distances)
    return [math.exp(-float(d) / temperature - total) for d in distances]


def dudani_weights(distances):
    """Dudani 1976: (d_k - d_i) / (d_k - d_1); all ones where that is 0/0."""
    first, last = float(distances[0]), float(distances[-1])
    return [1.0 if last == first else (last - float(d)) / (last - first) for d in distances]


def gou_weights(distances):
    """Gou 2012: Dudani's weight times (d_k + d_1) / (d_k + d_i)."""
    first, last = float(distances[0]), float(distances[-1])
    return [
        1.0 if last == first else w * (last + first) / (last + float(d))
        for w, d in zip(dudani_weights(distances), distances, strict=True)
    ]


def class_masses(weights, labels, num_classes):
    """Weight of one row on each class."""
    masses = [0.0] * num_classes
    for w, y in zip(weights, labels, strict=True):
        masses[int(y)] += float(w)
    return masses


def nearest(query, support, k, metric="sqeuclidean", exclude=-1):
    """[(distance, index)] of the k nearest rows, ties by index, the excluded index left out."""
    pairs = [(distance(query, row, metric), j) for j, row in enumerate(support) if j != exclude]
    return sorted(pairs)[:k]


def tsne_slope(places, neighbors):
    """The gradient of KL(p||q) at each place, p even over each row's neighbors."""
    n, k = len(places), len(neighbors[0])
    p = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in neighbors[i]:
            p[i][j] += 1 / (2 * n * k)
            p[j][i] += 1 / (2 * n * k)
    w = [[1 / (1 + distance(a, b)) for b in places] for a in places]
    z = sum(w[i][j] for i in range(n) for j in range(n) if i != j)
    slope = []
    for i in range(n):
        force = [(p[i][j] - w[i][j] / z) * w[i][j] if i != j else 0.0 for j in range(n)]
        slope.append([4 * sum(force[j] * (places[i][a] - places[j][a]) for j in range(n))
                      for a in (0, 1)])  # fmt: skip
    return slope


def leave_one_out_loss(distances, same, temperature, weight=None):
    """Mean of log M_i - log m_i over rows with a peer, on given neighbor lists."""
    total = count = 0.0
    for i, row in enumerate(distances):
        share = [float(s) for s in same[i]]
        if not any(s > 0 for s in share):
            continue
        logs = [-float(d) / temperature for d in row]
        own = [v + math.log(s) for v, s in zip(logs, share, strict=True) if s > 0]
        w = 1.0 if weight is None else float(weight[i])
        total += w * (log_sum_exp(logs) - log_sum_exp(own))
        count += w
    return total / count


def snnl(x, labels, temperature, metric="sqeuclidean"):
    """Soft nearest neighbor loss: mean over points with a peer of log M_i - log m_i(y_i)."""
    rows, same = [], []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        rows.append([distance(x[i], x[j], metric) for j in others])
        same.append([float(labels[i] == labels[j]) for j in others])
    return leave_one_out_loss(rows, same, temperature)


# ---------------------------------------- evaluation: calibration and scores


def bin_of(confidence, bins):
    """Right-closed bins ((b)/M, (b+1)/M], the first with 0: the first edge that is not below."""
    for b in range(bins):
        if confidence <= (b + 1) / bins:
            return b
    return bins - 1


def mass_bin_of(confidence, confidences, bins):
    """The bin of the middle rank of all rows with this confidence."""
    below = sum(1 for c in confidences if c < confidence)
    tied = sum(1 for c in confidences if c == confidence)
    return bins * (2 * below + tied) // (2 * len(confidences))


def calibration_error(confidences, correct, bins, scheme="width"):
    total = 0.0
    for b in range(bins):
        rows = [
            i
            for i, c in enumerate(confidences)
            if (bin_of(c, bins) if scheme == "width" else mass_bin_of(c, confidences, bins)) == b
        ]
        if rows:
            accuracy = sum(1 for i in rows if correct[i]) / len(rows)
            confidence = sum(confidences[i] for i in rows) / len(rows)
            total += len(rows) / len(confidences) * abs(accuracy - confidence)
    return total


def expected_absolute_deviation(p):
    """E|S - mean| of a sum of coins, over every one of the 2^n outcomes."""
    mean, total = sum(p), 0.0
    for outcome in range(2 ** len(p)):
        heads = [(outcome >> j) & 1 for j in range(len(p))]
        chance = math.prod(q if h else 1 - q for q, h in zip(p, heads, strict=True))
        total += chance * abs(sum(heads) - mean)
    return total


def log_loss(probabilities, labels):
    """(mean over rows of finite loss, number of infinite rows)."""
    losses = [p[y] for p, y in zip(probabilities, labels, strict=True)]
    finite = [-math.log(p) for p in losses if p > 0]
    return sum(finite) / max(len(finite), 1), len(losses) - len(finite)


def brier(probabilities, labels):
    total = 0.0
    for row, y in zip(probabilities, labels, strict=True):
        for c, p in enumerate(row):
            total += (float(p) - (1.0 if c == y else 0.0)) ** 2
    return total / len(labels)


# ---------------------------------------- evaluation: selection, outliers, retrieval


def area_under_risk_coverage(confidences, correct):
    """Mean over r of the expected risk of the r most confident, ties in random order."""
    n, total = len(confidences), 0.0
    for r in range(1, n + 1):
        cut = sorted(confidences, reverse=True)[r - 1]
        above = [i for i in range(n) if confidences[i] > cut]
        tied = [i for i in range(n) if confidences[i] == cut]
        errors = sum(1 for i in above if not correct[i])
        share = sum(1 for i in tied if not correct[i]) / len(tied)
        total += (errors + share * (r - len(above))) / r
    return total / n


def right_at_least(right, rows, p):
    """P(at least ``right`` of ``rows`` come true), each with chance ``p``."""
    return sum(math.comb(rows, s) * p**s * (1 - p) ** (rows - s) for s in range(right, rows + 1))


def walked_threshold(confidences, correct, target, shares):
    """The lowest confidence a fallback walk reaches; ``shares``: {rows: part of delta}."""
    level, found, tested = 0.0, math.inf, 0
    for c in sorted(set(confidences), reverse=True):
        taken = [bool(ok) for mine, ok in zip(confidences, correct, strict=True) if mine >= c]
        level += sum(part for rows, part in shares.items() if tested < rows <= len(taken))
        tested = len(taken)
        if level and right_at_least(sum(taken), len(taken), target) <= level:
            found = c
        else:
            level = 0.0
    return found


def halves(n, target, delta):
    """{rows: share} of the walk that takes nothing from the confidences but their order."""
    starts = [n]
    while (m := -(-starts[-1] // 2)) < starts[-1] and target**m <= delta / (len(starts) + 1):
        starts.append(m)
    return dict.fromkeys(starts, delta / len(starts))


def area_under_roc(low, high):
    """Share of pairs in which the one from ``high`` is larger; a tie is half."""
    won = 0.0
    for a in low:
        for b in high:
            won += 1.0 if b > a else 0.5 if b == a else 0.0
    return won / (len(low) * len(high))


def false_positive_rate(negatives, positives, tpr):
    """The fewest negatives at or above a cut that keeps at least ``tpr`` of the positives."""
    best = 1.0
    for cut in positives:
        kept = sum(1 for p in positives if p >= cut) / len(positives)
        if kept >= tpr:
            best = min(best, sum(1 for q in negatives if q >= cut) / len(negatives))
    return best


def retrieval(neighbors, label, support_labels, size):
    """(recall at k for each k, MAP@R, R-precision, reciprocal rank) of one query with R = size."""
    hits = [support_labels[j] == label for j in neighbors]
    recall = [any(hits[:k]) for k in range(1, len(hits) + 1)]
    average = sum(sum(hits[: j + 1]) / (j + 1) for j in range(size) if hits[j]) / size
    first = next((1 / (j + 1) for j, hit in enumerate(hits) if hit), 0.0)
    return recall, average, sum(hits[:size]) / size, first


# ---------------------------------------- confidence: NED and weighted kNN


def nearest_rows(query, support, k, metric="sqeuclidean", without=None):
    """The k nearest as (distance, index), ties by index; ``without`` is left out by its index."""
    found = [(distance(query, row, metric), i) for i, row in enumerate(support) if i != without]
    return sorted(found)[:k]


def ned_probabilities(neighbors, labels, num_classes, temperature):
    """Karpusha 2020, eq. 3, one neighbor at a time; ``neighbors`` are (distance, index)."""
    logs = [[] for _ in range(num_classes)]
    for d, i in neighbors:
        logs[int(labels[i])].append(-d / temperature)
    total = log_sum_exp(v for group in logs for v in group)
    return [math.exp(log_sum_exp(group) - total) if group else 0.0 for group in logs]


def ned_probabilities_in_full(neighbors, labels, prior, fitted):
    """p(c) ∝ shift_c (ε π_c + (1-ε) S_c)^γ with eq. 18's S_c; ``fitted``: T_c, m, γ, ε, shift."""
    temperatures, dimension, gamma, eps, shift = fitted
    masses = [0.0] * len(prior)
    for d, i in neighbors:
        c = int(labels[i])
        masses[c] += math.exp(-d / temperatures[c]) / temperatures[c] ** (dimension / 2)
    total = sum(masses)
    raw = [
        s * (eps * p + (1 - eps) * m / total) ** gamma
        for s, p, m in zip(shift, prior, masses, strict=True)
    ]
    return [r / sum(raw) for r in raw]


def leave_one_out_ned(support, labels, k, num_classes, temperature):
    """Each support row told by the others."""
    rows = range(len(support))
    return [
        ned_probabilities(nearest_rows(support[i], support, k, without=i), labels, num_classes,
                          temperature)
        for i in rows
    ]  # fmt: skip


def weighted_knn(neighbors, labels, num_classes, weights):
    """Dudani 1976 or Gou 2012 on plain distances; ``neighbors`` are (plain distance, index)."""
    first, last = neighbors[0][0], neighbors[-1][0]
    masses = [0.0] * num_classes
    for d, i in neighbors:
        w = 1.0
        if weights != "uniform" and last > first:
            w = (last - d) / (last - first)
        if weights == "gou" and last > first:
            w *= (last + first) / (last + d)
        masses[int(labels[i])] += w
    return [m / sum(masses) for m in masses]


# ---------------------------------------- confidence: trust score, DkNN, conformal


def blend(near, line, prior, a, b, background, odds=0.0):
    """NED's and a linear head's probabilities of one row as one, over a background of prior."""
    rows = zip(near, prior, strict=True)
    above = [float((1 - background) * p + background * q) for p, q in rows]
    scores = [p**a / (1 - p) ** odds * float(q) ** b for p, q in zip(above, line, strict=True)]
    shares = [score / sum(scores) for score in scores]
    mixed = zip(shares, prior, strict=True)
    return [(1 - background) * p + background * float(q) for p, q in mixed]


def trust_score(x, predicted, support, labels, k=1):
    """Distance to the k-th nearest row of the nearest other class over that of the predicted."""
    to_class = {}
    for c in set(labels):
        rows = [s for s, y in zip(support, labels, strict=True) if y == c]
        to_class[c] = sorted(distance(x, s, "euclidean") for s in rows)[k - 1]
    return min(d for c, d in to_class.items() if c != predicted) / to_class[predicted]


def dknn_nonconformity(layers, supports, labels, candidate, k, metric):
    """Neighbors of another class than the candidate, over all layers, for one input."""
    against = 0
    for name, x in layers.items():
        far = [(distance(x, s, metric), j) for j, s in enumerate(supports[name])]
        against += sum(1 for _, j in sorted(far)[:k] if labels[j] != candidate)
    return against


def conformal_p_value(score, calibration, u=None):
    """(1 + #{cal >= score}) / (n + 1), or the smoothed one with u."""
    n = len(calibration)
    if u is None:
        return (1 + sum(1 for a in calibration if a >= score)) / (n + 1)
    above = sum(1 for a in calibration if a > score)
    equal = sum(1 for a in calibration if a == score)
    return (above + u * (equal + 1)) / (n + 1)


def confident_joint(p, given):
    """C[given][k]: rows whose likeliest class among those as likely as usual is k."""
    classes = range(len(p[0]))
    usual = []
    for k in classes:
        own = [row[k] for row, g in zip(p, given, strict=True) if g == k]
        usual.append(sum(own) / len(own) if own else math.inf)
    joint = [[0] * len(p[0]) for _ in classes]
    for row, g in zip(p, given, strict=True):
        sure = [k for k in classes if row[k] >= usual[k] - 1e-6]
        if sure:
            joint[g][max(sure, key=lambda k: row[k])] += 1
    return joint


def label_halves(p, given):
    """l[j][k], u[j][k], named[k]: shares of label j in both halves (by p_j) of rows called k."""
    classes = range(len(p[0]))
    called = [max(classes, key=lambda k: row[k]) for row in p]
    lower, upper = ([[0.0] * len(classes) for _ in classes] for _ in range(2))
    for k in classes:
        rows = [i for i in range(len(p)) if called[i] == k]
        size = (len(rows) + 1) // 2
        for j in classes:
            if j == k or not rows:
                continue
            middle = sorted(p[i][j] for i in rows)[size - 1]
            below = sum(p[i][j] < middle for i in rows)
            level = sum(p[i][j] == middle for i in rows)
            share = {True: (size - below) / level, False: 0.0}
            low = [
                1.0 if p[i][j] < middle else share[p[i][j] == middle] for i in rows if given[i] == j
            ]
            lower[j][k] = sum(low) / size
            upper[j][k] = (len(low) - sum(low)) / max(len(rows) - size, 1)
    return lower, upper, [called.count(k) for k in classes]


def label_scores(p, given):
    """1 - P(true = given | x, given) of every row."""
    n, count = len(p), len(p[0])
    floor = 1 / (n + 1)
    p = [[(1 - floor) * v + floor / count for v in row] for row in p]
    lower, upper, named = label_halves(p, given)
    gap = (1 - math.log(2)) / (2 * math.log(2))
    halves = [(m + 1) // 2 for m in named]
    events = [
        [max(lw - gap * max(up - lw, 0), 0) * h for lw, up, h in zip(ls, us, halves, strict=True)]
        for ls, us in zip(lower, upper, strict=True)
    ]
    mean = (sum(map(sum, events)) + 0.5) / (sum(halves) + 1)
    even = lambda j, k: 0.0 if j == k else 1 / (count - 1)
    sums = [sum(events[j][k] for j in range(count)) for k in range(count)]
    rates = [(total + 20 * mean) / (h + 20) for total, h in zip(sums, halves, strict=True)]
    logs = [math.log(1 - min(rate, 0.9)) for rate in rates]
    common = sum(v * h for v, h in zip(logs, halves, strict=True)) / sum(halves)
    chi, freedom = 0.0, 0
    for k in range(count):
        column = [events[j][k] for j in range(count) if j != k]
        usual = sum(column) / (count - 1)
        if usual > 0:
            chi += sum((v - usual) ** 2 / usual for v in column)
            freedom += count - 2
    shrink = 1 - (max(0.0, 1 - chi2.ppf(0.95, freedom) / chi) if chi > 0 else 0.0)
    found = [(total, h * sum(sums) / sum(halves)) for total, h in zip(sums, halves, strict=True)]
    chi = sum((v - usual) ** 2 / usual for v, usual in found if usual > 0)
    freedom = sum(usual > 0 for _, usual in found) - 1
    own = max(0.0, 1 - chi2.ppf(0.95, freedom) / chi) if chi > 0 else 0.0
    prior = 0.2 * (count - 1)
    scores = []
    for row, g in zip(p, given, strict=True):
        mass = []
        for k in range(count):
            rate = 1 - math.exp(common + own * (logs[k] - common))
            seen = (events[g][k] + prior * even(g, k)) / (sums[k] + prior)
            direction = (1 - shrink) * seen + shrink * even(g, k)
            mass.append(row[k] * (1 - rate if g == k else direction * rate))
        scores.append((sum(mass) - mass[g]) / sum(mass))
    return scores


def labels_wrong(p, given):
    """How many labels are wrong, with its interval: the readings of the module, one by one."""
    n, count = len(p), len(p[0])
    classes = range(count)
    floor = 1 / (n + 1)
    p = [[(1 - floor) * v + floor / count for v in row] for row in p]
    gap = (1 - math.log(2)) / (2 * math.log(2))
    without = lambda low, high: max(low - gap * max(high - low, 0), 0)
    lower, upper, named = label_halves(p, given)
    joint = confident_joint(p, given)
    sizes = [given.count(j) for j in classes]
    most, spread = 0.0, 0.0
    for j in classes:
        sure = max(sum(joint[j]), 1)
        off = sum(joint[j]) - joint[j][j]
        most += sizes[j] * off / sure
        spread += sizes[j] ** 2 * (1 - joint[j][j] / sure) * (joint[j][j] / sure) / sure
    middle = sum(lower[j][k] * named[k] for j in classes for k in classes)
    above = sum(upper[j][k] * named[k] for j in classes for k in classes)
    high = min(math.sqrt(middle * most), most)
    own = [row[g] for row, g in zip(p, given, strict=True)]
    cells = sorted(v for row in p for v in row)

    def among(size):
        end = cells[math.ceil(size) - 1]
        level = (size - sum(v < end for v in cells)) / cells.count(end)
        return sum(v < end for v in own) + level * sum(v == end for v in own)

    first, both = among(n * count / 4), among(n * count / 2)
    by_cells = without(*(4 * (count - 1) / count * v for v in (first, both - first)))
    events = {
        (j, k): without(lower[j][k], upper[j][k]) * named[k] / 2
        for j in classes
        for k in classes
        if j != k
    }
    chi, freedom = 0.0, 0
    for k in classes:
        column = [events[j, k] for j in classes if j != k]
        usual = sum(column) / (count - 1)
        if usual > 0:
            chi += sum((v - usual) ** 2 / usual for v in column)
            freedom += count - 2
    keep = max(0.0, 1 - chi2.ppf(0.95, freedom) / chi) if chi > 0 and freedom > 0 else 0.0
    by_pairs = keep * 2 * sum(events.values())
    sure = max(by_cells, by_pairs)
    low = min(max(sure, math.sqrt((1 + sure) * (1 + without(middle, above))) - 1), high)
    weight = sum(max(row) > (1 - low / n) / 2 for row in p) / n
    total = (1 + high) ** weight * (1 + low) ** (1 - weight) - 1
    error = 2 * math.sqrt(by_cells) if by_cells >= by_pairs else math.sqrt(2 * by_pairs)
    right = sum(max(classes, key=lambda k: row[k]) == g for row, g in zip(p, given, strict=True))
    least = min(sure, total) - 1.96 * error if right >= n / 2 else 0.0
    return total, max(least, 0.0), min(most + 1.96 * math.sqrt(spread), n)


# ---------------------------------------- perturbations


def blur_along_a_path(image, angle, steps, sigma, scale):
    """Each pixel: Σ_i exp(−i²/2σ²) times the image i·scale pixels along the angle."""
    h, w = len(image), len(image[0])

    def at(row, column):
        return float(image[min(max(row, 0), h - 1)][min(max(column, 0), w - 1)])

    total = sum(math.exp(-(i**2) / (2 * sigma**2)) for i in range(steps + 1))
    out = [[0.0] * w for _ in range(h)]
    for row in range(h):
        for column in range(w):
            for i in range(steps + 1):
                dy, dx = i * scale * math.sin(angle), i * scale * math.cos(angle)
                y, x = math.floor(dy), math.floor(dx)
                v, u = dy - y, dx - x
                value = (1 - v) * (1 - u) * at(row + y, column + x)
                value += (1 - v) * u * at(row + y, column + x + 1)
                value += v * (1 - u) * at(row + y + 1, column + x)
                value += v * u * at(row + y + 1, column + x + 1)
                out[row][column] += math.exp(-(i**2) / (2 * sigma**2)) / total * value
    return out


def diamond_square(side, noise, decay):
    """Heights on a torus; ``noise`` yields one number in [−1, 1] for each new point."""
    heights = [[0.0] * side for _ in range(side)]
    amplitude, step = 1.0, side
    while step >= 2:
        half = step // 2
        places = range(0, side, step)
        draws = [[[next(noise) for _ in places] for _ in places] for _ in range(3)]
        for i, y in enumerate(places):
            for j, x in enumerate(places):
                corners = [(y, x), (y, x + step), (y + step, x), (y + step, x + step)]
                mean = sum(heights[a % side][b % side] for a, b in corners) / 4
                heights[y + half][x + half] = mean + amplitude**2 * draws[0][i][j]
        for i, y in enumerate(places):
            for j, x in enumerate(places):
                ring = [(y, x), (y, x + step), (y + half, x + half), (y - half, x + half)]
                mean = sum(heights[a % side][b % side] for a, b in ring) / 4
                across = mean + amplitude**2 * draws[1][i][j]
                ring = [(y, x), (y + step, x), (y + half, x + half), (y + half, x - half)]
                mean = sum(heights[a % side][b % side] for a, b in ring) / 4
                down = mean + amplitude**2 * draws[2][i][j]
                heights[y][x + half], heights[y + half][x] = across, down
        amplitude, step = amplitude / decay, half
    return heights


def mean_corruption_error(errors, baseline, clean=0.0, baseline_clean=0.0):
    """Mean over corruptions of the ratio of sums over severities, clean errors taken off both."""
    ratios = []
    for name, row in errors.items():
        above = sum(e - clean for e in row)
        below = sum(e - baseline_clean for e in baseline[name])
        ratios.append(above / below)
    return sum(ratios) / len(ratios)


# ---------------------------------------- similarity


def gradient_kernel(ga, gb, kind="correlation"):
    """The d x d kernel of two inputs from their d gradients each (Charpiat et al. 2019, eq. 1-4).

    Influence: what a move of the first one's output does to the second's, K(b, a) K(a, a)^-1.
    """

    def products(us, vs):
        return [[sum(p * q for p, q in zip(u, v, strict=True)) for v in vs] for u in us]

    cross = products(ga, gb)
    if kind == "inner":
        return cross
    root_a, root_b = inverse_root(products(ga, ga)), inverse_root(products(gb, gb))
    if kind == "influence":
        return matrix_product(products(gb, ga), matrix_product(root_a, root_a))
    return matrix_product(matrix_product(root_a, cross), root_b)


def matrix_product(a, b):
    columns = list(zip(*b, strict=True))
    return [[sum(p * q for p, q in zip(row, col, strict=True)) for col in columns] for row in a]


def inverse_root(k, rank=None):
    """K^-1/2 of a symmetric matrix by its eigenvectors, on the ``rank`` largest eigenvalues."""
    import numpy as np

    values, vectors = np.linalg.eigh(np.array(k, dtype=np.float64))
    kept = range(len(values) - (len(values) if rank is None else rank), len(values))
    root = sum(np.outer(vectors[:, i], vectors[:, i]) / math.sqrt(values[i]) for i in kept)
    return root.tolist()


# ---------------------------------------- neighbors: masses (tile engine)


def agreement(a, b):
    """1 if two hard labels are equal, else 0; the inner product of two soft ones."""
    if hasattr(a, "__len__") and len(a) > 0:
        return sum(float(u) * float(v) for u, v in zip(a, b, strict=True))
    return 1.0 if int(a) == int(b) else 0.0


def masses(x, labels, temperature=1.0, metric="sqeuclidean", reference=None, reference_labels=None):
    """For each row: log Σ of w, w·agree and w·(1 - agree) over the others, or a reference."""
    others = x if reference is None else reference
    other_labels = labels if reference is None else reference_labels
    rows = []
    for i in range(len(x)):
        every, own, rest = [], [], []
        for j in range(len(others)):
            if reference is None and i == j:
                continue
            log_weight = -distance(x[i], others[j], metric) / float(temperature)
            same = agreement(_label(labels[i]), _label(other_labels[j]))
            every.append(log_weight)
            if same > 0:
                own.append(log_weight + math.log(same))
            if same < 1:
                rest.append(log_weight + math.log(1 - same))
        rows.append((log_sum_exp(every), log_sum_exp(own), log_sum_exp(rest)))
    return rows


def _label(label):
    return label.tolist() if hasattr(label, "tolist") else label


def soft_nearest_neighbor_terms(x, labels, temperature=1.0, metric="sqeuclidean"):
    """-log of the own share of the weight around each row; None for a row without a peer."""
    return [
        every - own if own > -math.inf else None
        for every, own, _ in masses(x, labels, temperature, metric)
    ]


def graph_smoothness(x, labels, alpha=2.0, edges=None):
    """½ Σ over ordered edges of e^(-α‖x_i - x_j‖) ‖y_i - y_j‖² (hard labels: 1 across classes)."""
    total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            if i == j or (edges is not None and not edges[i][j]):
                continue
            a, b = _label(labels[i]), _label(labels[j])
            if isinstance(a, list):
                apart = 0.5 * sum((u - v) ** 2 for u, v in zip(a, b, strict=True))
            else:
                apart = float(a != b)
            total += math.exp(-alpha * distance(x[i], x[j], "euclidean")) * apart
    return total


# ---------------------------------------- losses: InfoNCE, contrastive, metric


def info_nce_rows(logits, targets, noise=None, temperature=1.0, noise_targets=None):
    """Hugger & Uhlmann 2024, eq. 9, one sample and one target at a time; targets are rows."""

    def score(z, alpha):
        total = 0.0
        for k, weight in enumerate(alpha):
            if float(weight) > 0:
                log_eta = 0.0 if noise is None else math.log(float(noise[k]))
                total += float(weight) * (float(z[k]) / temperature - log_eta)
        return total

    losses = []
    for z, alpha in zip(logits, targets, strict=True):
        others = targets if noise_targets is None else [alpha, *noise_targets]
        losses.append(log_sum_exp(score(z, other) for other in others) - score(z, alpha))
    return losses


def share(a, b):
    """How much of a class two labels share: equality, or the inner product of soft labels."""
    if getattr(a, "ndim", 0) == 0:
        return float(a == b)
    return sum(float(u) * float(v) for u, v in zip(a, b, strict=True))


def _log_weights(x, i, others, temperature, metric):
    if metric == "dot":
        dots = [sum(float(u) * float(v) for u, v in zip(x[i], y, strict=True)) for y in others]
        return [dot / temperature for dot in dots]
    return [-distance(x[i], y, metric) / temperature for y in others]


def supervised_contrastive_rows(x, labels, temperature=0.1, metric="cosine"):
    """Khosla et al. 2020, eq. 2: log of the mass of all others less the mean over the positives."""
    losses = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        s = _log_weights(x, i, [x[j] for j in others], temperature, metric)
        w = [share(labels[i], labels[j]) for j in others]
        if sum(w) > 0:
            mean = sum(a * b for a, b in zip(w, s, strict=True)) / sum(w)
            losses.append(log_sum_exp(s) - mean)
        else:
            losses.append(None)
    return losses


def nt_xent_rows(x, labels, temperature=0.1, metric="cosine"):
    """Chen et al. 2020: each positive against the negatives, averaged over the positives."""
    losses = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        s = _log_weights(x, i, [x[j] for j in others], temperature, metric)
        w = [share(labels[i], labels[j]) for j in others]
        negatives = [a + math.log(1 - b) for a, b in zip(s, w, strict=True) if b < 1]
        total = 0.0
        for a, b in zip(s, w, strict=True):
            if b > 0:
                total += b * (log_sum_exp([a, *negatives]) - a)
        losses.append(total / sum(w) if sum(w) > 0 else None)
    return losses


def triplets(x, labels, margin=0.2, metric="euclidean", mining="all", fallback=True):
    """Frosst et al. 2019, eq. 4: the hinge of every mined triplet, by anchor."""
    hinges = []
    for a in range(len(x)):
        positives = [p for p in range(len(x)) if p != a and labels[p] == labels[a]]
        negatives = [n for n in range(len(x)) if labels[n] != labels[a]]
        d = [distance(x[a], x[j], metric) for j in range(len(x))]
        mined = [(p, n) for p in positives for n in negatives]
        if mining == "hard" and mined:
            mined = [(max(positives, key=d.__getitem__), min(negatives, key=d.__getitem__))]
        if mining == "semihard" and mined:
            mined = []
            for p in positives:
                farther = [n for n in negatives if d[n] > d[p]]
                if farther:
                    mined.append((p, min(farther, key=d.__getitem__)))
                elif fallback:
                    mined.append((p, max(negatives, key=d.__getitem__)))
        hinges.append([max(0.0, d[p] - d[n] + margin) for p, n in mined])
    return hinges


def cosine(a, b):
    return 1 - distance(a, b, "cosine")


def met(x, labels, others, other_labels, own_first):
    """Of each anchor: who of the others is of its class (itself left out), and who is not."""
    for i in range(len(x)):
        rows = [j for j in range(len(others)) if not (own_first and i == j)]
        same = [j for j in rows if other_labels[j] == labels[i]]
        yield i, same, [j for j in rows if other_labels[j] != labels[i]]


def contrastive(x, labels, pos_margin, neg_margin, metric, others=None, other_labels=None):
    """Hadsell et al. 2006: the hinges of positive and of negative pairs, by anchor."""
    own = others is None
    others, other_labels = (x, labels) if own else (others, other_labels)
    for i, same, differ in met(x, labels, others, other_labels, own):
        near = [max(0.0, distance(x[i], others[j], metric) - pos_margin) for j in same]
        far = [max(0.0, neg_margin - distance(x[i], others[j], metric)) for j in differ]
        yield near, far


def multi_similarity_rows(x, labels, alpha=2.0, beta=50.0, base=0.5):
    """Wang et al. 2019, eq. 11."""
    losses = []
    for i, same, differ in met(x, labels, x, labels, True):
        pull = [-alpha * (cosine(x[i], x[j]) - base) for j in same]
        push = [beta * (cosine(x[i], x[j]) - base) for j in differ]
        losses.append(log_sum_exp([0.0, *pull]) / alpha + log_sum_exp([0.0, *push]) / beta)
    return losses


def circle_rows(x, labels, margin=0.4, gamma=80.0):
    """Sun et al. 2020, eq. 8; None without a positive or a negative."""
    losses = []
    for i, same, differ in met(x, labels, x, labels, True):
        if not same or not differ:
            losses.append(None)
            continue
        total = 0.0
        for p in same:
            for n in differ:
                a, b = cosine(x[i], x[p]), cosine(x[i], x[n])
                pull = -gamma * max(0.0, 1 + margin - a) * (a - 1 + margin)
                total += math.exp(pull + gamma * max(0.0, b + margin) * (b - margin))
        losses.append(math.log1p(total))
    return losses


def margin_softmax_rows(x, labels, centers, margin, scale, kind):
    """ArcFace (an angle) and CosFace (a cosine), each class by the nearest of its centers."""
    losses = []
    for row, y in zip(x, labels, strict=True):
        scores = [max(cosine(row, center) for center in own) for own in centers]
        own = scores[int(y)]
        angle = math.acos(min(1.0, max(-1.0, own)))
        if kind == "cosface":
            own = own - margin
        elif angle <= math.pi - margin:
            own = math.cos(angle + margin)
        else:
            own = own - margin * math.sin(margin)
        scores[int(y)] = own
        scores = [scale * s for s in scores]
        losses.append(log_sum_exp(scores) - scores[int(y)])
    return losses


def moco_rows(queries, keys, queue, temperature):
    """He et al. 2020, eq. 1."""
    losses = []
    for q, k in zip(queries, keys, strict=True):
        own = cosine(q, k) / temperature
        losses.append(log_sum_exp([own, *(cosine(q, u) / temperature for u in queue)]) - own)
    return losses


def semihard(x, labels, margin, metric="euclidean"):
    """Schroff et al. 2015: negatives farther than the positive, by at most the margin."""
    found = []
    for a, same, differ in met(x, labels, x, labels, True):
        for p in same:
            for n in differ:
                gap = distance(x[a], x[n], metric) - distance(x[a], x[p], metric)
                if 0 < gap <= margin:
                    found.append((a, p, n))
    return found


def proxy_nca_rows(x, labels, proxies, temperature=1.0, include_positive=True):
    """Movshovitz-Attias et al. 2017, eq. 4."""
    losses = []
    for row, y in zip(x, labels, strict=True):
        s = [-distance(row, p) / temperature for p in proxies]
        summed = [v for c, v in enumerate(s) if include_positive or c != int(y)]
        losses.append(log_sum_exp(summed) - s[int(y)])
    return losses


def cross_entropy_rows(logits, targets):
    """-Σ α log softmax(z); rows of weights as targets."""
    losses = []
    for z, alpha in zip(logits, targets, strict=True):
        top = log_sum_exp(float(v) for v in z)
        losses.append(sum(float(a) * (top - float(v)) for a, v in zip(alpha, z, strict=True)))
    return losses


def apgd(slope, x, start, epsilon, steps):
    """Croce & Hein 2020, algorithm 1, one row, L∞ in [0, 1]: the point of the highest loss."""

    def inside(z):
        near = [min(max(a, b - epsilon), b + epsilon) for a, b in zip(z, x, strict=True)]
        return [min(max(a, 0.0), 1.0) for a in near]

    places, part, gap = [], 0.22, 0.22
    while part < 1:
        places.append(math.ceil(round(part * steps, 9)))
        gap = max(gap - 0.03, 0.06)
        part += gap
    eta, before, here, (value, gradient) = 2 * epsilon, start, start, slope(start)
    best, best_value, best_gradient = here, value, gradient
    rises, last, halved, settled = 0, 0, True, value
    for k in range(1, steps + 1):
        sign = [(g > 0) - (g < 0) for g in gradient]
        aim = inside([a + eta * s for a, s in zip(here, sign, strict=True)])
        w = 1.0 if k == 1 else 0.75
        ahead = [
            a + w * (z - a) + (1 - w) * (a - b) for a, z, b in zip(here, aim, before, strict=True)
        ]
        before, here = here, inside(ahead)
        old, (value, gradient) = value, slope(here)
        rises += value > old
        if value > best_value:
            best, best_value, best_gradient = here, value, gradient
        if k in places:
            halved = rises < 0.75 * (k - last) or (not halved and best_value <= settled)
            if halved:
                eta, here, value, gradient = eta / 2, best, best_value, best_gradient
            rises, last, settled = 0, k, best_value
    return best


def combined_by_ranks(held, new):
    """p-values of the harmonic mean of conformal p-values, ranked among held-out rows."""
    m, parts = len(held), len(held[0])

    def strangeness(row, count):
        total = 0.0
        for j in range(parts):
            reaching = sum(other[j] >= row[j] for other in held) + (count - m)
            total += count / reaching
        return total / parts

    ours = [strangeness(row, m) for row in held]
    found = []
    for row in new:
        mine = strangeness(row, m + 1)
        found.append((1 + sum(other >= mine * (1 - 1e-12) for other in ours)) / (m + 1))
    return found


def dealt_copies(order, weights, folds):
    """How many copies of each row are in which fold: one copy after the other, fold by fold."""
    held, place = [[0.0] * folds for _ in weights], 0
    for row in order:
        for _ in range(weights[row]):
            held[row][place % folds] += 1
            place += 1
    return held
