// ---- base: building elements, printing numbers, reading the data.
// Names and texts come from users. They reach the page as text nodes or attribute values through
// el(); nothing here parses markup.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.documentElement;
root.classList.add('js');

function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'class') node.className = value;
    else if (key === 'text') node.textContent = value;
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? '' : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';
function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

let VERDICTS = []; // the four names, in the order of the record; set once by start
const mark = (verdict) =>
  svg('svg', { class: `mark v-${VERDICTS[verdict]}`, viewBox: '0 0 16 16', 'aria-hidden': 'true' },
    svg('use', { href: `#m-${VERDICTS[verdict]}` }));

// Names that are too long lose their middle: they often begin alike. Classes that end alike as well keep the place where one is told from the others, as name() of words.py does.
let apart = new Map();
function middle(text, n) {
  const all = [...text];
  const tail = Math.floor(0.4 * (n - 1));
  if (all.length <= n) return text;
  const at = apart.get(text);
  const cut = (from, to) => all.slice(from, to).join('');
  if (at === undefined || at < n - 1 - tail || at >= all.length - tail) return `${cut(0, n - 1 - tail).trimEnd()}…${cut(all.length - tail).trimStart()}`;
  const side = Math.floor((n - 2) / 3);
  const core = n - 2 - 2 * side;
  const start = Math.min(at - Math.floor(core / 2), all.length - side - core);
  return `${cut(0, side)}…${cut(start, start + core)}…${cut(all.length - side)}`;
}
// A line may end after a slash or an underscore: cat/00012.png stays whole below cat/.
const name = (text, n = Infinity) => el('bdi', { title: [...text].length > n ? clip(text, 300) : null }, ...middle(text, n).split(/(?<=[/_])/).flatMap((part, i) => (i ? [el('wbr'), part] : [part])));
const rowName = (id, row) => (id === String(row) ? `row ${id}` : id); // rows without ids are their numbers
const clip = (text, n) => (text.length > n ? text.slice(0, n - 1) + '…' : text);
const whole = (n) => (n === null || n === undefined ? '–' : n.toLocaleString('en-US'));
const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? '' : 's'}`;
const percent = (share, digits = 1) => (share === null || share === undefined ? '–' : `${(100 * share).toFixed(digits)} %`);
// An accuracy that was asked for, and a confidence to accept from: as words.py writes them.
const level = (share) => `${+(100 * share).toPrecision(4)} %`;
const threshold = (value) => value.toFixed(value < 0.995 || value >= 1 ? 3 : 1 - Math.floor(Math.log10(1 - value)));
const decimal = (value, digits = 2) => (value === null || value === undefined ? '–' : value.toFixed(digits));
const brief = (value) => (value === null || value === undefined ? '–' : typeof value === 'number' ? String(Number(value.toPrecision(3))) : value);

function meter(share, other) {
  const fill = el('i');
  fill.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return el('span', { class: other ? 'meter other' : 'meter', 'aria-hidden': 'true' }, fill);
}

// A canvas as sharp as the screen, empty; its pen works in the units of the page.
function penOf(canvas) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  return pen;
}
// The colors of the theme by name, each asked for once; a color itself is one.
function paletteOf() {
  const style = getComputedStyle(root);
  const known = new Map();
  return (key) => {
    if (key.startsWith('#')) return key;
    if (!known.has(key)) known.set(key, style.getPropertyValue(`--${key}`).trim());
    return known.get(key);
  };
}
// Canvases have the colors of the screen: they are drawn again in the other theme, and for paper in the light one.
function followTheme(draws) {
  const again = () => { for (const draw of draws) draw(); };
  let was;
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
  addEventListener('beforeprint', () => { was = root.dataset.theme; root.dataset.theme = 'light'; again(); });
  addEventListener('afterprint', () => { if (was) root.dataset.theme = was; else delete root.dataset.theme; again(); });
}
function trace(pen, path) {
  pen.beginPath();
  path.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
  pen.stroke();
}
const inside = (path, u, v) => path.reduce((within, [xi, yi], i) => {
  const [xj, yj] = path[(i || path.length) - 1];
  return (yi > v) !== (yj > v) && u < (xj - xi) * (v - yi) / (yj - yi) + xi ? !within : within;
}, false);
const most = (values) => values.reduce((a, b) => Math.max(a, b), 1);
const pointIn = (node, event) => { const box = node.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

const live = root.hasAttribute('data-live');
const token = root.getAttribute('data-token') || '';
const onServer = (path) => `${path}?token=${encodeURIComponent(token)}`;

async function readData() {
  if (live) {
    const answer = await fetch(onServer('data.json'), { credentials: 'same-origin' });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return answer.json();
  }
  const block = $('#data');
  const packed = atob(block.textContent.trim());
  block.remove();
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

function download(filename, kind, text) {
  const link = el('a', { href: URL.createObjectURL(new Blob([text], { type: kind })), download: filename });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function remember(key, value) {
  try {
    if (value === undefined) return JSON.parse(localStorage.getItem(key));
    localStorage.setItem(key, JSON.stringify(value));
  } catch { /* a page opened from disk or in a frame may have no storage: it still works */ }
  return null;
}
