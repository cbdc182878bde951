// ---- panel: one case or one suspect, with the neighbors that say so.

const pairs = (entries) => el('dl', { class: 'facts' }, ...entries.filter(Boolean).map(([key, value, kind]) =>
  el('div', {}, el('dt', { text: key }), el('dd', { class: kind ?? null }, value))));

function neighborList(found, winner, measures) {
  const list = el('ol', { class: D.kind === 'images' ? 'neighbors images' : 'neighbors' });
  const most = Math.max(...measures.share, 1e-9);
  found.forEach((s, n) => {
    const other = D.support.label[s] !== winner;
    const label = D.classes[D.support.label[s]];
    const item = el('li', { class: other ? 'other' : null, title: clip(`${D.support.id[s]} · ${measures.says(n)}`, 200) });
    if (D.kind === 'images' && D.tiles.s[s] >= 0) {
      const image = thumb('s', s, 60);
      if (other) image.classList.add('other');
      item.append(image);
    }
    item.append(
      el('div', { class: 'who' }, name(clip(label, 40)), el('span', { class: 'quiet', text: measures.value(n) })),
      meter(measures.share[n] / most, other),
      el('div', { class: 'id' }, name(clip(called(D.support.id[s], D.support.row[s]), 60))));
    if (D.kind === 'texts') item.append(text('s', s));
    list.append(item);
  });
  return list;
}

const byDistance = (w, d) => ({ share: w, value: (n) => w[n].toFixed(2), says: (n) => `weight ${w[n].toFixed(3)}, distance ${brief(d[n])}` });
const bySimilarity = (sim) => ({ share: sim.map((v) => Math.max(v, 0)), value: (n) => sim[n].toFixed(2), says: (n) => `similarity ${sim[n].toFixed(3)}` });

function viewSwitch(network) {
  const button = (view, label) => el('button', { type: 'button', 'aria-pressed': String((state.view === 'network') === (view === 'network')), 'data-view': view, text: label, onclick: () => update({ view }) });
  return network && el('div', { class: 'views', role: 'group', 'aria-label': 'Whose neighbors' }, button('', 'embedding view'), button('network', 'network view'));
}

function votes(i) {
  const c = D.cases;
  if (!c.lc) return null;
  return el('div', {}, el('h3', { text: 'Votes by layer' }), el('div', { class: 'votes' }, ...c.layers.map((layer, l) =>
    el('div', {}, el('span', { class: 'quiet' }, name(clip(layer, 40))), meter(c.ls[i][l], c.lc[i][l] !== c.predicted[i]),
      el('span', {}, name(`${clip(D.classes[c.lc[i][l]], 20)} ${c.ls[i][l].toFixed(2)}`))))));
}

function similarityBars(row) {
  const found = D.network?.similarity?.[row];
  if (!found) return null;
  const [edges, counts] = found;
  const most = Math.max(...counts, 1);
  const width = 300 / counts.length;
  const bars = counts.map((n, b) => svg('rect', { x: b * width + 0.5, width: width - 1, y: 60 - 60 * n / most, height: 60 * n / most }));
  return el('div', {}, el('h3', { text: `Similarity to all rows, ${brief(edges[0])} to ${brief(edges[edges.length - 1])}` }),
    svg('svg', { class: 'mini', viewBox: '0 0 300 60', role: 'img', 'aria-label': 'Histogram of similarities' }, ...bars));
}

const closer = () => el('button', { type: 'button', class: 'close', text: 'Close', onclick: () => update({ case: '', suspect: '', support: '' }) });

function casePanel(i) {
  const c = D.cases;
  const network = Boolean(c.nnb);
  const seen = network && state.view === 'network';
  const found = seen ? c.nnb[i] : c.nb[i];
  const strange = VERDICTS[c.verdict[i]] === 'unfamiliar';
  const truth = c.label[i] === null ? 'no label' : name(clip(D.classes[c.label[i]], 120));
  const wrong = c.label[i] !== null && c.label[i] !== c.predicted[i];
  return [
    el('p', { class: 'kind' }, el('span', { text: `Case, query row ${whole(c.row[i])}` }), closer()),
    el('h2', {}, name(clip(called(c.id[i], c.row[i]), 300))),
    bigMedia('q', i, c.row[i]),
    el('p', { class: 'verdict-line' }, mark(c.verdict[i]), VERDICTS[c.verdict[i]]),
    el('p', { class: 'reason' }, name(clip(c.reason[i], 600))),
    pairs([
      ['predicted', name(clip(D.classes[c.predicted[i]], 120))],
      ['label', truth, wrong ? 'wrong' : null],
      ['confidence', el('span', { class: strange ? 'void' : null, text: decimal(c.confidence[i]), title: strange ? 'not meaningful: unfamiliar input' : null })],
      strange && ['', 'confidence not meaningful', 'quiet'],
      ['credibility', decimal(c.credibility[i])],
      ['farther than', `${c.near[i].toFixed(0)} % of held-out rows`],
      c.crowd && ['N_S percentile', c.crowd[i] === null ? '–' : c.crowd[i].toFixed(0)],
    ]),
    viewSwitch(network),
    seen ? similarityBars(String(c.row[i])) : null,
    seen && !found.length && el('p', { class: 'absent', text: 'The network view was not computed for this row.' }),
    !network && el('h3', { text: 'Neighbors, nearest first' }),
    D.kind === 'tables' && D.tables.q[i] ? featureTable(D.tables.q[i], found) : null,
    neighborList(found, c.predicted[i], seen ? bySimilarity(c.nsim[i]) : byDistance(c.w[i], c.d[i])),
    votes(i),
  ];
}

function suspectPanel(n) {
  const s = D.suspects[n];
  const choice = decisions[s.row];
  const button = (kind, key) => el('button', { type: 'button', 'aria-pressed': String(choice === kind), 'data-decide': kind, text: `${key} ${kind}`, onclick: () => decide(n, kind) });
  return [
    el('p', { class: 'kind' }, el('span', { text: `Suspect ${n + 1} of ${D.suspects.length}, support row ${whole(s.row)}` }), closer()),
    el('h2', {}, name(clip(called(s.id, s.row), 300))),
    bigMedia('s', s.s, s.row),
    pairs([
      ['given', name(clip(D.classes[s.given], 120))],
      ['suggested', name(clip(D.classes[s.suggested], 120))],
      ['p given', decimal(s.pg, 3)],
      ['p suggested', decimal(s.ps, 3)],
      ['depths that agree', percent(s.depth, 0)],
      ['query predictions affected', whole(s.affected)],
    ]),
    el('div', { class: 'decide', role: 'group', 'aria-label': 'Decision' }, button('keep', '1'), button('relabel', '2'), button('skip', '3')),
    el('h3', { text: 'Neighbors, nearest first' }),
    D.kind === 'tables' && D.tables.s[s.s] ? featureTable(D.tables.s[s.s], s.nb) : null,
    neighborList(s.nb, s.suggested, byDistance(s.w, s.d)),
  ];
}

// A support row from the fit map: what is known of it. Neighbors are listed for suspects only.
function supportPanel(at) {
  const s = D.fit.s[at];
  return [
    el('p', { class: 'kind' }, el('span', { text: `Support row ${whole(D.fit.row[at])}` }), closer()),
    s >= 0 && el('h2', {}, name(clip(called(D.support.id[s], D.support.row[s]), 300))),
    s >= 0 && bigMedia('s', s, D.fit.row[at]),
    pairs([
      s >= 0 && ['label', name(clip(D.classes[D.support.label[s]], 120))],
      ['diagnosis', name(D.fit.group[at])],
      ['N_S percentile', D.fit.x[at].toFixed(0)],
      ['variance of the labels around', decimal(D.fit.y[at])],
    ]),
  ];
}

let guide = null; // what the panel says while nothing is open
function drawPanel() {
  const panel = $('#panel');
  const i = state.case === '' ? undefined : caseAt.get(+state.case);
  const n = state.suspect === '' ? -1 : D.suspects.findIndex((s) => s.row === +state.suspect);
  const at = state.support === '' || !D.fit || D.fit.query ? -1 : D.fit.row.indexOf(+state.support);
  const parts = n >= 0 ? suspectPanel(n) : i !== undefined ? casePanel(i) : at >= 0 ? supportPanel(at) : null;
  panel.classList.toggle('open', Boolean(parts));
  const body = $('#panel-body');
  guide ??= [...body.children];
  const lost = state.case !== '' && el('p', { class: 'absent', text: 'This row has no card in this file; it is in samples.csv.' });
  body.replaceChildren(...(parts ?? [lost, ...guide]).filter(Boolean));
  panel.scrollTop = 0;
}
