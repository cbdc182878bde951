// ---- map: every query row as a point on a canvas. Zoom, pan, lasso; a selection filters the page.

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
    confidence: { title: 'confidence', of: (r) => RAMP[Math.min(5, Math.floor(P.confidence[r] / 10000 * 6))], legend: () => RAMP.map((color, i) => [color, `${decimal(i / 6)}–${decimal((i + 1) / 6)}`, `conf=${i / 6}~${(i + 1) / 6}`]) },
    right: { title: 'right or wrong', of: (r) => (P.label[r] < 0 ? QUIET : P.label[r] === P.predicted[r] ? 'supported' : 'unfamiliar'), legend: () => [['supported', 'right', null], ['unfamiliar', 'wrong', 'errors=1'], [QUIET, 'no label', null]] },
    suspect: { title: 'suspect labels', of: () => QUIET, behind: (s, row) => (suspectAt.has(row) ? 'contested' : QUIET), legend: () => [['contested', 'support label to review', 'section=labels'], [QUIET, 'other rows', null]] },
  };
  (c.layers ?? []).forEach((layer, l) => {
    found[`layer-${l}`] = { title: `vote of ${clip(layer, 24)}`, of: (r) => { const i = caseAt.get(r); return i === undefined ? QUIET : hue(c.layer_class[i][l]); }, legend: () => classes(c.layer_class.map((row) => row[l])) };
  });
  const behind = P.support.label;
  for (const form of Object.values(found)) form.behind ??= form === found.predicted || form === found.label || form.title.startsWith('vote') ? (s) => hue(behind[s]) : () => QUIET;
  return found;
}

function paletteOf(style) {
  const known = new Map();
  return (key) => {
    if (key.startsWith('#')) return key;
    if (!known.has(key)) known.set(key, style.getPropertyValue(`--${key}`).trim());
    return known.get(key);
  };
}

function startMap() {
  const canvas = $('#map-figure canvas');
  if (!canvas || !P.maps.length) return;
  const forms = colorings();
  const pen = canvas.getContext('2d');
  const view = { zoom: 1, x: 0, y: 0 };
  const suspects = P.support.row.map((row) => suspectAt.has(row));
  let form = P.maps[0];
  let width = 0;
  let height = 0;
  let scale = 1;
  let lasso = null;
  let waiting = 0;
  let moving = 0;
  let span = [0, 0];

  const measure = () => {
    ({ clientWidth: width, clientHeight: height } = canvas);
    const top = (a, b) => { let most = 1; for (const v of a) if (v > most) most = v; for (const v of b) if (v > most) most = v; return most; };
    span = [top(form.x, form.support_x), top(form.y, form.support_y)];
    scale = Math.min((width - 28) / span[0], (height - 28) / span[1]);
  };
  const px = (v) => (v - span[0] / 2) * scale * view.zoom + width / 2 + view.x;
  const py = (v) => height / 2 + view.y - (v - span[1] / 2) * scale * view.zoom;

  // Points of one color in one go: fillStyle is what costs. Shapes where few are in sight and nothing moves.
  function draw() {
    waiting = 0;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const color = paletteOf(getComputedStyle(root));
    const by = forms[state.color] ?? forms.verdict;
    const inSight = (x, y) => x > -6 && y > -6 && x < width + 6 && y < height + 6;
    const batches = new Map();
    const put = (key, x, y) => { if (!batches.has(key)) batches.set(key, []); batches.get(key).push(x, y); };
    if (state.behind !== '0') form.support_x.forEach((v, s) => {
      const x = px(v); const y = py(form.support_y[s]);
      if (inSight(x, y) && !(suspects[s] && by === forms.suspect)) put(by.behind(s, P.support.row[s]), x, y);
    });
    const side = view.zoom > 3 ? 3 : 2;
    pen.globalAlpha = 0.8;
    for (const [key, at] of batches) { pen.fillStyle = color(key); for (let n = 0; n < at.length; n += 2) pen.fillRect(at[n] - side / 2, at[n + 1] - side / 2, side, side); }
    batches.clear();
    const dim = filtered();
    const sight = [];
    const n = form.x.length;
    for (let r = 0; r < n; r += 1) {
      const x = px(form.x[r]); const y = py(form.y[r]);
      if (!inSight(x, y)) continue;
      if (dim && !rowMatches(r)) put('dim', x, y);
      else { sight.push(r); put(by.of(r), x, y); }
    }
    const faded = batches.get('dim') ?? [];
    batches.delete('dim');
    pen.globalAlpha = 0.3;
    pen.fillStyle = color('strong');
    for (let i = 0; i < faded.length; i += 2) pen.fillRect(faded[i] - 1.5, faded[i + 1] - 1.5, 3, 3);
    pen.globalAlpha = 0.85;
    const size = n > 20000 ? 3 : n > 5000 ? 3.6 : 4.4;
    if (sight.length <= 2500 && !moving && by === forms.verdict) {
      for (const r of sight) { pen.fillStyle = pen.strokeStyle = color(by.of(r)); shape(pen, P.verdict[r], px(form.x[r]), py(form.y[r]), 3); }
    } else for (const [key, at] of batches) { pen.fillStyle = color(key); for (let i = 0; i < at.length; i += 2) pen.fillRect(at[i] - size / 2, at[i + 1] - size / 2, size, size); }
    pen.globalAlpha = 1;
    if (by === forms.suspect) { pen.fillStyle = color('contested'); suspects.forEach((is, s) => { if (is) shape(pen, 1, px(form.support_x[s]), py(form.support_y[s]), 4); }); }
    pen.strokeStyle = color('ink');
    pen.lineWidth = 2.2;
    const open = state.case === '' ? -1 : +state.case;
    if (open >= 0 && open < n) { pen.beginPath(); pen.arc(px(form.x[open]), py(form.y[open]), 8, 0, 7); pen.stroke(); }
    const s = state.suspect === '' ? -1 : P.support.row.indexOf(+state.suspect);
    if (s >= 0) { pen.beginPath(); pen.arc(px(form.support_x[s]), py(form.support_y[s]), 8, 0, 7); pen.stroke(); }
    if (lasso) { pen.setLineDash([5, 4]); pen.beginPath(); lasso.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y))); pen.closePath(); pen.stroke(); pen.setLineDash([]); }
    canvas.dataset.drawn = String(+(canvas.dataset.drawn ?? 0) + 1);
  }
  const redraw = () => { waiting ||= requestAnimationFrame(draw); };
  const glide = () => { clearTimeout(moving); moving = setTimeout(() => { moving = 0; redraw(); }, 160); redraw(); };

  function zoomAt(x, y, factor) {
    const zoom = Math.max(1, Math.min(60, view.zoom * factor));
    const by = zoom / view.zoom;
    view.x = (view.x + width / 2 - x) * by + x - width / 2;
    view.y = (view.y + height / 2 - y) * by + y - height / 2;
    view.zoom = zoom;
    keepInside();
    glide();
  }
  function keepInside() {
    const reach = [span[0], span[1]].map((v) => v * scale * view.zoom / 2);
    view.x = Math.max(-reach[0], Math.min(reach[0], view.x));
    view.y = Math.max(-reach[1], Math.min(reach[1], view.y));
  }

  function nearest(x, y, reach = 12) {
    let best = -1;
    let least = reach ** 2;
    let of = 'query';
    for (let r = 0; r < form.x.length; r += 1) { const far = (px(form.x[r]) - x) ** 2 + (py(form.y[r]) - y) ** 2; if (far < least) { least = far; best = r; } }
    if (state.color === 'suspect') suspects.forEach((is, s) => { if (!is) return; const far = (px(form.support_x[s]) - x) ** 2 + (py(form.support_y[s]) - y) ** 2; if (far <= least) { least = far; best = P.support.row[s]; of = 'suspect'; } });
    return [best, of];
  }
  function openAt(x, y, reach) {
    const [row, of] = nearest(x, y, reach);
    if (row < 0) return;
    if (of === 'suspect') openSuspect(suspectAt.get(row));
    else update({ case: String(row), suspect: '', support: '' });
  }

  const tip = $('#map-tip');
  function hover(x, y) {
    const [row, of] = nearest(x, y, 9);
    tip.hidden = row < 0;
    if (row < 0) return;
    tip.replaceChildren(...(of === 'suspect' ? suspectTip(row) : rowTip(row)));
    const left = x + 14 + tip.offsetWidth > width ? x - tip.offsetWidth - 10 : x + 14;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 12, height - tip.offsetHeight))}px`;
  }

  // One pointer pans or draws the lasso, two pinch.
  const pointers = new Map();
  let from = null;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    from = { at: at(event), far: 0, x: view.x, y: view.y };
    if (event.shiftKey || $('#map-lasso').getAttribute('aria-pressed') === 'true') lasso = [at(event)];
    tip.hidden = true;
  });
  canvas.addEventListener('pointermove', (event) => {
    const [x, y] = at(event);
    if (!pointers.has(event.pointerId)) { if (event.pointerType === 'mouse') hover(x, y); return; }
    const before = pointers.get(event.pointerId);
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      const was = Math.hypot(a[0] - b[0], a[1] - b[1]);
      pointers.set(event.pointerId, [x, y]);
      const [c, d] = [...pointers.values()];
      zoomAt((c[0] + d[0]) / 2, (c[1] + d[1]) / 2, Math.hypot(c[0] - d[0], c[1] - d[1]) / (was || 1));
      from.far = 99;
      return;
    }
    pointers.set(event.pointerId, [x, y]);
    from.far += Math.hypot(x - before[0], y - before[1]);
    if (lasso) { lasso.push([x, y]); redraw(); return; }
    if (from.far < 4) return;
    view.x = from.x + x - from.at[0];
    view.y = from.y + y - from.at[1];
    keepInside();
    glide();
  });
  const up = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    const path = lasso;
    lasso = null;
    if (event.type === 'pointercancel') { redraw(); return; }
    if (path && path.length > 3) select(path);
    else if (from && from.far < 4) openAt(...from.at);
    redraw();
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', up);
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('dblclick', (event) => zoomAt(...at(event), 2));
  canvas.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // the page scrolls
    event.preventDefault();
    zoomAt(...at(event), Math.exp(-event.deltaY / 300));
  }, { passive: false });

  function select(path) {
    const inside = (x, y) => {
      let within = false;
      for (let i = 0, j = path.length - 1; i < path.length; j = i, i += 1) {
        const [xi, yi] = path[i]; const [xj, yj] = path[j];
        if ((yi > y) !== (yj > y) && x < (xj - xi) * (y - yi) / (yj - yi) + xi) within = !within;
      }
      return within;
    };
    const rows = [];
    for (let r = 0; r < form.x.length; r += 1) if (inside(px(form.x[r]), py(form.y[r]))) rows.push(r);
    const behind = P.support.row.filter((_, s) => inside(px(form.support_x[s]), py(form.support_y[s])));
    chooseRows(rows, behind);
  }

  canvas.addEventListener('keydown', (event) => {
    const step = 40;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.key in moves) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; keepInside(); glide(); } else if (event.key === '+' || event.key === '=') zoomAt(width / 2, height / 2, 1.5);
    else if (event.key === '-') zoomAt(width / 2, height / 2, 1 / 1.5);
    else if (event.key === '0') home();
    else if (event.key === 'Enter') openAt(width / 2, height / 2, 80);
    else return;
    event.preventDefault();
  });
  function home() { Object.assign(view, { zoom: 1, x: 0, y: 0 }); redraw(); }
  $('#map-in').onclick = () => zoomAt(width / 2, height / 2, 1.6);
  $('#map-out').onclick = () => zoomAt(width / 2, height / 2, 1 / 1.6);
  $('#map-home').onclick = home;
  $('#map-lasso').onclick = (event) => { const on = event.currentTarget.getAttribute('aria-pressed') !== 'true'; event.currentTarget.setAttribute('aria-pressed', String(on)); canvas.classList.toggle('lasso', on); };
  $('#map-behind').onchange = (event) => update({ behind: event.target.checked ? '' : '0' });

  function settle() {
    form = P.maps[state.map === 'linear' && P.maps[1] ? 1 : 0];
    $('#map-kept').textContent = percent(form.kept, 0);
    $('#map-method').textContent = form.method;
    $('#map-color').value = forms[state.color] ? state.color : 'verdict';
    $('#map-behind').checked = state.behind !== '0';
    if ($('#map-form')) $('#map-form').value = state.map;
    measure();
    drawLegend(forms[state.color] ?? forms.verdict);
    redraw();
  }
  $('#map-color').append(...Object.entries(forms).map(([key, { title }]) => el('option', { value: key, text: title })));
  $('#map-color').onchange = (event) => update({ color: event.target.value });
  if ($('#map-form')) $('#map-form').onchange = (event) => { home(); update({ map: event.target.value }); };
  watchers.push((change) => ('color' in change || 'map' in change || 'behind' in change ? settle() : redraw()));
  redraws.push(() => { drawLegend(forms[state.color] ?? forms.verdict); redraw(); });
  new ResizeObserver(() => { measure(); redraw(); }).observe(canvas);
  settle();
  mapTable(form);
}

function drawLegend(by) {
  const color = paletteOf(getComputedStyle(root));
  const entries = by.legend();
  const some = entries.length > 16 ? entries.slice(0, 15) : entries;
  const swatch = (key) => {
    if (VERDICTS.includes(key) && by.title === 'verdict') return mark(VERDICTS.indexOf(key));
    const dot = el('i', { class: 'swatch-dot' });
    dot.style.background = color(key);
    return dot;
  };
  $('#map-legend').replaceChildren(...some.map(([key, label, picked]) => (picked
    ? el('button', { type: 'button', 'data-pick': picked }, swatch(key), name(clip(label, 28)))
    : el('span', {}, swatch(key), name(clip(label, 28))))),
  entries.length > some.length && el('span', { class: 'quiet', text: `and ${whole(entries.length - some.length)} more, colors repeat` }) || '',
  P.support.row.length ? el('span', { class: 'quiet' }, 'small: support') : '');
}

function rowTip(row) {
  const i = caseAt.get(row);
  const wrong = P.label[row] >= 0 && P.label[row] !== P.predicted[row];
  return [
    i !== undefined && D.kind === 'images' ? thumb('query', i, 64) : null,
    el('div', {},
      el('div', { class: 'says' }, mark(P.verdict[row]), name(clip(D.classes[P.predicted[row]], 40)), el('span', { class: 'quiet', text: decimal(P.confidence[row] / 10000) })),
      el('div', { class: wrong ? 'truth wrong' : 'truth' }, P.label[row] < 0 ? 'no label' : name(`${wrong ? '✗' : '✓'} label ${clip(D.classes[P.label[row]], 40)}`)),
      el('div', { class: 'id' }, name(clip(rowName(idOf(row), row), 48))),
      i !== undefined && D.kind === 'texts' ? el('div', { class: 'snippet', text: clip(D.texts.query[i] ?? '', 120) }) : null),
  ].filter(Boolean);
}

function suspectTip(row) {
  const s = D.suspects[suspectAt.get(row)];
  return [D.kind === 'images' ? thumb('support', s.place, 64) : null,
    el('div', {}, el('div', { class: 'says' }, name(`${clip(D.classes[s.given], 30)} → ${clip(D.classes[s.suggested], 30)}?`)), el('div', { class: 'id' }, name(clip(rowName(s.id, s.row), 48))))].filter(Boolean);
}

function mapTable(form) {
  const groups = new Map();
  P.predicted.forEach((p, r) => { const g = groups.get(p) ?? [0, 0, 0]; g[0] += 1; g[1] += form.x[r]; g[2] += form.y[r]; groups.set(p, g); });
  const rows = [...groups].sort((a, b) => a[0] - b[0]).map(([p, [n, x, y]]) => el('tr', {}, el('th', { scope: 'row' }, name(clip(D.classes[p], 60))), el('td', { text: whole(n) }), el('td', { text: brief(x / n) }), el('td', { text: brief(y / n) })));
  $('#map-table').replaceChildren(el('table', {}, el('caption', { class: 'quiet', text: 'Centers of the predicted classes on the map' }),
    el('thead', {}, el('tr', {}, ...['predicted', 'rows', 'x', 'y'].map((t) => el('th', { scope: 'col', text: t })))), el('tbody', {}, ...rows)));
}
