// ---- compare: two maps of the same rows. A lasso on one marks its rows on both and lists them.

const data = JSON.parse($('#maps-data').textContent);
const INKS = ['strong', 'better', 'worse', 'contested'];
const WORDS = ['same answer', 'fixed', 'broken', 'changed'];
// 0 the same answer, 1 fixed, 2 broken, 3 another one that is not right either
data.became = data.said.map(([was, is], i) => (was === is ? 0 : is === data.label[i] ? 1 : was === data.label[i] ? 2 : 3));
let marked = new Set();
const boards = ['a', 'b'].map((side) => board($(`#map-${side}`), data[side]));

function board(canvas, { x, y }) {
  const span = [most(x), most(y)];
  let path = null;
  const scale = () => Math.min((canvas.clientWidth - 24) / span[0], (canvas.clientHeight - 24) / span[1]);
  const px = (v) => canvas.clientWidth / 2 + (v - span[0] / 2) * scale();
  const py = (v) => canvas.clientHeight / 2 - (v - span[1] / 2) * scale();
  function draw() {
    const pen = penOf(canvas);
    const color = paletteOf();
    INKS.forEach((ink, kind) => { // what changed lies on top
      pen.fillStyle = color(ink);
      const size = kind ? 5 : 3;
      data.became.forEach((is, i) => { if (is === kind) { pen.globalAlpha = marked.size && !marked.has(i) ? 0.2 : 0.9; pen.fillRect(px(x[i]) - size / 2, py(y[i]) - size / 2, size, size); } });
    });
    pen.globalAlpha = 1;
    pen.strokeStyle = color('ink');
    if (path) trace(pen, path);
  }
  canvas.addEventListener('pointerdown', (event) => { canvas.setPointerCapture(event.pointerId); path = [pointIn(canvas, event)]; });
  canvas.addEventListener('pointermove', (event) => { if (path) { path.push(pointIn(canvas, event)); draw(); } });
  canvas.addEventListener('pointerup', () => {
    marked = new Set(path && path.length > 3 ? x.map((_, i) => i).filter((i) => inside(path, px(x[i]), py(y[i]))) : []);
    path = null;
    show();
  });
  new ResizeObserver(draw).observe(canvas);
  return draw;
}

function show() {
  for (const draw of boards) draw();
  const rows = [...marked].sort((i, j) => (data.became[j] > 0) - (data.became[i] > 0) || i - j);
  $('#linked-count').textContent = marked.size ? `${plural(rows.length, 'row')} chosen, ${whole(rows.filter((i) => data.became[i]).length)} of them with another answer${rows.length > 200 ? '; the first 200 are listed' : ''}.` : '';
  $('#linked').parentNode.hidden = !marked.size;
  $('#linked').replaceChildren(...rows.slice(0, 200).map((i) => el('tr', {}, ...[data.id[i], ...data.said[i], WORDS[data.became[i]]].map((text) => el('td', {}, name(text))))));
}
followTheme(boards);
root.dataset.ready = 'true';
