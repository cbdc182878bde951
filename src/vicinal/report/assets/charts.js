// ---- charts: the drawings are in the page; here they learn to answer.

function startPicks() {
  document.addEventListener('click', (event) => {
    const target = event.target.closest('[data-pick]');
    if (target) pick(target.dataset.pick);
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    const target = event.target.closest?.('[data-pick]');
    if (target && target.tagName !== 'BUTTON') { event.preventDefault(); pick(target.dataset.pick); }
  });
  const chooser = $('#head-shown');
  if (chooser) chooser.onchange = () => { for (const figure of $$('#reliability .tab')) figure.classList.toggle('later', figure.id !== chooser.value); };
}

// Scatter on canvas: thousands of points, a shape for each verdict, the nearest one answers a click.
function shape(pen, verdict, x, y, r) {
  pen.beginPath();
  if (verdict === 0) pen.arc(x, y, r, 0, 7);
  else if (verdict === 1) { pen.moveTo(x, y - r * 1.4); pen.lineTo(x + r * 1.4, y); pen.lineTo(x, y + r * 1.4); pen.lineTo(x - r * 1.4, y); pen.closePath(); }
  else if (verdict === 2) { pen.moveTo(x, y - r * 1.4); pen.lineTo(x + r * 1.4, y + r); pen.lineTo(x - r * 1.4, y + r); pen.closePath(); }
  else pen.rect(x - r, y - r, 2 * r, 2 * r);
  if (verdict === 3) pen.stroke(); else pen.fill();
}

const ring = (pen, x, y) => { pen.beginPath(); pen.arc(x, y, 8, 0, 7); pen.stroke(); };

function scatter(canvas, { x, y, verdict, labels, across, up, open, chosen, dim }) {
  const edge = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  const [xl, xh] = edge(x);
  const [yl, yh] = edge(y);
  const [left, right, top, bottom] = [46, 16, 26, 40];
  const px = (v) => left + (canvas.clientWidth - left - right) * (v - xl) / (xh - xl || 1);
  const py = (v) => canvas.clientHeight - bottom - (canvas.clientHeight - top - bottom) * (v - yl) / (yh - yl || 1);
  const steps = (low, high) => { const size = [1, 2, 5, 10].map((m) => m * 10 ** Math.floor(Math.log10((high - low || 1) / 4))).find((v) => (high - low) / v <= 5) ?? 1; const found = []; for (let v = Math.ceil(low / size) * size; v <= high + 1e-9; v += size) found.push(v); return found; };
  function axes(pen, color) {
    const [w, h] = [canvas.clientWidth, canvas.clientHeight];
    pen.strokeStyle = color('hair');
    pen.fillStyle = color('quiet');
    pen.font = `11px ${color('sans')}`;
    pen.textAlign = 'right';
    for (const v of steps(yl, yh)) { pen.beginPath(); pen.moveTo(left, py(v)); pen.lineTo(w - right, py(v)); pen.stroke(); pen.fillText(brief(v), left - 6, py(v) + 4); }
    pen.textAlign = 'center';
    for (const v of steps(xl, xh)) pen.fillText(brief(v), px(v), h - bottom + 16);
    pen.fillText(across, (left + w - right) / 2, h - 8);
    pen.textAlign = 'left';
    pen.fillText(up, 6, 14);
  }
  function draw() {
    const pen = penOf(canvas);
    const color = paletteOf();
    axes(pen, color);
    x.forEach((v, i) => {
      pen.globalAlpha = dim(i) ? 0.12 : 0.8;
      pen.fillStyle = pen.strokeStyle = color(VERDICTS[verdict(i)]);
      shape(pen, verdict(i), px(v), py(y[i]), 3);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = color('quiet');
    pen.font = `12px ${color('sans')}`;
    for (const [word, cx, cy, align] of labels ?? []) { const at = [word, cx ? canvas.clientWidth - right - 4 : left + 6, cy ? top + 14 : canvas.clientHeight - bottom - 8]; pen.textAlign = align; pen.strokeStyle = color('sheet'); pen.lineWidth = 4; pen.lineJoin = 'round'; pen.strokeText(...at); pen.fillText(...at); }
    const at = chosen();
    if (at >= 0) { pen.strokeStyle = color('ink'); pen.lineWidth = 2.5; ring(pen, px(x[at]), py(y[at])); }
  }
  canvas.addEventListener('click', (event) => {
    const [u, v] = pointIn(canvas, event);
    let best = -1;
    let reach = 14 ** 2;
    x.forEach((across, i) => {
      const far = (px(across) - u) ** 2 + (py(y[i]) - v) ** 2;
      if (far < reach) { reach = far; best = i; }
    });
    if (best >= 0) open(best);
  });
  new ResizeObserver(draw).observe(canvas);
  return draw;
}

function startFitMap() {
  const c = D.cases;
  const fit = $('#fit-map canvas');
  if (fit && D.fit && D.fit.row.length) {
    const place = (i) => (D.fit.query ? caseAt.get(D.fit.row[i]) : undefined);
    // Few neighbors to the left, labels that vary above: the four diagnoses have their corners.
    const corners = [['isolated', 0, 0, 'left'], ['well fitted', 1, 0, 'right'], ['memorized', 0, 1, 'left'], ['ambiguous', 1, 1, 'right']];
    const draw = scatter(fit, { x: D.fit.x, y: D.fit.y, verdict: (i) => (place(i) === undefined ? 0 : c.verdict[place(i)]),
      labels: corners,
      across: 'crowding, percentile of N_S',
      up: 'variance of the labels around',
      open: (i) => {
        const n = D.fit.query ? -1 : D.suspects.findIndex((s) => s.row === D.fit.row[i]);
        if (place(i) !== undefined) openCase(place(i));
        else if (n >= 0) openSuspect(n);
        else if (!D.fit.query) update({ support: String(D.fit.row[i]), case: '', suspect: '' });
      },
      dim: (i) => filtered() && (D.fit.query ? !rowMatches(D.fit.row[i]) : state.rows !== '' && !chosen.support.has(D.fit.row[i])),
      chosen: () => { const open = D.fit.query ? state.case : state.support || state.suspect; return open === '' ? -1 : D.fit.row.indexOf(+open); } });
    redraws.push(draw);
    watchers.push((change) => { if ('case' in change || 'suspect' in change || 'support' in change || 'target' in change || FILTERS.some((key) => key in change)) draw(); });
  }
}

// Under the histogram of N_S: rows that stand for each bin.
function startExamples() {
  const figure = $('#density');
  if (!figure || !D.network?.query || D.kind !== 'images' || !D.network.examples.length) return;
  const strip = el('div', { class: 'examples', role: 'group', 'aria-label': 'Examples from each bin' });
  const bar = Math.min(640, figure.clientWidth) * 0.84 / D.network.examples.length;
  const wide = Math.max(1, Math.ceil(23 / bar)); // bins that share a column, so that it can be seen
  for (let bin = 0; bin < D.network.examples.length; bin += wide) {
    const known = D.network.examples.slice(bin, bin + wide).flat().map((row) => caseAt.get(row)).filter((i) => i !== undefined).slice(0, 2);
    strip.append(el('div', {}, ...known.map((i) => el('button', { type: 'button', 'aria-label': clip(`Open ${D.cases.id[i]}`, 80), onclick: () => openCase(i) }, thumb('query', i, Math.min(28, Math.floor(bar * wide - 3)))))));
  }
  $('svg', figure).after(strip);
}
