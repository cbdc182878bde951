// ---- labels: decide about each suspect, one by one or many at once, and take the decisions along.

const SUSPECT_PAGE = 12;
let suspectLimit = SUSPECT_PAGE;
let decisions = {}; // support row -> {decision, label}; label is a class code
let undone = []; // what each step changed, to take it back
const marked = new Set(); // suspects chosen for a bulk decision
const memory = () => `vicinal:${D.name}:${D.total}:${D.suspects.length}:${D.suspects[0]?.row ?? ''}`;

const decisionOf = (s) => decisions[s.row]?.decision ?? '';
const labelOf = (s) => (decisionOf(s) === 'relabel' ? decisions[s.row].label : s.given);

function decideAll(places, kind, label) {
  undone.push(places.map((n) => [D.suspects[n].row, decisions[D.suspects[n].row]]));
  for (const n of places) {
    const s = D.suspects[n];
    const to = kind === 'relabel' ? label ?? s.suggested : s.given;
    if (kind === '') delete decisions[s.row];
    else decisions[s.row] = kind === 'relabel' && to === s.given ? { decision: 'keep', label: s.given } : { decision: kind, label: to };
  }
  marked.clear();
  remember(memory(), decisions);
  drawSuspects();
}

function decide(n, kind, label) {
  const s = D.suspects[n];
  const same = decisionOf(s) === kind && (kind !== 'relabel' || labelOf(s) === (label ?? s.suggested));
  decideAll([n], same ? '' : kind, label);
  const order = reviewed();
  const next = order[order.indexOf(n) + 1];
  if (!same && next !== undefined) openSuspect(next);
  else drawPanel();
}

function undo() {
  const step = undone.pop();
  if (!step) return;
  for (const [row, was] of step) { if (was) decisions[row] = was; else delete decisions[row]; }
  remember(memory(), decisions);
  drawSuspects();
  if (step.length === 1) openSuspect(suspectAt.get(step[0][0]));
  drawPanel();
}

// Suspects in the order they are shown: as suspected, or pair by pair; a lasso and the search filter them.
function reviewed() {
  const all = D.suspects.map((_, n) => n).filter((n) => {
    const s = D.suspects[n];
    if (state.rows && chosen.support.size && !chosen.support.has(s.row)) return false;
    if (state.class !== '' && s.given !== +state.class && s.suggested !== +state.class) return false;
    return !state.q || suspectSays(state.q, s);
  });
  if ($('#review-form')?.value !== 'pairs') return all;
  return pairGroups(all).flatMap(([, places]) => places);
}

function pairGroups(places) {
  const groups = new Map();
  for (const n of places) {
    const { given, suggested } = D.suspects[n];
    const key = `${given}~${suggested}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(n);
  }
  return [...groups].sort((a, b) => b[1].length - a[1].length);
}

function openSuspect(n) {
  const at = reviewed().indexOf(n);
  if (at >= suspectLimit) { suspectLimit = at + SUSPECT_PAGE; drawSuspects(); }
  update({ suspect: String(D.suspects[n].row), case: '', support: '' });
}

const saidOf = (s) => { const kind = decisionOf(s); return kind === 'relabel' && labelOf(s) !== s.suggested ? `→ ${middle(D.classes[labelOf(s)], 24)}` : kind || '–'; };

function suspectRow(n) {
  const s = D.suspects[n];
  return el('tr', { tabindex: '0', 'data-suspect': s.row, 'aria-selected': String(state.suspect === String(s.row)), onclick: () => openSuspect(n),
    onkeydown: (event) => { if (event.key === 'Enter') openSuspect(n); } },
  el('td', {}, el('span', { class: 'row-name' }, D.kind === 'images' ? thumb('support', s.place, 32) : null, name(rowName(s.id, s.row), 60))),
  el('td', {}, el('span', { class: 'names' }, name(D.classes[s.given], 28), el('span', { class: 'arrow', text: '→' }), name(D.classes[s.suggested], 28))),
  el('td', { text: s.score === null ? '–' : decimal(s.score, 3) }), el('td', { text: decimal(s.p_given, 3) }), el('td', { text: decimal(s.p_suggested, 3) }), s.depth === null ? null : el('td', { text: percent(s.depth, 0) }),
  el('td', { text: whole(s.affected) }), el('td', { class: decisionOf(s) ? null : 'quiet' }, name(saidOf(s))));
}

// Rows of the support that have the label and are no suspects: what the class looks like.
function examplesOf(code, most) {
  const found = [];
  for (let s = 0; s < D.support.row.length && found.length < most; s += 1) {
    if (D.support.label[s] === code && !suspectAt.has(D.support.row[s]) && (!D.tiles || D.tiles.support[s] >= 0)) found.push(s);
  }
  return found;
}

function exampleStrip(code, most = 6, pixels = 36) {
  const rows = examplesOf(code, most);
  const items = D.kind === 'images' ? rows.map((s) => thumb('support', s, pixels))
    : D.kind === 'texts' ? rows.slice(0, 2).map((s) => el('span', { class: 'sample', text: clip(D.texts.support[s] ?? '', 90) }))
      : rows.slice(0, 3).map((s) => name(rowName(D.support.id[s], D.support.row[s]), 24));
  return el('div', { class: 'class-examples' }, el('span', { class: 'quiet' }, name(D.classes[code], 40)), el('span', { class: 'items' }, ...items));
}

function tile(n) {
  const s = D.suspects[n];
  return el('button', { type: 'button', class: 'suspect-tile', 'data-tile-of': s.row, 'data-decided': decisionOf(s) || null, 'aria-pressed': String(marked.has(n)), 'aria-label': clip(`Choose ${s.id}: ${D.classes[s.given]} or ${D.classes[s.suggested]}, ${saidOf(s)}`, 160),
    onclick: (event) => { if (marked.has(n)) marked.delete(n); else marked.add(n); event.currentTarget.setAttribute('aria-pressed', String(marked.has(n))); drawBulk(); },
    ondblclick: () => openSuspect(n) },
  D.kind === 'images' ? thumb('support', s.place, 56) : el('span', { class: 'sample', text: clip(D.kind === 'texts' ? D.texts.support[s.place] ?? '' : rowName(s.id, s.row), 60) }),
  el('span', { class: 'said' }, name(decisionOf(s) ? saidOf(s) : decimal(s.p_given))));
}

function pairGroup([key, places]) {
  const [given, suggested] = span(key);
  const open = () => places.filter((n) => !decisionOf(D.suspects[n]));
  const act = (text, kind) => el('button', { type: 'button', onclick: () => decideAll(open(), kind) }, name(text));
  return el('section', { class: 'pair-group', 'data-pair': key },
    el('h3', {}, name(D.classes[given], 40), ' → ', name(D.classes[suggested], 40), el('span', { class: 'quiet', text: ` ${whole(places.length)}, ${whole(open().length)} open` })),
    el('div', { class: 'both-classes' }, exampleStrip(given), exampleStrip(suggested)),
    el('div', { class: D.kind === 'texts' ? 'suspect-tiles texts' : 'suspect-tiles' }, ...places.map(tile)),
    el('div', { class: 'row' }, act(`Relabel the open ones: ${middle(D.classes[suggested], 24)}`, 'relabel'), act('Keep the open ones', 'keep')));
}

function drawBulk() {
  const bar = $('#bulk');
  bar.hidden = !marked.size;
  if (!marked.size) return;
  const places = [...marked];
  const to = el('select', { 'aria-label': 'New class' }, el('option', { value: '', text: 'the suggested class' }), ...D.classes.map((label, c) => el('option', { value: c, text: clip(label, 40) })));
  bar.replaceChildren(el('strong', { text: `${whole(places.length)} chosen` }),
    el('button', { type: 'button', id: 'bulk-relabel', text: 'Relabel as', onclick: () => decideAll(places, 'relabel', to.value === '' ? undefined : +to.value) }), to,
    ...['keep', 'skip'].map((kind) => el('button', { type: 'button', text: kind, onclick: () => decideAll(places, kind) })),
    el('button', { type: 'button', text: 'Choose none', onclick: () => { marked.clear(); drawSuspects(); } }));
}

function drawSuspects() {
  const body = $('#suspects');
  if (!body) return;
  const places = reviewed();
  const pairs = $('#review-form').value === 'pairs';
  $('#review-table').hidden = pairs;
  $('#review-pairs').hidden = !pairs;
  if (pairs) $('#review-pairs').replaceChildren(...pairGroups(places).slice(0, 40).map(pairGroup));
  else body.replaceChildren(...places.slice(0, suspectLimit).map(suspectRow));
  $('#more-suspects').hidden = pairs || places.length <= suspectLimit;
  const done = D.suspects.filter((s) => decisionOf(s)).length;
  $('#review-count').textContent = `${whole(done)} of ${whole(D.suspects.length)} decided`;
  $('#review-progress').value = done / Math.max(D.suspects.length, 1);
  $('#undo').disabled = !undone.length;
  drawBulk();
}

// A spreadsheet runs a cell that starts with = + - @; an apostrophe stops it. Numbers stay numbers.
function cell(value) {
  const plain = String(value ?? '');
  const safe = typeof value === 'string' && /^[ \0]*[=+\-@\t\r\n＝＋－＠]/.test(plain) && !/^[+-]?\d+(\.\d+)?$/.test(plain) ? `'${plain}` : plain;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const patch = () => D.suspects.map((s) => ({ id: s.id, row: s.row, given: D.classes[s.given], suggested: D.classes[s.suggested], p_given: s.p_given, p_suggested: s.p_suggested, affected: s.affected,
  decision: decisionOf(s), label: D.classes[labelOf(s)] }));

const table = (rows) => { const columns = Object.keys(rows[0]); return [columns, ...rows.map((row) => columns.map((c) => cell(row[c])))].map((line) => line.join(',')).join('\n') + '\n'; };
const decided = () => patch().filter((row) => row.decision && row.decision !== 'skip');

const EXPORTS = {
  csv: () => ['decisions.csv', 'text/csv', table(patch())],
  json: () => ['decisions.json', 'application/json', JSON.stringify({ audit: D.name, suspects: patch() }, null, 1)],
  // What Label Studio imports as tasks: the suggestion as a prediction, the decision as an annotation.
  labelstudio: () => ['label-studio.json', 'application/json', JSON.stringify(patch().map((row, n) => {
    const choice = (label) => [{ from_name: 'label', to_name: 'item', type: 'choices', value: { choices: [label] } }];
    const text = D.texts?.support[D.suspects[n].place];
    return { data: { id: row.id, row: row.row, given: row.given, ...(text ? { text } : { image: row.id }) }, predictions: [{ model_version: 'vicinal', score: row.p_suggested, result: choice(row.suggested) }],
      ...(row.decision && row.decision !== 'skip' ? { annotations: [{ result: choice(row.label) }] } : {}) };
  }), null, 1)],
  // The labels.json of FiftyOneImageClassificationDataset: id to label, in words.
  fiftyone: () => ['labels.json', 'application/json', JSON.stringify({ labels: Object.fromEntries(decided().map((row) => [row.id, row.label])) }, null, 1)],
  // The columns of cleanlab's get_label_issues, with what was decided.
  cleanlab: () => ['cleanlab.csv', 'text/csv', table(patch().map((row) => ({ index: row.row, is_label_issue: row.decision === 'keep' ? 'False' : 'True', label_quality: row.p_given, given_label: row.given, predicted_label: row.suggested, decided_label: row.decision && row.decision !== 'skip' ? row.label : '' })))],
};

function startLabels() {
  if (!$('#suspects')) return;
  decisions = remember(memory()) ?? {};
  $('#export-csv').onclick = () => download(...EXPORTS.csv());
  $('#export-as').onchange = (event) => { if (event.target.value) download(...EXPORTS[event.target.value]()); event.target.value = ''; };
  $('#undo').onclick = undo;
  $('#review-form').onchange = () => { marked.clear(); suspectLimit = SUSPECT_PAGE; drawSuspects(); };
  $('#more-suspects').onclick = () => { suspectLimit += SUSPECT_PAGE; drawSuspects(); };
  watchers.push((change) => {
    if (FILTERS.some((key) => key in change)) drawSuspects();
    for (const row of $$('#suspects tr')) row.setAttribute('aria-selected', String(row.dataset.suspect === state.suspect));
  });
  drawSuspects();
}
