// ---- gallery: the cards that match, a page at a time.

const PAGE = matchMedia('(max-width: 799px)').matches ? 12 : 24;
let limit = PAGE;

function card(i) {
  const c = D.cases;
  const wrong = isWrong(c.row[i]);
  const unfamiliar = VERDICTS[c.verdict[i]] === 'unfamiliar';
  const image = D.kind === 'images'; // a narrow card: two lines for each name
  const predicted = D.classes[c.predicted[i]];
  const facts = el('span', {},
    el('span', { class: 'says' }, mark(c.verdict[i]), name(predicted, image ? 22 : 44), el('span', { class: unfamiliar ? 'quiet void' : 'quiet', text: decimal(c.confidence[i]) })),
    meter(unfamiliar ? 0 : c.confidence[i]),
    el('div', { class: wrong ? 'truth wrong' : 'truth' }, hasLabel(c.row[i]) ? el('span', {}, wrong ? '✗ label ' : '✓ label ', name(labelName(c.row[i]), image ? 24 : 44)) : 'no label'),
    el('div', { class: 'id' }, name(rowName(c.id[i], c.row[i]), image ? 32 : 60)));
  const media = cardMedia(i);
  return el('button', { type: 'button', class: image ? 'card' : 'card no-image', 'data-case': c.row[i], 'aria-pressed': String(state.case === String(c.row[i])),
    'aria-label': clip(`${c.id[i]}: ${predicted}, confidence ${decimal(c.confidence[i])}, ${VERDICTS[c.verdict[i]]}${wrong ? ', wrong' : ''}`, 300), onclick: () => openCase(i) },
  image ? media : null, facts, image ? null : media, cardStrip(i));
}

function drawGallery() {
  const rows = arrange();
  drawSelection(rows);
  follow(rows);
  $('#gallery').replaceChildren(...shown.slice(0, limit).map(card));
  if (!shown.length) $('#gallery').append(el('p', { class: 'none', text: D.cases.row.length < D.total ? 'No card matches these filters. Rows without a card are in samples.csv.' : 'No card matches these filters.' }));
  $('#more').hidden = shown.length <= limit;
  $('#gallery-count').textContent = `${whole(shown.length)} ${shown.length === 1 ? 'card matches' : 'cards match'}${shown.length > limit ? `; the first ${whole(limit)} are shown` : ''}${matched > shown.length ? `; ${matched - shown.length === 1 ? '1 more row matches and has' : `${whole(matched - shown.length)} more rows match and have`} no card in this file` : ''}`;
  drawFilters();
}

function drawFilters() {
  $('#f-verdict').value = state.verdict;
  $('#f-class').value = state.class;
  $('#f-errors').checked = Boolean(state.errors);
  $('#f-sort').value = state.sort;
  if (document.activeElement !== $('#search')) $('#search').value = state.q;
  const chips = Object.entries(RANGES).filter(([key]) => state[key]).map(([key, [, label]]) => [key, `${label} ${span(state[key]).map(brief).join('–')}`]);
  if (state.pair) chips.push(['pair', span(state.pair).map((c) => middle(D.classes[c] ?? '?', 20)).join(' and ')]);
  if (state.q) chips.push(['q', `has “${clip(state.q, 20)}”`]);
  if (state.rows) chips.push(['rows', `lasso: ${plural(chosen.query.size, 'row')}`]);
  if (state.verdict) chips.push(['verdict', state.verdict]);
  if (state.class !== '') chips.push(['class', `class ${middle(D.classes[+state.class] ?? '?', 20)}`]);
  if (state.errors) chips.push(['errors', 'errors only']);
  const buttons = chips.map(([key, label]) => el('button', { type: 'button', 'aria-label': clip(`Remove filter: ${label}`, 120), onclick: () => update({ [key]: '' }) }, name(label), ' ×'));
  if (chips.length > 1) buttons.push(el('button', { type: 'button', text: 'Clear all ×', onclick: () => update(Object.fromEntries(chips.map(([key]) => [key, '']))) }));
  $('#chips').replaceChildren(...buttons);
}

function markOpen() {
  for (const node of $$('#gallery .card')) node.setAttribute('aria-pressed', String(node.dataset.case === state.case));
}

function startGallery() {
  const select = $('#f-class');
  const used = [...new Set([...P.label, ...P.predicted])].filter((c) => c >= 0).sort((a, b) => a - b);
  select.append(...used.map((c) => el('option', { value: c, text: middle(D.classes[c], 40) })));
  $('#f-verdict').onchange = (event) => update({ verdict: event.target.value });
  select.onchange = (event) => update({ class: event.target.value });
  $('#f-errors').onchange = (event) => update({ errors: event.target.checked ? '1' : '' });
  $('#f-sort').onchange = (event) => update({ sort: event.target.value });
  $('#filters').onsubmit = (event) => event.preventDefault();
  $('#search').oninput = (event) => { update({ q: event.target.value }); drawFound(); };
  $('#search').onkeydown = (event) => { if (event.key === 'Enter') goTo('cases'); };
  $('#more').onclick = () => { limit += PAGE; drawGallery(); };
  watchers.push((change) => {
    const filters = Object.keys(change).some((key) => FILTERS.includes(key) || key === 'sort' || key === 'target');
    if (filters) { limit = PAGE; drawGallery(); } else markOpen();
  });
  drawGallery();
}
