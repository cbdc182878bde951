// ---- start: read the data, wake each part, listen to the keys.

function startTheme() {
  const kept = remember('vicinal:theme');
  if (kept) root.dataset.theme = kept;
  $('#theme').onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    remember('vicinal:theme', root.dataset.theme);
    for (const draw of redraws) draw();
  };
  followTheme(redraws);
}

function step(by) {
  if (state.suspect !== '') {
    const order = reviewed();
    const n = order[order.indexOf(suspectAt.get(+state.suspect)) + by];
    if (n !== undefined) openSuspect(n);
    return;
  }
  const at = shown.indexOf(caseAt.get(+state.case));
  const next = state.case === '' ? 0 : at + by;
  if (next < 0 || next >= shown.length) return;
  if (next >= limit) { limit += PAGE; drawGallery(); }
  openCase(shown[next]);
  $(`#gallery [data-case="${D.cases.row[shown[next]]}"]`)?.scrollIntoView({ block: 'nearest' });
}

function startKeys() {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== 'range' && event.target.type !== 'checkbox';
    if (event.target.tagName === 'CANVAS' && event.key !== 'Escape') return;
    if (event.key === 'Escape') { if (typing) event.target.blur(); else update({ case: '', suspect: '', support: '' }); return; }
    if (typing) return;
    const n = D.suspects.findIndex((s) => String(s.row) === state.suspect);
    const choice = { 1: 'keep', 2: 'relabel', 3: 'skip' }[event.key];
    if (choice && n >= 0) decide(n, choice);
    else if (event.key === 'u') undo();
    else if (event.key === 'c' && n >= 0) { event.preventDefault(); $('#other-class')?.focus(); }
    else if (event.key === 'j') step(1);
    else if (event.key === 'k') step(-1);
    else if (event.key === 'v' && D.cases.network_neighbors) update({ view: state.view === 'network' ? '' : 'network' });
    else if (event.key === '/') { event.preventDefault(); $('#search').focus(); }
  });
}

function startSections() {
  const links = new Map($$('.side a').map((link) => [link.getAttribute('href').slice(1), link]));
  for (const [id, link] of links) {
    link.onclick = (event) => { event.preventDefault(); goTo(id); update({ at: id }); };
  }
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const [id, link] of links) {
        if (id === entry.target.id) link.setAttribute('aria-current', 'true');
        else link.removeAttribute('aria-current');
      }
    }
  }, { rootMargin: '-20% 0px -70% 0px' });
  for (const id of links.keys()) { const section = document.getElementById(id); if (section) watch.observe(section); }
}

async function start() {
  startTheme();
  try {
    D = await readData();
    apart = new Map(D.apart.map(([code, at]) => [D.classes[code], at]));
    VERDICTS = D.verdicts;
    P = D.points;
  } catch (error) {
    const fault = $('#fault');
    fault.textContent = `The cases could not be read (${error.message}). The tables and charts above are complete; a newer browser may help.`;
    fault.hidden = false;
    return;
  }
  caseAt = new Map(D.cases.row.map((row, i) => [row, i]));
  suspectAt = new Map(D.suspects.map((s, n) => [s.row, n]));
  P.judged = P.verdict;
  const column = (of) => D.cases.row.map(of);
  Object.assign(D.cases, { id: column(idOf), predicted: column((r) => P.predicted[r]), label: column((r) => (P.label[r] < 0 ? null : P.label[r])), confidence: column((r) => sure(r)) });
  readHash();
  applyTarget();
  watchers.push((change) => { if ('target' in change) { applyTarget(); drawCounts(); drawWorst(); } });
  startPicks();
  startOpening();
  if (state.target) drawCounts();
  startGallery();
  startLabels();
  startThreshold();
  startMap();
  startFitMap();
  startExamples();
  startLive();
  startKeys();
  startSections();
  watchers.push((change) => { if (['case', 'suspect', 'support', 'view'].some((key) => key in change)) drawPanel(); });
  drawPanel();
  addEventListener('hashchange', () => { readHash(); update({ target: state.target, map: state.map }); drawPanel(); });
  addEventListener('beforeprint', () => { for (const node of $$('details')) node.open = true; });
  if (state.at) goTo(state.at);
  root.dataset.ready = 'true';
}
start();
