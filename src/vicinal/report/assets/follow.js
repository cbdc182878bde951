// ---- follow: charts of the rows that are selected, drawn over those of all rows.
// A chart that can be counted from the points follows the selection; every other one says "all rows".

let selected = []; // the rows that match every filter
const overlay = (chart) => { $('g.chosen', chart)?.remove(); const group = svg('g', { class: 'chosen' }); chart.append(group); return group; };
const frameOf = (chart) => {
  const [x0, x1, y0, y1, left, right, bottom, top] = chart.dataset.frame.split(' ').map(Number);
  return { sx: (v) => left + (right - left) * (v - x0) / (x1 - x0), sy: (v) => bottom + (top - bottom) * (Math.max(v, y0) - y0) / (y1 - y0), back: (u) => x0 + (x1 - x0) * (u - left) / (right - left), left, right, bottom, y0 };
};
const nines = (c) => -Math.log10(Math.max(1 - c, 1e-4)); // as figures/reliability.py has it

// Wilson's interval of a share: drawn where a selection is too small for a share alone.
function wilson(right, n) {
  const [p, z] = [right / n, 1.96 ** 2 / n];
  const half = Math.sqrt(z * (p * (1 - p) + z / 4));
  return [(p + z / 2 - half) / (1 + z), (p + z / 2 + half) / (1 + z)];
}

// Accuracy of the accepted against coverage, one point for each confidence.
function curveOf(rows) {
  const order = rows.filter(hasLabel).sort((a, b) => P.confidence[b] - P.confidence[a]);
  const points = [];
  let wrong = 0;
  order.forEach((r, i) => {
    wrong += isWrong(r);
    if (i + 1 === order.length || P.confidence[order[i + 1]] !== P.confidence[r]) points.push([(i + 1) / order.length, 1 - wrong / (i + 1)]);
  });
  return points;
}

function followCurve(chart, rows) {
  const { sx, sy } = frameOf(chart);
  const points = curveOf(rows).map(([c, a]) => `${sx(c)},${sy(a)}`);
  overlay(chart).append(svg('polyline', { class: 'line', points: points.join(' ') }));
}

// The bars know their bins: the fields over them carry the filter that a click sets.
function followBins(chart, rows, value) {
  const { sx, sy, y0 } = frameOf(chart);
  const group = overlay(chart);
  const place = chart.classList.contains('nines') ? nines : (v) => v;
  for (const field of $$('.hot', chart)) {
    const range = span(field.dataset.pick.split('=')[1]);
    const inside = rows.filter((r) => hasLabel(r) && within(value(r), range));
    if (!inside.length) continue;
    const right = inside.filter((r) => !isWrong(r)).length;
    const x = sx(place(inside.reduce((sum, r) => sum + value(r), 0) / inside.length));
    const [low, high] = wilson(right, inside.length);
    const dot = svg('circle', { class: 'dot', cx: x, cy: sy(right / inside.length), r: 4 });
    dot.append(svg('title', {}, `${plural(inside.length, 'selected row')}, accuracy ${percent(right / inside.length)}`));
    group.append(svg('line', { class: 'whisker', x1: x, x2: x, y1: sy(Math.max(low, y0)), y2: sy(high) }), dot);
  }
}

// The share of each class among the selected rows, as an outline around the query's bar.
function followShares(chart, rows) {
  const { sx, left, right } = frameOf(chart);
  const group = overlay(chart);
  const labeled = rows.filter((r) => P.label[r] >= 0);
  const bars = $$('.bar.second', chart);
  $$('.hot', chart).forEach((field, i) => {
    const code = +field.dataset.pick.split('=')[1];
    const share = labeled.filter((r) => P.label[r] === code).length / (labeled.length || 1);
    const bar = bars[i];
    const [y, height] = [+bar.getAttribute('y'), +bar.getAttribute('height')];
    group.append(svg('rect', { class: 'outline', x: left, y, height, width: Math.max(0, Math.min(sx(share), right) - left) }));
    if (sx(share) > right) group.append(svg('text', { class: 'tick end', x: right - 4, y: y + height - 0.5 }, percent(share, 0))); // beyond the axis
  });
}

// Rows, precision and recall of each class; the cells keep what they said of all rows.
function followClasses(rows, on) {
  const [mine, said, hits] = [[], [], []];
  const add = (list, code) => { list[code] = (list[code] ?? 0) + 1; };
  if (on) for (const r of rows) if (hasLabel(r)) { add(said, P.predicted[r]); if (P.label[r] >= 0) add(mine, P.label[r]); if (!isWrong(r)) add(hits, P.label[r]); }
  for (const cell of $$('#classes td[data-of]')) {
    const code = +cell.parentNode.dataset.pick.split('=')[1];
    const share = (n) => (n ? (100 * (hits[code] ?? 0) / n).toFixed(1) : '–');
    const values = { query: whole(mine[code] ?? 0), precision: share(said[code]), recall: share(mine[code]) };
    cell.dataset.all ??= cell.textContent;
    cell.textContent = on ? values[cell.dataset.of] : cell.dataset.all;
    cell.classList.toggle('chosen', on);
  }
}

// Which class is taken for which: the pairs that are wrong most often, among the rows shown.
function drawConfusions(rows) {
  const box = $('#confusions-list');
  if (!box) return;
  const counts = new Map();
  for (const r of rows) if (isWrong(r) && P.label[r] >= 0) { const key = `${P.label[r]}~${P.predicted[r]}`; counts.set(key, (counts.get(key) ?? 0) + 1); }
  const top = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 12);
  const most = top.length ? top[0][1] : 1;
  box.replaceChildren(...top.map(([key, n]) => {
    const [label, predicted] = span(key);
    const bar = el('span', { class: 'meter', 'aria-hidden': 'true' }, el('i'));
    bar.firstChild.style.width = `${100 * n / most}%`;
    return el('li', {}, el('button', { type: 'button', 'data-confused': key, onclick: () => { const [hit] = [rows.filter((r) => P.label[r] === label && P.predicted[r] === predicted)]; chooseRows(hit, []); goTo('cases'); } },
      el('span', { class: 'says' }, name(D.classes[label], 24), ' taken for ', name(D.classes[predicted], 24)), el('b', { text: whole(n) }), bar));
  }));
  if (!top.length) box.append(el('li', { class: 'quiet', text: rows.some(hasLabel) ? 'No error among these rows.' : 'These rows have no labels.' }));
}

// Every chart that can be counted from the points, and how.
function followers() {
  const all = D.cases.row.length === D.total; // credibility is known of rows with a card
  const reliable = document.getElementById(`reliability-${D.head}`);
  return [
    [$('#risk-coverage'), followCurve],
    [reliable, (chart, rows) => followBins(chart, rows, sure)],
    [all ? $('#credibility') : null, (chart, rows) => followBins(chart, rows, (r) => D.cases.credibility[caseAt.get(r)])],
    [$('#prior-shift'), followShares],
  ].filter(([figure]) => figure);
}

function follow(rows) {
  const on = filtered();
  selected = rows;
  root.classList.toggle('filtered', on);
  for (const [figure, draw] of followers()) {
    const chart = $('svg', figure);
    figure.classList.add('follows');
    $('h3', figure).dataset.rows = plural(rows.length, 'selected row');
    if (on) draw(chart, rows); else $('g.chosen', chart)?.remove();
  }
  followClasses(rows, on);
  drawConfusions(rows);
}
