// ---- panel: one case or one suspect, with the neighbors that say so.

const pairs = (entries) => el('dl', { class: 'facts' }, ...entries.filter(Boolean).map(([key, value, kind]) =>
  el('div', {}, el('dt', { text: key }), el('dd', { class: kind ?? null }, value))));

function neighborList(neighbors, winner, measures) {
  const list = el('ol', { class: D.kind === 'images' ? 'neighbors images' : 'neighbors' });
  const most = Math.max(...measures.share, 1e-9);
  neighbors.forEach((s, n) => {
    const other = D.support.label[s] !== winner;
    const label = D.classes[D.support.label[s]];
    const item = el('li', { class: other ? 'other' : null, title: clip(`${D.support.id[s]} · ${measures.title(n)}`, 200) });
    if (D.kind === 'images') {
      const image = thumb('support', s, 60);
      if (D.tiles.support[s] < 0) Object.assign(image, { className: 'thumb none', title: 'not among the pictures of this file' });
      if (other) image.classList.add('other');
      item.append(image);
    }
    item.append(
      el('div', { class: 'who' }, name(label, 40), el('span', { class: 'quiet', text: measures.value(n) })),
      meter(measures.share[n] / most, other),
      el('div', { class: 'id' }, name(rowName(D.support.id[s], D.support.row[s]), 60)));
    if (D.kind === 'texts') item.append(text('support', s));
    list.append(item);
  });
  return list;
}

const byDistance = (w, d) => ({ share: w, value: (n) => w[n].toFixed(2), title: (n) => `weight ${w[n].toFixed(3)}, distance ${brief(d[n])}` });
const bySimilarity = (sim) => ({ share: sim.map((v) => Math.max(v, 0)), value: (n) => sim[n].toFixed(2), title: (n) => `similarity ${sim[n].toFixed(3)}` });

function viewSwitch(network) {
  const button = (view, label) => el('button', { type: 'button', 'aria-pressed': String((state.view === 'network') === (view === 'network')), 'data-view': view, text: label, onclick: () => update({ view }) });
  return network && el('div', { class: 'views', role: 'group', 'aria-label': 'Whose neighbors' }, button('', 'embedding view'), button('network', 'network view'));
}

function votes(i) {
  const c = D.cases;
  if (!c.layer_class) return null;
  return el('div', {}, el('h3', { text: 'Votes by layer' }), el('div', { class: 'votes' }, ...c.layers.map((layer, l) =>
    el('div', {}, el('span', { class: 'quiet' }, name(layer, 40)), meter(c.layer_share[i][l], c.layer_class[i][l] !== c.predicted[i]),
      el('span', {}, name(`${middle(D.classes[c.layer_class[i][l]], 20)} ${c.layer_share[i][l].toFixed(2)}`))))));
}

function similarityBars(row) {
  const histogram = D.network?.similarity?.[row];
  if (!histogram) return null;
  const [edges, counts] = histogram;
  const most = Math.max(...counts, 1);
  const width = 300 / counts.length;
  const bars = counts.map((n, b) => svg('rect', { x: b * width + 0.5, width: width - 1, y: 60 - 60 * n / most, height: 60 * n / most }));
  return el('div', {}, el('h3', { text: `Similarity to all rows, ${brief(edges[0])} to ${brief(edges[edges.length - 1])}` }),
    svg('svg', { class: 'mini', viewBox: '0 0 300 60', role: 'img', 'aria-label': 'Histogram of similarities' }, ...bars));
}

const closeButton = () => el('button', { type: 'button', class: 'close', text: 'Close', onclick: () => update({ case: '', suspect: '', support: '' }) });

function casePanel(i) {
  const c = D.cases;
  const network = Boolean(c.network_neighbors);
  const networkView = network && state.view === 'network';
  const neighbors = networkView ? c.network_neighbors[i] : c.neighbors[i];
  const unfamiliar = VERDICTS[c.verdict[i]] === 'unfamiliar';
  const truth = hasLabel(c.row[i]) ? name(labelName(c.row[i]), 120) : 'no label';
  const wrong = isWrong(c.row[i]);
  return [
    el('p', { class: 'kind' }, el('span', { text: `Case, query row ${whole(c.row[i])}` }), closeButton()),
    el('h2', {}, name(rowName(c.id[i], c.row[i]), 300)),
    bigMedia('query', i),
    el('p', { class: 'verdict-line' }, mark(c.verdict[i]), VERDICTS[c.verdict[i]]),
    el('p', { class: 'reason' }, name(clip(c.reason[i], 600))),
    pairs([
      ['predicted', name(D.classes[c.predicted[i]], 120)],
      ['label', truth, wrong ? 'wrong' : null],
      ['confidence', el('span', { class: unfamiliar ? 'void' : null, text: decimal(c.confidence[i]), title: unfamiliar ? 'not meaningful: unfamiliar input' : null })],
      unfamiliar && ['', 'confidence not meaningful', 'quiet'],
      ['credibility', decimal(c.credibility[i])],
      c.familiar && c.familiar[i] !== null && ['familiarity', `${(100 * c.familiar[i]).toFixed(1)} % of held-out rows are as foreign`],
      ['farther than', `${c.near[i].toFixed(0)} % of held-out rows`],
      c.linear && ['linear part', `${percent(c.linear[i], 0)} of the lead`],
      c.crowding && ['crowding percentile', c.crowding[i] === null ? '–' : c.crowding[i].toFixed(0)],
    ]),
    viewSwitch(network),
    networkView ? similarityBars(String(c.row[i])) : null,
    networkView && !neighbors.length && el('p', { class: 'absent', text: 'The network view was not computed for this row.' }),
    !network && el('h3', { text: 'Neighbors, nearest first' }),
    D.kind === 'tables' && D.tables.query[i] ? featureTable(D.tables.query[i], neighbors) : null,
    neighborList(neighbors, c.predicted[i], networkView ? bySimilarity(c.similarities[i]) : byDistance(c.weights[i], c.distances[i])),
    votes(i),
  ];
}

// Arrows and letters walk through a closed list, and each step is a change: there Enter chooses.
function onChoice(list, choose) {
  let [walking, open] = [false, false];
  const chosen = () => { open = false; if (list.value !== '') choose(+list.value); };
  list.onchange = () => { if (!walking) chosen(); };
  list.onpointerdown = () => { walking = false; };
  list.onblur = () => { open = false; };
  list.onkeydown = (event) => {
    if (event.key === 'Enter' && !open) { event.preventDefault(); chosen(); return; }
    if (event.key === ' ' || event.key === 'F4' || event.altKey) open = true;
    walking = !open && (event.key.length === 1 || /^(Arrow|Page|Home|End)/.test(event.key));
  };
}

function suspectPanel(n) {
  const s = D.suspects[n];
  const choice = decisionOf(s);
  const button = (kind, key) => el('button', { type: 'button', 'aria-pressed': String(choice === kind), 'data-decide': kind, text: `${key} ${kind}`, onclick: () => decide(n, kind) });
  const classes = el('select', { id: 'other-class', 'aria-label': 'Another class; Enter decides' }, el('option', { value: '', text: 'c  another class…  Enter' }), ...D.classes.map((label, c) => el('option', { value: c, text: middle(label, 60), selected: choice === 'relabel' && labelOf(s) === c && c !== s.suggested })));
  onChoice(classes, (code) => decide(n, 'relabel', code));
  return [
    el('p', { class: 'kind' }, el('span', { text: `Suspect ${n + 1} of ${D.suspects.length}, support row ${whole(s.row)}` }), closeButton()),
    el('h2', {}, name(rowName(s.id, s.row), 300)),
    bigMedia('support', s.place),
    el('div', { class: 'decide', role: 'group', 'aria-label': 'Decision' }, button('keep', '1'), button('relabel', '2'), button('skip', '3')),
    el('div', { class: 'other-class' }, classes),
    pairs([
      ['given', name(D.classes[s.given], 120)],
      ['suggested', name(D.classes[s.suggested], 120)],
      choice === 'relabel' && ['decided', name(D.classes[labelOf(s)], 120)],
      ['p given', decimal(s.p_given, 3)],
      ['p suggested', decimal(s.p_suggested, 3)],
      s.depth !== null && ['depths that agree', percent(s.depth, 0)],
      ['query predictions affected', whole(s.affected)],
    ]),
    el('h3', { text: 'What the two classes look like' }),
    exampleStrip(s.given, 6, 40),
    exampleStrip(s.suggested, 6, 40),
    el('h3', { text: 'Neighbors, nearest first' }),
    D.kind === 'tables' && D.tables.support[s.place] ? featureTable(D.tables.support[s.place], s.neighbors) : null,
    neighborList(s.neighbors, s.suggested, byDistance(s.weights, s.distances)),
  ];
}

// A query row without a card: what every row has.
function rowPanel(r) {
  const wrong = isWrong(r);
  return [
    el('p', { class: 'kind' }, el('span', { text: `Query row ${whole(r)}` }), closeButton()),
    el('h2', {}, name(rowName(idOf(r), r), 300)),
    el('p', { class: 'verdict-line' }, mark(P.verdict[r]), VERDICTS[P.verdict[r]]),
    pairs([['predicted', name(D.classes[P.predicted[r]], 120)], ['label', hasLabel(r) ? name(labelName(r), 120) : 'no label', wrong ? 'wrong' : null], ['confidence', decimal(sure(r))]]),
    el('p', { class: 'absent', text: 'This row has no card in this file; its neighbors are in samples.csv.' }),
  ];
}

// A support row from the fit map: what is known of it. Neighbors are listed for suspects only.
function supportPanel(at) {
  const s = D.fit.place[at];
  return [
    el('p', { class: 'kind' }, el('span', { text: `Support row ${whole(D.fit.row[at])}` }), closeButton()),
    s >= 0 && el('h2', {}, name(rowName(D.support.id[s], D.support.row[s]), 300)),
    s >= 0 && bigMedia('support', s),
    pairs([
      s >= 0 && ['label', name(D.classes[D.support.label[s]], 120)],
      ['diagnosis', name(D.fit.group[at])],
      ['crowding percentile', D.fit.x[at].toFixed(0)],
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
  const bare = state.case !== '' && i === undefined && P.verdict[+state.case] !== undefined;
  const parts = n >= 0 ? suspectPanel(n) : i !== undefined ? casePanel(i) : bare ? rowPanel(+state.case) : at >= 0 ? supportPanel(at) : null;
  panel.classList.toggle('open', Boolean(parts));
  const body = $('#panel-body');
  guide ??= [...body.children];
  const lost = state.case !== '' && el('p', { class: 'absent', text: 'This row has no card in this file; it is in samples.csv.' });
  body.replaceChildren(...(parts ?? [lost, ...guide]).filter(Boolean));
  panel.scrollTop = 0;
}
