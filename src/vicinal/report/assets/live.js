// ---- live: only under `vicinal explore`. New rows or an image are judged on the spot.

function answerCard(row) {
  const verdict = Math.max(VERDICTS.indexOf(row.verdict), 0);
  return el('div', { class: 'card no-image' },
    el('span', { class: 'says' }, mark(verdict), name(String(row.label), 60), el('span', { class: row.verdict === 'unfamiliar' ? 'quiet void' : 'quiet', text: decimal(row.confidence) })),
    el('div', { class: 'reason' }, name(clip(String(row.reason ?? ''), 300))),
    el('ol', { class: 'neighbors' }, ...(row.neighbors ?? []).slice(0, 10).map((n) =>
      el('li', {}, el('div', { class: 'who' }, name(String(n.label), 40), el('span', { class: 'quiet', text: decimal(n.weight) })), meter(n.weight, String(n.label) !== String(row.label)), el('div', { class: 'id' }, name(String(n.id), 60))))));
}

function startLive() {
  if (!live) return;
  const rows = el('textarea', { name: 'rows', 'aria-label': 'Rows as CSV or JSON', placeholder: 'One row of numbers per line: CSV without a heading, or JSON' });
  const file = el('input', { type: 'file', 'aria-label': 'A file of rows, or an image', accept: '.csv,.json,.npz,.npy,image/*' });
  const out = el('div', { 'aria-live': 'polite', id: 'answers', class: 'gallery' });
  const form = el('form', { class: 'ask', 'aria-label': 'Judge new inputs' }, el('h3', { text: 'Judge new inputs' }), rows, file, el('div', { class: 'row' }, el('button', { type: 'submit', text: 'Judge' })), out);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    out.replaceChildren(el('p', { class: 'quiet', text: 'Judging …' }));
    const body = new FormData();
    if (file.files.length) body.append('file', file.files[0]);
    else body.append('rows', rows.value);
    try {
      const answer = await fetch(onServer('predict'), { method: 'POST', body, credentials: 'same-origin' });
      const result = await answer.json();
      if (!answer.ok) throw new Error(result.error ?? `the server answered ${answer.status}`);
      out.replaceChildren(...result.rows.map(answerCard));
    } catch (error) {
      out.replaceChildren(el('p', { class: 'absent', text: String(error.message ?? error) }));
    }
  });
  $('#cases .lead').after(form);
}
