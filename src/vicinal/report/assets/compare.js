// ---- compare: two maps of the same rows. A lasso on one marks its rows on both and lists them.

const data = JSON.parse(document.querySelector('#maps-data').textContent);
const root = document.documentElement;
const INKS = ['strong', 'better', 'worse', 'contested'];
const WORDS = ['same answer', 'fixed', 'broken', 'changed'];
// 0 the same answer, 1 fixed, 2 broken, 3 another one that is not right either
data.became = data.said.map(([was, is], i) => (was === is ? 0 : is === data.label[i] ? 1 : was === data.label[i] ? 2 : 3));
let marked = new Set();
const boards = ['a', 'b'].map((side) => board(document.querySelector(`#map-${side}`), data[side]));

function board(canvas, { x, y }) {
  const most = (values) => values.reduce((a, b) => Math.max(a, b), 1);
  const span = [most(x), most(y)];
  let path = null;
  const scale = () => Math.min((canvas.clientWidth - 24) / span[0], (canvas.clientHeight - 24) / span[1]);
  const px = (v) => canvas.clientWidth / 2 + (v - span[0] / 2) * scale();
  const py = (v) => canvas.clientHeight / 2 - (v - span[1] / 2) * scale();
  function draw() {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    const style = getComputedStyle(root);
    INKS.forEach((ink, kind) => { // what changed lies on top
      pen.fillStyle = style.getPropertyValue(`--${ink}`).trim();
      const size = kind ? 5 : 3;
      data.became.forEach((is, i) => { if (is === kind) { pen.globalAlpha = marked.size && !marked.has(i) ? 0.2 : 0.9; pen.fillRect(px(x[i]) - size / 2, py(y[i]) - size / 2, size, size); } });
    });
    pen.globalAlpha = 1;
    pen.strokeStyle = style.getPropertyValue('--ink').trim();
    if (path) { pen.beginPath(); path.forEach(([u, v], i) => (i ? pen.lineTo(u, v) : pen.moveTo(u, v))); pen.closePath(); pen.stroke(); }
  }
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const inside = (u, v) => path.reduce((within, [xi, yi], i) => {
    const [xj, yj] = path[(i || path.length) - 1];
    return (yi > v) !== (yj > v) && u < (xj - xi) * (v - yi) / (yj - yi) + xi ? !within : within;
  }, false);
  canvas.addEventListener('pointerdown', (event) => { canvas.setPointerCapture(event.pointerId); path = [at(event)]; });
  canvas.addEventListener('pointermove', (event) => { if (path) { path.push(at(event)); draw(); } });
  canvas.addEventListener('pointerup', () => {
    marked = new Set(path && path.length > 3 ? x.map((_, i) => i).filter((i) => inside(px(x[i]), py(y[i]))) : []);
    path = null;
    show();
  });
  new ResizeObserver(draw).observe(canvas);
  return draw;
}

function show() {
  for (const draw of boards) draw();
  const rows = [...marked].sort((i, j) => (data.became[j] > 0) - (data.became[i] > 0) || i - j);
  document.querySelector('#linked-count').textContent = marked.size ? `${rows.length} rows chosen, ${rows.filter((i) => data.became[i]).length} of them with another answer.` : '';
  document.querySelector('#linked').replaceChildren(...rows.slice(0, 200).map((i) => {
    const line = document.createElement('tr');
    for (const text of [data.id[i], ...data.said[i], WORDS[data.became[i]]]) { const cell = document.createElement('td'); const name = document.createElement('bdi'); name.textContent = text; cell.append(name); line.append(cell); }
    return line;
  }));
}
root.dataset.ready = 'true';
