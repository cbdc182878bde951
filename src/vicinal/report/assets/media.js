// ---- media: what a row looks like, by the kind of data. side: 'query' or 'support'.

let D = null; // the data, set once by start

function thumb(side, i, pixels) {
  const place = D.tiles ? D.tiles[side][i] : -1;
  const node = el('span', { class: 'thumb', role: 'img', 'aria-label': side === 'query' ? 'query' : 'neighbor' });
  node.style.width = node.style.height = `${pixels}px`;
  if (place >= 0) {
    const { columns, per, size } = D.tiles;
    const at = place % per;
    node.classList.add(`s${Math.floor(place / per)}`);
    if (size < 40) node.classList.add('pixel');
    node.style.backgroundSize = `${columns * pixels}px auto`;
    node.style.backgroundPosition = `${-(at % columns) * pixels}px ${-Math.floor(at / columns) * pixels}px`;
  }
  return node;
}

const text = (side, i) => el('div', { class: 'text', dir: 'auto', text: D.texts[side][i] ?? 'no text' });

function cardMedia(i) {
  if (D.kind === 'images') return thumb('query', i, 64);
  if (D.kind === 'texts') return text('query', i);
  if (D.kind === 'tables') {
    const row = D.tables.query[i] || [];
    const shown = row.slice(0, 3).map((value, c) => `${clip(D.columns[c] ?? `column ${c + 1}`, 14)} ${brief(value)}`);
    return el('div', { class: 'text', text: shown.join(' · ') + (row.length > 3 ? ' …' : '') });
  }
  return null;
}

function cardStrip(i) {
  const predicted = D.cases.predicted[i];
  const strip = el('span', { class: 'strip', 'aria-hidden': 'true' });
  if (D.kind === 'images') {
    for (const s of D.cases.neighbors[i].slice(0, 6)) {
      const node = thumb('support', s, 27);
      if (D.support.label[s] !== predicted) node.classList.add('other');
      strip.append(node);
    }
    return strip;
  }
  const share = new Map(); // without pictures: who voted, as wide as the vote
  D.cases.neighbors[i].forEach((s, n) => share.set(D.support.label[s], (share.get(D.support.label[s]) ?? 0) + D.cases.weights[i][n]));
  for (const [label, weight] of [...share].sort((a, b) => b[1] - a[1]).slice(0, 3)) {
    const node = el('span', { class: label === predicted ? 'swatch' : 'swatch other' }, name(D.classes[label], 24));
    node.style.flexGrow = Math.max(weight, 0.18);
    strip.append(node);
  }
  return strip;
}

function bigMedia(side, i) {
  if (D.kind === 'images') return el('div', { class: 'big' }, thumb(side, i, 160));
  return D.kind === 'texts' ? text(side, i) : null;
}

// A table's row beside its neighbors: the difference is what matters, so it stands in the cell.
function featureTable(values, neighbors) {
  const rows = neighbors.slice(0, 4).map((s) => D.tables.support[s] || []);
  const spread = values.map((_, c) => {
    const numbers = [values, ...rows].map((r) => r[c]).filter((v) => typeof v === 'number');
    return numbers.length ? Math.max(...numbers) - Math.min(...numbers) || 1 : 1;
  });
  const head = el('tr', {}, el('th', { scope: 'col', text: 'feature' }), el('th', { scope: 'col', text: 'this' }),
    ...rows.map((_, n) => el('th', { scope: 'col', text: `n${n + 1}` })));
  const body = values.map((value, c) => el('tr', {}, el('th', { scope: 'row' }, name(D.columns[c] ?? `column ${c + 1}`, 22)),
    el('td', {}, name(String(brief(value)))),
    ...rows.map((r) => {
      const numeric = typeof r[c] === 'number' && typeof value === 'number';
      const shift = numeric ? r[c] - value : 0;
      const label = numeric ? `${shift >= 0 ? '+' : '−'}${brief(Math.abs(shift))}` : r[c] === value ? '=' : String(r[c] ?? '–');
      return el('td', { class: Math.abs(shift) / spread[c] > 0.6 ? 'far' : null }, name(label));
    })));
  return el('div', { class: 'scroll' }, el('table', { class: 'features' },
    el('caption', { class: 'quiet', text: 'Differences of the nearest neighbors' }), el('thead', {}, head), el('tbody', {}, ...body)));
}
