// ---- state: what is filtered, sorted and open. It lives in the URL's hash, so a case can be linked.

const EMPTY = { verdict: '', class: '', errors: '', q: '', sort: 'doubt', conf: '', cred: '', near: '', crowd: '', pair: '', case: '', suspect: '', support: '', view: '', at: '' };
const state = { ...EMPTY };
const watchers = [];
const RANGES = { conf: ['confidence', 'confidence'], cred: ['credibility', 'credibility'], near: ['near', 'distance percentile'], crowd: ['crowding', 'N_S percentile'] };

function readHash() {
  const hash = location.hash.slice(1);
  if (!hash.includes('=')) return;
  const given = new URLSearchParams(hash);
  for (const key of Object.keys(EMPTY)) state[key] = given.get(key) ?? EMPTY[key];
}

function writeHash() {
  const kept = Object.entries(state).filter(([key, value]) => value !== '' && value !== EMPTY[key]);
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

function matches(i) {
  const c = D.cases;
  if (state.verdict && VERDICTS[c.verdict[i]] !== state.verdict) return false;
  if (state.class !== '' && c.label[i] !== +state.class && c.predicted[i] !== +state.class) return false;
  if (state.errors && (c.label[i] === null || c.label[i] === c.predicted[i])) return false;
  if (state.q && !c.id[i].toLowerCase().includes(state.q.toLowerCase())) return false;
  for (const key of Object.keys(RANGES)) {
    if (!state[key]) continue;
    const [low, high] = span(state[key]);
    const value = c[RANGES[key][0]]?.[i];
    // Bins are half open below, as the record's are; the lowest one takes its edge.
    if (value === null || value === undefined || value > high || (value <= low && low > 0) || value < low) return false;
  }
  if (state.pair) {
    const [a, b] = span(state.pair);
    const votes = new Set(c.neighbors[i].map((s) => D.support.label[s]));
    const mine = new Set([c.predicted[i], c.label[i]]);
    if (!(mine.has(a) || mine.has(b)) || !(votes.has(a) || mine.has(a)) || !(votes.has(b) || mine.has(b))) return false;
  }
  return true;
}

const ORDERS = {
  doubt: (i) => D.cases.confidence[i],
  sure: (i) => -D.cases.confidence[i],
  far: (i) => -D.cases.near[i],
  credibility: (i) => D.cases.credibility[i] ?? 2,
  row: (i) => D.cases.row[i],
};

let shown = []; // positions of the cards that match, in order
function arrange() {
  const by = ORDERS[state.sort] ?? ORDERS.doubt;
  shown = D.cases.row.map((_, i) => i).filter(matches).sort((a, b) => by(a) - by(b) || a - b);
}

let caseAt = new Map(); // query row -> position among the cards
function openCase(i) {
  update({ case: String(D.cases.row[i]), suspect: '', support: '' });
}

function pick(text) {
  const [key, value] = text.split(/=(.*)/s);
  if (key === 'case') { update({ case: value, suspect: '', support: '' }); return; }
  update({ [key]: state[key] === value ? '' : value });
  goTo('cases');
}

function goTo(id) {
  document.getElementById(id)?.scrollIntoView();
}
