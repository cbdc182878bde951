// ---- opening: the tiles and actions at the top, the selection they set, the worst rows beside it.

function rowsWith(...verdicts) {
  const codes = new Set(verdicts.map((v) => VERDICTS.indexOf(v)));
  const rows = [];
  P.verdict.forEach((v, r) => { if (codes.has(v)) rows.push(r); });
  return rows;
}

// The record's own numbers stand in the page; they move only with the target.
function drawCounts() {
  const total = P.verdict.length;
  VERDICTS.forEach((verdict) => {
    const n = rowsWith(verdict).length;
    $(`.counts .v-${verdict} b`).textContent = whole(n);
    $(`.counts .v-${verdict} .quiet`).textContent = percent(n / Math.max(total, 1));
  });
  const rows = rowsWith('supported');
  const labeled = rows.filter(hasLabel);
  const wrong = labeled.filter(isWrong).length;
  const now = targetNow();
  const safe = now && now.value !== null && now.target >= 0.9;
  if (now) $('.t-accept .title').textContent = safe ? 'Safe to accept' : `Supported, ${level(now.target)} ${now.value === null ? 'not promised' : 'at least'}`;
  $('[data-tile=accept]').textContent = whole(rows.length);
  $('[data-of=accept]').textContent = `${percent(rows.length / Math.max(total, 1), 0)} of ${whole(total)} inputs${$('[data-sampled]') ? ' in the sample' : ''}`;
  if (labeled.length) $('[data-detail=accept]').textContent = `${whole(wrong)} of the ${whole(labeled.length)} with a label ${wrong === 1 ? 'is' : 'are'} wrong (${percent(wrong / labeled.length)}).`;
  let at = 0;
  VERDICTS.forEach((verdict) => {
    const share = 1000 * rowsWith(verdict).length / Math.max(total, 1);
    const bar = $(`.stack .stack-${verdict}`);
    bar.setAttribute('x', at.toFixed(2));
    bar.setAttribute('width', Math.max(share - 2, 0).toFixed(2));
    at += share;
  });
  if (now) drawMoved(now);
}

// What the actions say of another target; the sentences above them are the run's own and come back with its target.
let asMade = null;
function drawMoved(now) {
  const parts = { people: $('#do-people'), ship: $('#do-ship') };
  asMade ??= $$('.actions h3, .actions .effect, .actions .command').map((node) => [node, [...node.childNodes], node.hidden]);
  for (const [node, children, hidden] of asMade) { node.replaceChildren(...children); node.hidden = hidden; }
  const moved = now.target !== D.curve.target;
  const said = $('#moved');
  said.hidden = !moved;
  if (!moved) return;
  said.replaceChildren(`Target moved to ${level(now.target)}: verdicts, tiles and actions follow it. The sentences above are the run’s own, at ${level(D.curve.target)}. `, el('button', { type: 'button', text: `Back to ${level(D.curve.target)}`, onclick: () => update({ target: '' }) }));
  const away = rowsWith('contested', 'unfamiliar', 'isolated');
  const [mine, all] = [away.filter(isWrong).length, P.verdict.map((_, r) => r).filter(isWrong).length];
  const say = (part, title, effect) => { if (part) { $('h3', part).replaceChildren(name(title)); $('.effect', part).replaceChildren(name(effect)); } };
  say(parts.people, `Send ${plural(away.length, 'row')}${$('[data-sampled]') ? ' in the sample' : ''} to people`, `That is ${percent(away.length / Math.max(P.verdict.length, 1), 0)} of the inputs${all > 1 ? `, with ${whole(mine)} of the ${whole(all)} errors (${percent(mine / all)})` : all ? `, ${mine ? 'with' : 'without'} the one error` : ''}.`);
  if (now.value === null) { say(parts.ship, 'Choose another target', outOfReach(now)); if (parts.ship && $('.command', parts.ship)) $('.command', parts.ship).hidden = true; return; }
  const accepted = P.verdict.map((_, r) => r).filter((r) => sure(r) >= now.value - 5e-5);
  const kept = accepted.filter((r) => VERDICTS[P.verdict[r]] === 'supported').length;
  say(parts.ship, `Ship with confidence ≥ ${threshold(now.value)}${now.target >= 0.9 ? '' : `, if ${level(now.target)} will do`}`,
    `Accepts ${percent(now.coverage)} of ${ofWhat()}, at an accuracy of at least ${level(now.target)}. Of ${plural(accepted.length, 'row')} as sure, ${whole(kept)} are supported. The saved head keeps ${level(D.curve.target)}: run again with --target-accuracy ${now.target}.`);
  if (parts.ship && $('.command', parts.ship)) $('.command', parts.ship).hidden = true;
}

// The rows that a promise is counted on, as facts.py has them.
const ofWhat = () => (P.label.every((of) => of !== -1) ? 'inputs' : P.label.some((of) => of !== -1) ? 'inputs with a label' : 'the calibration rows');

// Where no threshold keeps a target: which one is kept.
function outOfReach(now) {
  const reach = D.curve.targets.filter((t) => t.value !== null).at(-1);
  return `No threshold keeps ${level(now.target)} here. ${reach ? `${level(reach.target)} is reachable: it accepts ${percent(reach.coverage)}.` : `Of all inputs ${percent(D.curve.accuracy.at(-1))} are right, at least ${percent(D.curve.lower.at(-1))} with the bound.`} Rows called supported have a confidence of at least ${threshold(now.level)}, taken at face value.`;
}

function rowsFile(filename, rows) {
  const columns = ['id', 'row', 'predicted', 'confidence', 'verdict', 'label'];
  const lines = rows.map((r) => [cell(idOf(r)), r, cell(D.classes[P.predicted[r]]), sure(r), VERDICTS[P.verdict[r]], cell(labelName(r) ?? '')]);
  download(filename, 'text/csv', [columns, ...lines].map((line) => line.join(',')).join('\n') + '\n');
}

const ACTIONS = {
  review: () => { if (D.suspects.length) openSuspect(0); goTo('labels'); },
  people: () => rowsFile('rows-for-people.csv', rowsWith('contested', 'unfamiliar', 'isolated')),
  ship: () => goTo('risk-coverage'),
};

// What is selected anywhere on the page, in one line that stays in sight.
function drawSelection(rows) {
  const bar = $('#selection');
  bar.hidden = !filtered();
  if (bar.hidden) return;
  const labeled = rows.filter(hasLabel);
  const right = labeled.filter((r) => !isWrong(r)).length;
  const counts = VERDICTS.map((_, v) => rows.filter((r) => P.verdict[r] === v).length);
  bar.replaceChildren(
    el('strong', { text: `${whole(rows.length)} of ${whole(P.verdict.length)} rows` }),
    ...counts.map((n, v) => (n ? el('span', { class: 'quiet' }, mark(v), ` ${whole(n)}`) : null)).filter(Boolean),
    labeled.length ? el('span', { class: 'quiet', text: `accuracy ${percent(right / labeled.length)}` }) : '',
    el('span', { class: 'grow' }),
    el('button', { type: 'button', text: 'Show', onclick: () => goTo('cases') }),
    el('button', { type: 'button', text: 'Export CSV', onclick: () => rowsFile('rows-selected.csv', rows) }),
    el('button', { type: 'button', text: 'Clear', onclick: () => clearFilters() }));
}

function clearFilters() {
  chosen.query.clear();
  chosen.support.clear();
  update(Object.fromEntries(FILTERS.map((key) => [key, ''])));
}

// A row in one line: its text where it has one, else its id.
const told = (side, i, id, row) => (D.texts ? clip(D.texts[side][i] ?? rowName(id, row), 90) : middle(rowName(id, row), 60));

// While nothing is open the panel shows what most needs a look.
function drawWorst() {
  const box = $('#worst');
  if (!box) return;
  const parts = [];
  if (D.suspects.length) {
    parts.push(el('h2', { text: 'Worst suspects' }), el('ul', { class: 'worst' }, ...D.suspects.slice(0, 6).map((s, n) => el('li', {}, el('button', { type: 'button', 'data-worst-suspect': s.row, onclick: () => openSuspect(n) },
      D.kind === 'images' ? thumb('support', s.place, 40) : null,
      el('span', {}, el('span', { class: 'says' }, name(D.classes[s.given], 30), ' → ', name(D.classes[s.suggested], 30), '?'), el('span', { class: 'id' }, name(told('support', s.place, s.id, s.row)))))))));
  }
  const c = D.cases;
  const contested = c.row.map((_, i) => i).filter((i) => VERDICTS[c.verdict[i]] === 'contested').sort((a, b) => c.confidence[a] - c.confidence[b]).slice(0, 6);
  if (contested.length) {
    parts.push(el('h2', { text: 'Most contested' }), el('ul', { class: 'worst' }, ...contested.map((i) => el('li', {}, el('button', { type: 'button', 'data-worst-case': c.row[i], onclick: () => openCase(i) },
      D.kind === 'images' ? thumb('query', i, 40) : null,
      el('span', {}, el('span', { class: 'says' }, mark(c.verdict[i]), name(D.classes[c.predicted[i]], 30), el('span', { class: 'quiet', text: decimal(c.confidence[i]) })), el('span', { class: 'id' }, name(told('query', i, c.id[i], c.row[i])))))))));
  }
  box.replaceChildren(...parts);
}

// Search: classes, suspects and cases by id, class or text; Enter leaves the words as a filter.
function drawFound() {
  const box = $('#found');
  const words = $('#search').value.trim();
  box.hidden = !words;
  if (!words) return;
  const line = (label, open) => el('button', { type: 'button', onclick: () => { box.hidden = true; open(); } }, name(label, 70));
  const some = (list, test) => { const hits = []; for (let i = 0; i < list.length && hits.length < 5; i += 1) if (test(i)) hits.push(i); return hits; };
  const classes = some(D.classes, (k) => says(words, D.classes[k])).map((k) => line(D.classes[k], () => pick(`class=${k}`)));
  const suspects = some(D.suspects, (n) => suspectSays(words, D.suspects[n])).map((n) => line(`${D.classes[D.suspects[n].given]} → ${D.classes[D.suspects[n].suggested]}: ${told('support', D.suspects[n].place, D.suspects[n].id, D.suspects[n].row)}`, () => { openSuspect(n); goTo('labels'); }));
  const cases = some(D.cases.row, (i) => says(words, D.cases.id[i], D.texts?.query[i])).map((i) => line(told('query', i, D.cases.id[i], D.cases.row[i]), () => openCase(i)));
  const group = (title, list) => (list.length ? [el('h3', { text: title }), ...list] : []);
  box.replaceChildren(...group('Classes', classes), ...group('Suspects', suspects), ...group('Cases', cases),
    el('p', { class: 'quiet', text: matched ? `${plural(matched, 'row')} ${matched === 1 ? 'matches' : 'match'}; Enter shows ${matched === 1 ? 'it' : 'them'}.` : 'No query row matches.' }));
}
const suspectSays = (words, s) => says(words, s.id, D.classes[s.given], D.classes[s.suggested], D.texts?.support[s.place]);

function startOpening() {
  for (const button of $$('[data-do]')) button.onclick = () => ACTIONS[button.dataset.do]();
  for (const button of $$('[data-copy]')) {
    button.onclick = async () => {
      try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = 'copied'; } catch { getSelection().selectAllChildren(button.previousElementSibling); button.textContent = 'selected'; }
      setTimeout(() => { button.textContent = 'copy'; }, 1500);
    };
  }
  const search = $('#search');
  search.addEventListener('focus', drawFound);
  search.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === 'Escape') $('#found').hidden = true; });
  document.addEventListener('pointerdown', (event) => { if (!event.target.closest('.tools')) $('#found').hidden = true; });
  drawWorst();
}
