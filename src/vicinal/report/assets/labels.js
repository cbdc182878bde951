// ---- labels: keep, relabel or skip each suspect, and take the decisions along as a file.

const SUSPECT_PAGE = 12;
let suspectLimit = SUSPECT_PAGE;
let decisions = {};
const memory = () => `vicinal:${D.name}:${D.total}:${D.suspects.length}:${D.suspects[0]?.row ?? ''}`;

function decide(n, kind) {
  const { row } = D.suspects[n];
  if (decisions[row] === kind) delete decisions[row];
  else decisions[row] = kind;
  remember(memory(), decisions);
  const next = D.suspects[n + 1];
  drawSuspects();
  if (decisions[row] && next) openSuspect(n + 1);
  else drawPanel();
}

function openSuspect(n) {
  if (n >= suspectLimit) { suspectLimit = n + SUSPECT_PAGE; drawSuspects(); }
  update({ suspect: String(D.suspects[n].row), case: '', support: '' });
}

function suspectRow(s, n) {
  const other = (c) => name(clip(D.classes[c], 40));
  return el('tr', { tabindex: '0', 'data-suspect': s.row, 'aria-selected': String(state.suspect === String(s.row)), onclick: () => openSuspect(n),
    onkeydown: (event) => { if (event.key === 'Enter') openSuspect(n); } },
  el('td', {}, el('span', { class: 'row-name' }, D.kind === 'images' ? thumb('support', s.place, 32) : null, name(clip(rowName(s.id, s.row), 60)))),
  el('td', {}, other(s.given), el('span', { class: 'arrow', text: '→' }), other(s.suggested)),
  el('td', { text: decimal(s.p_given, 3) }), el('td', { text: decimal(s.p_suggested, 3) }), el('td', { text: percent(s.depth, 0) }),
  el('td', { text: whole(s.affected) }), el('td', { class: decisions[s.row] ? null : 'quiet', text: decisions[s.row] ?? '–' }));
}

function drawSuspects() {
  const body = $('#suspects');
  if (!body) return;
  body.replaceChildren(...D.suspects.slice(0, suspectLimit).map(suspectRow));
  $('#more-suspects').hidden = D.suspects.length <= suspectLimit;
  const done = Object.keys(decisions).length;
  $('#review-count').textContent = `${whole(done)} of ${whole(D.suspects.length)} decided`;
}

// A spreadsheet runs a cell that starts with = + - @; an apostrophe stops it. Numbers stay numbers.
function cell(value) {
  const plain = String(value ?? '');
  const safe = typeof value === 'string' && /^[ \0]*[=+\-@\t\r\n＝＋－＠]/.test(plain) && !/^[+-]?\d+(\.\d+)?$/.test(plain) ? `'${plain}` : plain;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const patch = () => D.suspects.map((s) => {
  const decision = decisions[s.row] ?? '';
  return { id: s.id, row: s.row, given: D.classes[s.given], suggested: D.classes[s.suggested], p_given: s.p_given, p_suggested: s.p_suggested, affected: s.affected,
    decision, label: decision === 'relabel' ? D.classes[s.suggested] : D.classes[s.given] };
});

function startLabels() {
  if (!$('#suspects')) return;
  decisions = remember(memory()) ?? {};
  $('#export-csv').onclick = () => {
    const rows = patch();
    const columns = Object.keys(rows[0]);
    download('suspects-reviewed.csv', 'text/csv', [columns, ...rows.map((row) => columns.map((c) => cell(row[c])))].map((line) => line.join(',')).join('\n') + '\n');
  };
  $('#export-json').onclick = () => download('suspects-reviewed.json', 'application/json', JSON.stringify({ audit: D.name, suspects: patch() }, null, 1));
  $('#more-suspects').onclick = () => { suspectLimit += SUSPECT_PAGE; drawSuspects(); };
  watchers.push(() => { for (const row of $$('#suspects tr')) row.setAttribute('aria-selected', String(row.dataset.suspect === state.suspect)); });
  drawSuspects();
}
