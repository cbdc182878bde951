// ---- colors: what a point of the map may be colored by, its legend, and what it says on hover.

const HUES = ['#2f6f9f', '#d18a17', '#a83a6b', '#3c8d5a', '#7a5ab5', '#b5523b', '#2a9a9a', '#8a8f1f', '#c45f9c', '#5b6f8f', '#9c6b3f', '#4f9fd6'];
const QUIET = 'strong'; // the palette's name for what is not colored
const RAMP = ['#d6c15a', '#9fb35a', '#5fa06f', '#33868a', '#2b6690', '#26447f'];

function colorings() {
  const c = D.cases;
  const hue = (code) => (code < 0 ? QUIET : HUES[code % HUES.length]);
  const classes = (codes) => [...new Set(codes)].filter((code) => code >= 0).sort((a, b) => a - b).map((code) => [hue(code), D.classes[code], `class=${code}`]);
  const found = {
    verdict: { title: 'verdict', of: (r) => VERDICTS[P.verdict[r]], legend: () => VERDICTS.map((v) => [v, v, `verdict=${v}`]) },
    predicted: { title: 'prediction', of: (r) => hue(P.predicted[r]), legend: () => classes(P.predicted) },
    label: { title: 'label', of: (r) => hue(P.label[r]), legend: () => [...classes(P.label), [QUIET, 'no label', null]] },
    confidence: { title: 'confidence', of: (r) => RAMP[Math.min(5, Math.floor(sure(r) * 6))], legend: () => RAMP.map((color, i) => [color, `${decimal(i / 6)}–${decimal((i + 1) / 6)}`, `conf=${i / 6}~${(i + 1) / 6}`]) },
    right: { title: 'right or wrong', of: (r) => (isWrong(r) ? 'unfamiliar' : hasLabel(r) ? 'supported' : QUIET), legend: () => [['supported', 'right', null], ['unfamiliar', 'wrong', 'errors=1'], [QUIET, 'no label', null]] },
    suspect: { title: 'suspect labels', of: () => QUIET, behind: (s, row) => (suspectAt.has(row) ? 'contested' : QUIET), legend: () => [['contested', 'support label to review', 'section=labels'], [QUIET, 'other rows', null]] },
  };
  if (!P.label.some((code) => code !== -1)) { delete found.label; delete found.right; }
  (c.layers ?? []).forEach((layer, l) => {
    found[`layer-${l}`] = { title: `vote of ${middle(layer, 24)}`, of: (r) => { const i = caseAt.get(r); return i === undefined ? QUIET : hue(c.layer_class[i][l]); }, legend: () => classes(c.layer_class.map((row) => row[l])) };
  });
  const behind = P.support.label;
  for (const form of Object.values(found)) form.behind ??= form === found.predicted || form === found.label || form.title.startsWith('vote') ? (s) => hue(behind[s]) : () => QUIET;
  return found;
}

// Where each class has most of its support rows: the fullest cell of a coarse grid, the largest class first.
const MOST_NAMES = 60;
function classPlaces(form) {
  const cells = 14;
  const [x, y, of] = form.support_x.length ? [form.support_x, form.support_y, P.support.label] : [form.x, form.y, P.predicted];
  const longest = Math.max(most(x), most(y));
  const found = D.classes.map(() => new Map());
  const count = D.classes.map(() => 0);
  for (let s = 0; s < x.length; s += 1) {
    if (of[s] < 0) continue;
    const key = Math.floor(x[s] / longest * cells) * 99 + Math.floor(y[s] / longest * cells);
    const cell = found[of[s]].get(key) ?? [0, 0, 0];
    found[of[s]].set(key, [cell[0] + 1, cell[1] + x[s], cell[2] + y[s]]);
    count[of[s]] += 1;
  }
  const places = found.map((grid, code) => [code, [...grid.values()].sort((a, b) => b[0] - a[0])[0]]).filter(([, cell]) => cell);
  return places.sort((a, b) => count[b[0]] - count[a[0]]).slice(0, MOST_NAMES).map(([code, [n, sx, sy]]) => ({ text: middle(D.classes[code], 18), x: sx / n, y: sy / n }));
}

// Names over the points, each with a halo; one that would lie on another is moved up or down, or left out.
function drawNames(pen, places, px, py, width, height, color) {
  const taken = [];
  pen.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
  pen.textAlign = 'center';
  pen.lineWidth = 3.5;
  pen.lineJoin = 'round';
  for (const { text, x, y } of places) {
    const half = pen.measureText(text).width / 2 + 3;
    const at = Math.max(half + 2, Math.min(width - half - 2, px(x)));
    if (px(x) < 0 || px(x) > width || py(y) < 0 || py(y) > height) continue;
    const spot = [0, -15, 15, -30, 30].map((by) => py(y) + 4 + by).find((v) => v > 12 && v < height - 4 && !taken.some(([a, b, h]) => Math.abs(a - at) < h + half && Math.abs(b - v) < 14));
    if (spot === undefined) continue;
    taken.push([at, spot, half]);
    pen.strokeStyle = color('sheet');
    pen.strokeText(text, at, spot);
    pen.fillStyle = color('ink');
    pen.fillText(text, at, spot);
  }
  return taken.length;
}

// A color as the four bytes of a pixel, mixed with the ground it lies on.
function pixelOf(color, ground, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [a, b] = [parts(color), parts(ground)];
  const [red, green, blue] = a.map((v, i) => Math.round(v * share + b[i] * (1 - share)));
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
}

function drawLegend(by) {
  const color = paletteOf();
  const entries = by.legend();
  const some = entries.length > 16 ? entries.slice(0, 15) : entries;
  const swatch = (key) => {
    if (VERDICTS.includes(key) && by.title === 'verdict') return mark(VERDICTS.indexOf(key));
    const dot = el('i', { class: 'swatch-dot' });
    dot.style.background = color(key);
    return dot;
  };
  $('#map-legend').replaceChildren(...some.map(([key, label, picked]) => (picked
    ? el('button', { type: 'button', 'data-pick': picked }, swatch(key), name(label, 28))
    : el('span', {}, swatch(key), name(label, 28)))),
  entries.length > some.length && el('span', { class: 'quiet', text: `and ${whole(entries.length - some.length)} more, colors repeat` }) || '',
  P.support.row.length ? el('span', { class: 'quiet' }, 'small: support') : '');
}

function rowTip(row) {
  const i = caseAt.get(row);
  const wrong = isWrong(row);
  return [
    i !== undefined && D.kind === 'images' ? thumb('query', i, 64) : null,
    el('div', {},
      el('div', { class: 'says' }, mark(P.verdict[row]), name(D.classes[P.predicted[row]], 40), el('span', { class: 'quiet', text: decimal(sure(row)) })),
      el('div', { class: wrong ? 'truth wrong' : 'truth' }, hasLabel(row) ? name(`${wrong ? '✗' : '✓'} label ${middle(labelName(row), 40)}`) : 'no label'),
      el('div', { class: 'id' }, name(rowName(idOf(row), row), 48)),
      i !== undefined && D.kind === 'texts' ? el('div', { class: 'snippet', text: clip(D.texts.query[i] ?? '', 120) }) : null),
  ].filter(Boolean);
}

function suspectTip(row) {
  const s = D.suspects[suspectAt.get(row)];
  return [D.kind === 'images' ? thumb('support', s.place, 64) : null,
    el('div', {}, el('div', { class: 'says' }, name(`${middle(D.classes[s.given], 30)} → ${middle(D.classes[s.suggested], 30)}?`)), el('div', { class: 'id' }, name(rowName(s.id, s.row), 48)))].filter(Boolean);
}

function mapTable(form) {
  const groups = new Map();
  P.predicted.forEach((p, r) => { const g = groups.get(p) ?? [0, 0, 0]; g[0] += 1; g[1] += form.x[r]; g[2] += form.y[r]; groups.set(p, g); });
  const rows = [...groups].sort((a, b) => a[0] - b[0]).map(([p, [n, x, y]]) => el('tr', {}, el('th', { scope: 'row' }, name(D.classes[p], 60)), el('td', { text: whole(n) }), el('td', { text: brief(x / n) }), el('td', { text: brief(y / n) })));
  $('#map-table').replaceChildren(el('table', {}, el('caption', { class: 'quiet', text: 'Centers of the predicted classes on the map' }),
    el('thead', {}, el('tr', {}, ...['predicted', 'rows', 'x', 'y'].map((t) => el('th', { scope: 'col', text: t })))), el('tbody', {}, ...rows)));
}
