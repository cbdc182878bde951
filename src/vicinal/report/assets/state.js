// ---- state: what is filtered, sorted and open. It lives in the URL's hash, so a case can be linked.

const EMPTY = { verdict: '', class: '', errors: '', q: '', sort: 'doubt', conf: '', cred: '', near: '', crowd: '', pair: '', rows: '', case: '', suspect: '', support: '', view: '', at: '', color: '', map: '', behind: '', names: '', target: '' };
const FILTERS = ['verdict', 'class', 'errors', 'q', 'conf', 'cred', 'near', 'crowd', 'pair', 'rows'];
const state = { ...EMPTY };
const watchers = [];
const redraws = []; // what has colors of its own and is drawn again in the other theme
const RANGES = { conf: ['confidence', 'confidence'], cred: ['credibility', 'credibility'], near: ['near', 'distance percentile'], crowd: ['crowding', 'crowding percentile'] };

let P = null; // every query row: verdict, prediction, label, confidence, places
let caseAt = new Map(); // query row -> position among the cards
let suspectAt = new Map(); // support row -> position among the suspects
const chosen = { query: new Set(), support: new Set() }; // rows inside the lasso, named by state.rows

// A label is a class, -1 where there is none, -2 where it is a class that the support lacks.
const sure = (r) => P.confidence[r] / 10000;
const hasLabel = (r) => P.label[r] !== -1;
const isWrong = (r) => hasLabel(r) && P.label[r] !== P.predicted[r];
const labelName = (r) => (P.label[r] >= 0 ? D.classes[P.label[r]] : P.label[r] === -2 ? P.others[r] ?? 'a class the support lacks' : null);
const idOf = (row) => (P.id ? P.id[row] : String(row));

function readHash() {
  const hash = location.hash.slice(1);
  if (!hash.includes('=')) return;
  const given = new URLSearchParams(hash);
  for (const key of Object.keys(EMPTY)) state[key] = given.get(key) ?? EMPTY[key];
  const [query, support] = state.rows.split('~');
  chosen.query = new Set(unpackRows(query));
  chosen.support = new Set(unpackRows(support));
}

// Rows of a lasso as runs, "3-9.12": short where the selected rows are neighbors in the file.
const unpackRows = (text) => (text ?? '').split('.').filter(Boolean).flatMap((run) => { const [a, b = a] = run.split('-').map(Number); return Array.from({ length: b - a + 1 }, (_, i) => a + i); });
function packRows(rows) {
  const runs = [];
  for (const row of rows) { const last = runs.at(-1); if (last && row === last[1] + 1) last[1] = row; else runs.push([row, row]); }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join('.');
}

function chooseRows(query, support) {
  chosen.query = new Set(query);
  chosen.support = new Set(support);
  update({ rows: query.length || support.length ? `${packRows(query)}~${packRows([...support].sort((a, b) => a - b))}` : '' });
}

function writeHash() {
  const kept = Object.entries(state).filter(([key, value]) => value !== '' && value !== EMPTY[key] && value.length < 20000);
  const hash = new URLSearchParams(kept).toString();
  try {
    history.replaceState(null, '', hash ? `#${hash}` : location.pathname + location.search);
  } catch { /* inside a notebook's frame the address cannot change */ }
}

function update(change) {
  Object.assign(state, change);
  writeHash();
  for (const watcher of watchers) watcher(change);
}

const span = (range) => range.split('~').map(Number);
const filtered = () => FILTERS.some((key) => state[key] !== '');

// Bins are half open below, as the record's are; the lowest one takes its edge.
const within = (value, [low, high]) => !(value === null || value === undefined || value > high || (value <= low && low > 0) || value < low);

function rowMatches(r) {
  if (state.verdict && VERDICTS[P.verdict[r]] !== state.verdict) return false;
  if (state.class !== '' && P.label[r] !== +state.class && P.predicted[r] !== +state.class) return false;
  if (state.errors && !isWrong(r)) return false;
  if (state.rows && !chosen.query.has(r)) return false;
  if (state.conf && !within(sure(r), span(state.conf))) return false;
  if (state.q && !says(state.q, idOf(r), D.classes[P.predicted[r]], labelName(r), D.texts?.query[caseAt.get(r)])) return false;
  if (!state.cred && !state.near && !state.crowd && !state.pair) return true;
  const i = caseAt.get(r); // what follows is known of rows with a card
  return i !== undefined && cardMatches(i);
}

const says = (words, ...texts) => texts.some((text) => text && text.toLowerCase().includes(words.toLowerCase()));

function cardMatches(i) {
  const c = D.cases;
  for (const key of ['cred', 'near', 'crowd']) if (state[key] && !within(c[RANGES[key][0]]?.[i], span(state[key]))) return false;
  if (!state.pair) return true;
  const [a, b] = span(state.pair);
  const votes = new Set(c.neighbors[i].map((s) => D.support.label[s]));
  const mine = new Set([c.predicted[i], c.label[i]]);
  return (mine.has(a) || mine.has(b)) && (votes.has(a) || mine.has(a)) && (votes.has(b) || mine.has(b));
}

const ORDERS = {
  doubt: (i) => D.cases.confidence[i],
  sure: (i) => -D.cases.confidence[i],
  far: (i) => -D.cases.near[i],
  credibility: (i) => D.cases.credibility[i] ?? 2,
  row: (i) => D.cases.row[i],
};

let shown = []; // positions of the cards that match, in order
let matched = 0; // rows that match, card or not
function arrange() {
  const by = ORDERS[state.sort] ?? ORDERS.doubt;
  const rows = [];
  for (let r = 0; r < P.verdict.length; r += 1) if (rowMatches(r)) rows.push(r);
  matched = rows.length;
  shown = rows.map((r) => caseAt.get(r)).filter((i) => i !== undefined);
  shown.sort((a, b) => by(a) - by(b) || a - b);
  return rows;
}

function openCase(i) {
  update({ case: String(D.cases.row[i]), suspect: '', support: '' });
}

function pick(text) {
  const [key, value] = text.split(/=(.*)/s);
  if (key === 'case') { update({ case: value, suspect: '', support: '' }); return; }
  if (key === 'section') { goTo(value); update({ at: value }); return; }
  update({ [key]: state[key] === value ? '' : value });
  goTo('cases');
}

function goTo(id) {
  document.getElementById(id)?.scrollIntoView();
}
