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

// The threshold: a slider and a drag on the curve move the same marker.
function startThreshold() {
  const slider = $('#threshold');
  const curve = D.curve;
  if (!slider || !curve || !curve.threshold.length) return;
  const chart = $('#risk-coverage svg');
  const [x0, x1, y0, y1, left, right, bottom, top] = chart.dataset.frame.split(' ').map(Number);
  const sx = (v) => left + (right - left) * (v - x0) / (x1 - x0);
  const sy = (v) => bottom + (top - bottom) * (Math.max(v, y0) - y0) / (y1 - y0);
  slider.max = curve.threshold.length - 1;
  const nearest = (values, value) => values.reduce((best, v, i) => (Math.abs(v - value) < Math.abs(values[best] - value) ? i : best), 0);
  const home = curve.chosen === null ? curve.threshold.length - 1 : nearest(curve.threshold, curve.chosen);

  function show(i) {
    $('#threshold-value').textContent = `confidence ≥ ${curve.threshold[i].toFixed(3)}`;
    slider.setAttribute('aria-valuetext', `confidence at least ${curve.threshold[i].toFixed(3)}, coverage ${percent(curve.coverage[i])}`);
    $('.dot.mover', chart).setAttribute('cx', sx(curve.coverage[i]));
    $('.dot.mover', chart).setAttribute('cy', sy(curve.accuracy[i]));
    for (const end of ['x1', 'x2']) $('.whisker.mover', chart).setAttribute(end, sx(curve.coverage[i]));
    const away = curve.rejected[i].reduce((sum, n) => sum + n, 0);
    const rows = [['coverage', percent(curve.coverage[i])], ['accuracy', percent(curve.accuracy[i])], ['accepted', whole(D.total - away)], ['lower bound', percent(curve.lower[i])]];
    $('#threshold-away').replaceChildren(el('span', { class: 'quiet', text: 'turned away ' }, el('b', { text: whole(away) })),
      ...VERDICTS.map((verdict, v) => el('span', { class: 'quiet', title: verdict }, mark(v), ` ${verdict} `, el('b', { text: whole(curve.rejected[i][v]) }))));
    $('#threshold-facts').replaceChildren(...rows.map(([key, value]) => el('div', {}, el('dt', { text: key }), el('dd', { text: value }))));
  }
  slider.oninput = () => show(+slider.value);
  $('#reset-threshold').onclick = () => { slider.value = home; show(home); };
  $('#show-accepted').onclick = () => { update({ conf: `${curve.threshold[+slider.value] - 1e-4}~1` }); goTo('cases'); };
  $('#show-rejected').onclick = () => { update({ conf: `0~${curve.threshold[+slider.value] - 1e-4}` }); goTo('cases'); };
  const drag = (event) => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    slider.value = nearest(curve.coverage, x0 + (x1 - x0) * (x - left) / (right - left));
    show(+slider.value);
  };
  chart.addEventListener('pointerdown', (event) => { chart.setPointerCapture(event.pointerId); drag(event); });
  chart.addEventListener('pointermove', (event) => { if (chart.hasPointerCapture(event.pointerId)) drag(event); });
  slider.value = home;
  show(home);
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

function scatter(canvas, { x, y, verdict, behind, labels, open, chosen }) {
  const all = { x: behind ? [...x, ...behind.x] : x, y: behind ? [...y, ...behind.y] : y };
  const edge = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  const [xl, xh] = edge(all.x);
  const [yl, yh] = edge(all.y);
  const pad = labels ? 30 : 18;
  const px = (v) => pad + (canvas.clientWidth - 2 * pad) * (v - xl) / (xh - xl || 1);
  const py = (v) => canvas.clientHeight - pad - (canvas.clientHeight - 2 * pad) * (v - yl) / (yh - yl || 1);
  function draw() {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    const style = getComputedStyle(root);
    const color = (key) => style.getPropertyValue(`--${key}`).trim();
    pen.fillStyle = color('strong');
    if (behind) behind.x.forEach((v, i) => { pen.globalAlpha = 0.55; pen.fillRect(px(v) - 1, py(behind.y[i]) - 1, 2.4, 2.4); });
    pen.globalAlpha = 0.8;
    x.forEach((v, i) => {
      pen.fillStyle = pen.strokeStyle = color(VERDICTS[verdict(i)]);
      shape(pen, verdict(i), px(v), py(y[i]), 3);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = color('quiet');
    pen.font = '12px ' + style.getPropertyValue('--sans');
    for (const [word, cx, cy, align] of labels ?? []) { pen.textAlign = align; pen.fillText(word, cx * canvas.clientWidth, cy * canvas.clientHeight); }
    const at = chosen();
    if (at !== undefined && at >= 0) { pen.strokeStyle = color('ink'); pen.lineWidth = 2.5; pen.beginPath(); pen.arc(px(x[at]), py(y[at]), 8, 0, 7); pen.stroke(); }
  }
  canvas.addEventListener('click', (event) => {
    const box = canvas.getBoundingClientRect();
    let best = -1;
    let reach = 14 ** 2;
    x.forEach((v, i) => {
      const far = (px(v) - event.clientX + box.left) ** 2 + (py(y[i]) - event.clientY + box.top) ** 2;
      if (far < reach) { reach = far; best = i; }
    });
    if (best >= 0) open(best);
  });
  new ResizeObserver(draw).observe(canvas);
  return draw;
}

const redraws = [];
function startMaps() {
  const c = D.cases;
  const map = $('#map-figure canvas');
  if (map && c.x && c.x.length) {
    redraws.push(scatter(map, { x: c.x, y: c.y, verdict: (i) => c.verdict[i], behind: D.map, open: openCase, chosen: () => caseAt.get(+state.case) * (state.case === '' ? NaN : 1) }));
    const groups = new Map();
    c.predicted.forEach((p, i) => { const g = groups.get(p) ?? [0, 0, 0]; g[0] += 1; g[1] += c.x[i]; g[2] += c.y[i]; groups.set(p, g); });
    const rows = [...groups].sort((a, b) => a[0] - b[0]).map(([p, [n, x, y]]) => el('tr', {}, el('th', { scope: 'row' }, name(clip(D.classes[p], 60))), el('td', { text: whole(n) }), el('td', { text: brief(x / n) }), el('td', { text: brief(y / n) })));
    $('#map-table').replaceChildren(el('table', {}, el('caption', { class: 'quiet', text: 'Centers of the predicted classes on the map' }),
      el('thead', {}, el('tr', {}, ...['predicted', 'cards', 'x', 'y'].map((t) => el('th', { scope: 'col', text: t })))), el('tbody', {}, ...rows)));
  }
  const fit = $('#fit-map canvas');
  if (fit && D.fit && D.fit.row.length) {
    const place = (i) => (D.fit.query ? caseAt.get(D.fit.row[i]) : undefined);
    // Few neighbors to the left, labels that vary above: the four diagnoses have their corners.
    const corners = [['isolated', 0.03, 0.97, 'left'], ['well fitted', 0.97, 0.97, 'right'], ['memorized', 0.03, 0.06, 'left'], ['ambiguous', 0.97, 0.06, 'right']];
    redraws.push(scatter(fit, { x: D.fit.x, y: D.fit.y, verdict: (i) => (place(i) === undefined ? 0 : c.verdict[place(i)]),
      labels: corners,
      open: (i) => {
        const n = D.fit.query ? -1 : D.suspects.findIndex((s) => s.row === D.fit.row[i]);
        if (place(i) !== undefined) openCase(place(i));
        else if (n >= 0) openSuspect(n);
        else if (!D.fit.query) update({ support: String(D.fit.row[i]), case: '', suspect: '' });
      },
      chosen: () => { const open = D.fit.query ? state.case : state.support || state.suspect; return open === '' ? -1 : D.fit.row.indexOf(+open); } }));
  }
  watchers.push((change) => { if ('case' in change || 'suspect' in change) for (const draw of redraws) draw(); });
  startExamples();
}

// Under the histogram of N_S: rows that stand for each bin.
function startExamples() {
  const figure = $('#density');
  if (!figure || !D.network?.query || D.kind !== 'images' || !D.network.examples.length) return;
  const strip = el('div', { class: 'examples', role: 'group', 'aria-label': 'Examples from each bin' });
  for (const rows of D.network.examples) {
    const known = rows.map((row) => caseAt.get(row)).filter((i) => i !== undefined).slice(0, 2);
    strip.append(el('div', {}, ...known.map((i) => el('button', { type: 'button', 'aria-label': clip(`Open ${D.cases.id[i]}`, 80), onclick: () => openCase(i) }, thumb('query', i, 24)))));
  }
  $('svg', figure).after(strip);
}
