// ---- map: every query row as a point on a canvas. Zoom, pan, lasso; a selection filters the page.

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
  let names = [];

  const measure = () => {
    canvas.style.height = '';
    ({ clientWidth: width, clientHeight: height } = canvas);
    span = ['x', 'y'].map((axis) => Math.max(most(form[axis]), most(form[`support_${axis}`])));
    const room = Math.max(320, (width - 28) * span[1] / span[0] + 28); // a flat map needs no tall sheet
    if (height > room + 1) { canvas.style.height = `${Math.round(room)}px`; height = canvas.clientHeight; }
    scale = Math.min((width - 28) / span[0], (height - 28) / span[1]);
  };
  const px = (v) => (v - span[0] / 2) * scale * view.zoom + width / 2 + view.x;
  const py = (v) => height / 2 + view.y - (v - span[1] / 2) * scale * view.zoom;

  // Colors are settled once for every filter, coloring and theme; a frame only places pixels.
  const tint = { of: new Uint32Array(form.x.length), dim: new Uint8Array(form.x.length), behind: new Uint32Array(P.support.row.length) };
  let image = null;
  function prepare() {
    const color = paletteOf();
    const by = forms[state.color] ?? forms.verdict;
    const known = new Map();
    const inked = (key, share = 1) => {
      const name = `${key} ${share}`;
      if (!known.has(name)) known.set(name, pixelOf(color(key), color('sheet'), share));
      return known.get(name);
    };
    const dim = filtered();
    for (let r = 0; r < tint.of.length; r += 1) {
      tint.dim[r] = dim && !rowMatches(r) ? 1 : 0;
      tint.of[r] = tint.dim[r] ? inked(QUIET, 0.4) : inked(by.of(r));
    }
    for (let s = 0; s < tint.behind.length; s += 1) tint.behind[s] = inked(by.behind(s, P.support.row[s]), 0.6);
  }

  function draw() {
    waiting = 0;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (canvas.width !== w || canvas.height !== h || !image) { canvas.width = w; canvas.height = h; image = pen.createImageData(w, h); image.pixels = new Uint32Array(image.data.buffer); }
    const by = forms[state.color] ?? forms.verdict;
    const n = form.x.length;
    const k = scale * view.zoom * ratio;
    const [ox, oy] = [(width / 2 + view.x) * ratio - span[0] / 2 * k, (height / 2 + view.y) * ratio + span[1] / 2 * k];
    const { pixels } = image;
    pixels.fill(0);
    const put = (vx, vy, side, ink) => {
      const x = Math.round(vx * k + ox - side / 2);
      const y = Math.round(oy - vy * k - side / 2);
      if (x < 0 || y < 0 || x + side > w || y + side > h) return false;
      for (let row = y; row < y + side; row += 1) { const at = row * w + x; for (let c = at; c < at + side; c += 1) pixels[c] = ink; }
      return true;
    };
    const small = Math.round((view.zoom > 3 ? 3 : 2) * ratio);
    const size = Math.round((n > 20000 ? 3 : 4) * ratio);
    if (state.behind !== '0') for (let s = 0; s < tint.behind.length; s += 1) put(form.support_x[s], form.support_y[s], small, tint.behind[s]);
    for (let r = 0; r < n; r += 1) if (tint.dim[r]) put(form.x[r], form.y[r], Math.round(3 * ratio), tint.of[r]);
    const sight = [];
    const shapes = n <= 20000 && !moving && by === forms.verdict;
    for (let r = 0; r < n; r += 1) if (!tint.dim[r] && put(form.x[r], form.y[r], size, tint.of[r]) && shapes && sight.length <= 2500) sight.push(r);
    if (shapes && sight.length <= 2500) for (const r of sight) put(form.x[r], form.y[r], size, 0);
    pen.putImageData(image, 0, 0);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const color = paletteOf();
    if (shapes && sight.length <= 2500) {
      pen.globalAlpha = 0.85;
      for (const r of sight) { pen.fillStyle = pen.strokeStyle = color(by.of(r)); shape(pen, P.verdict[r], px(form.x[r]), py(form.y[r]), 3); }
      pen.globalAlpha = 1;
    }
    if (by === forms.suspect) { pen.fillStyle = color('contested'); suspects.forEach((is, s) => { if (is) shape(pen, 1, px(form.support_x[s]), py(form.support_y[s]), 4); }); }
    canvas.dataset.names = state.names === '0' ? 0 : drawNames(pen, names, px, py, width, height, color);
    pen.strokeStyle = color('ink');
    pen.lineWidth = 2.2;
    const s = state.suspect === '' ? -1 : P.support.row.indexOf(+state.suspect);
    if (state.case !== '' && +state.case < n) ring(pen, px(form.x[+state.case]), py(form.y[+state.case]));
    if (s >= 0) ring(pen, px(form.support_x[s]), py(form.support_y[s]));
    if (lasso) { pen.setLineDash([5, 4]); trace(pen, lasso); pen.setLineDash([]); }
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
    ['x', 'y'].forEach((axis, i) => { const reach = span[i] * scale * view.zoom / 2; view[axis] = Math.max(-reach, Math.min(reach, view[axis])); });
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
  const at = (event) => pointIn(canvas, event);
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
    const rows = [];
    for (let r = 0; r < form.x.length; r += 1) if (inside(path, px(form.x[r]), py(form.y[r]))) rows.push(r);
    const behind = P.support.row.filter((_, s) => inside(path, px(form.support_x[s]), py(form.support_y[s])));
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
  $('#map-names').onchange = (event) => update({ names: event.target.checked ? '' : '0' });
  $('#map-behind').onchange = (event) => update({ behind: event.target.checked ? '' : '0' });

  function settle() {
    form = P.maps[state.map === 'linear' && P.maps[1] ? 1 : 0];
    $('#map-kept').textContent = percent(form.kept, 0);
    $('#map-method').textContent = form.method;
    $('#map-some').hidden = form.kept >= 0.6 || form.kept < 0.2;
    $('#map-little').hidden = form.kept >= 0.2;
    if ($('#map-other')) $('#map-other').hidden = form !== P.maps[0];
    $('#map-color').value = forms[state.color] ? state.color : 'verdict';
    $('#map-behind').checked = state.behind !== '0';
    $('#map-names').checked = state.names !== '0';
    names = classPlaces(form);
    if ($('#map-form')) $('#map-form').value = state.map;
    measure();
    drawLegend(forms[state.color] ?? forms.verdict);
    prepare();
    redraw();
    mapTable(form);
  }
  $('#map-color').append(...Object.entries(forms).map(([key, { title }]) => el('option', { value: key, text: title })));
  $('#map-color').onchange = (event) => update({ color: event.target.value });
  if ($('#map-form')) $('#map-form').onchange = (event) => { home(); update({ map: event.target.value }); };
  watchers.push((change) => {
    if ('color' in change || 'map' in change || 'behind' in change) settle();
    else if ('target' in change || FILTERS.some((key) => key in change)) { prepare(); redraw(); } else redraw();
  });
  redraws.push(() => { drawLegend(forms[state.color] ?? forms.verdict); prepare(); draw(); }); // at once: paper does not wait for a frame
  new ResizeObserver(() => { measure(); redraw(); }).observe(canvas);
  settle();
}
