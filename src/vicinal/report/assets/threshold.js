// ---- threshold: a slider and a drag on the curve move one marker; a target moves the verdicts.

function startThreshold() {
  const slider = $('#threshold');
  const curve = D.curve;
  if (!slider || !curve || !curve.threshold.length) return;
  const chart = $('#risk-coverage svg');
  const { sx, sy, back, left, right, bottom } = frameOf(chart);
  slider.max = curve.threshold.length - 1;
  const nearest = (values, value) => values.reduce((best, v, i) => (Math.abs(v - value) < Math.abs(values[best] - value) ? i : best), 0);
  const home = curve.chosen === null ? curve.threshold.length - 1 : nearest(curve.threshold, curve.chosen);

  function show(i) {
    $('#threshold-value').textContent = `confidence ≥ ${threshold(curve.threshold[i])}`;
    slider.setAttribute('aria-valuetext', `confidence at least ${threshold(curve.threshold[i])}, coverage ${percent(curve.coverage[i])}`);
    $('.dot.mover', chart).setAttribute('cx', sx(curve.coverage[i]));
    $('.dot.mover', chart).setAttribute('cy', sy(curve.accuracy[i]));
    for (const end of ['x1', 'x2']) $('.whisker.mover', chart).setAttribute(end, sx(curve.coverage[i]));
    const turned = turnedAway(i);
    const away = turned.reduce((sum, n) => sum + n, 0);
    const rows = [['coverage', percent(curve.coverage[i])], ['accuracy', percent(curve.accuracy[i])], ['accepted', whole(D.total - away)], ['lower bound', percent(curve.lower[i])]];
    $('#threshold-away').replaceChildren(el('span', { class: 'quiet', text: 'turned away ' }, el('b', { text: whole(away) })),
      ...VERDICTS.flatMap((verdict, v) => (turned[v] ? [el('span', { class: 'quiet', title: verdict }, mark(v), ` ${verdict} `, el('b', { text: whole(turned[v]) }))] : [])),
      ...stillAway(turned, curve.threshold[i]), ...atThreshold(curve.threshold[i]));
    $('#threshold-facts').replaceChildren(...rows.map(([key, value]) => el('div', {}, el('dt', { text: key }), el('dd', { text: value }))));
  }
  slider.oninput = () => show(+slider.value);
  $('#reset-threshold').onclick = () => { slider.value = home; show(home); };
  $('#show-accepted').onclick = () => { update({ conf: `${curve.threshold[+slider.value] - 1e-4}~1` }); goTo('cases'); };
  $('#show-rejected').onclick = () => { update({ conf: `0~${curve.threshold[+slider.value] - 1e-4}` }); goTo('cases'); };
  const drag = (event) => {
    const x = pointIn(chart, event)[0] / chart.getBoundingClientRect().width * chart.viewBox.baseVal.width;
    slider.value = nearest(curve.coverage, back(x));
    show(+slider.value);
  };
  chart.addEventListener('pointerdown', (event) => { chart.setPointerCapture(event.pointerId); drag(event); });
  chart.addEventListener('pointermove', (event) => { if (chart.hasPointerCapture(event.pointerId)) drag(event); });
  const follow = () => {
    const picked = targetOf(state.target);
    const at = picked && picked.value !== null ? nearest(curve.threshold, picked.value) : home;
    slider.value = at;
    show(at);
    const line = $('.line.target', chart); // the target that the verdicts follow
    const name = $('text.halo', chart);
    if (!line || !name) return;
    const target = picked?.target ?? curve.target;
    const y = sy(target);
    line.setAttribute('points', `${left},${y} ${right},${y}`);
    const roomy = curve.coverage[at] > 0.4;
    name.setAttribute('x', roomy ? sx(curve.coverage[at]) - 6 : right);
    name.setAttribute('y', y + (roomy && y + 16 < bottom ? 14 : -5));
    name.textContent = `target ${level(target)}`;
  };
  watchers.push((change) => { if ('target' in change) follow(); else if (FILTERS.some((key) => key in change)) show(+slider.value); });
  startTargets();
  follow();
}

// Verdicts of the rows below a threshold: the run's own, counted in full, or those of a target that was moved.
function turnedAway(i) {
  if (P.verdict === P.judged) return D.curve.rejected[i];
  const found = VERDICTS.map(() => 0);
  P.verdict.forEach((v, r) => { if (sure(r) < D.curve.threshold[i] - 5e-5) found[v] += 1; });
  return found;
}

// Confidence alone does not make a row supported: what the saved head turns away all the same.
function stillAway(rejected, least) {
  const left = VERDICTS.map((verdict, v) => [P.verdict.filter((of) => of === v).length - rejected[v], verdict]);
  const contested = VERDICTS.indexOf('contested');
  // Rows that only the target's level makes contested are accepted with a threshold below it.
  const level = targetNow()?.level ?? 1;
  const doubted = new Set(P.doubted);
  const loose = least >= level ? 0 : P.verdict.filter((v, r) => v === contested && !doubted.has(r) && sure(r) >= least - 5e-5).length;
  const split = left[contested][0] - loose;
  const parts = left.filter(([n, verdict]) => n && (verdict === 'unfamiliar' || verdict === 'isolated')).map(([n, verdict]) => `${whole(n)} ${verdict}`);
  if (split > 0) parts.splice(1, 0, `${whole(split)} contested`);
  return parts.length ? [el('span', { class: 'quiet still', text: `of the accepted, ${parts.join(', ')}: left to people all the same` })] : [];
}

// What the threshold accepts of the rows that are selected; a confidence is known to four digits.
function atThreshold(least) {
  if (!filtered()) return [];
  const accepted = selected.filter((r) => sure(r) >= least - 5e-5);
  const wrong = accepted.filter(isWrong).length;
  return [el('span', { class: 'of-selected', text: `of ${plural(selected.length, 'selected row')} ${whole(accepted.length)} accepted, ${whole(wrong)} wrong` })];
}

const targetOf = (text) => (text === '' ? null : (D.curve?.targets ?? []).find((t) => String(t.target) === text) ?? null);
const targetNow = () => targetOf(state.target) ?? D.curve?.targets?.find((t) => t.target === D.curve.target);

// Another target moves the level below which a row is contested, here and nowhere else.
function applyTarget() {
  const picked = targetOf(state.target);
  const least = targetNow()?.level;
  const [supported, contested] = [VERDICTS.indexOf('supported'), VERDICTS.indexOf('contested')];
  const doubted = new Set(P.doubted);
  const odd = new Set(picked?.odd ?? []); // rows whose printed confidence is on the other side
  P.verdict = !picked || picked.target === D.curve.target ? P.judged : P.judged.map((v, r) => (v !== supported && v !== contested ? v : (sure(r) < least) !== odd.has(r) || doubted.has(r) ? contested : supported));
  D.cases.verdict = D.cases.row.map((r) => P.verdict[r]);
}

function startTargets() {
  const box = $('#targets');
  const targets = D.curve.targets ?? [];
  if (!box || !targets.length) return;
  const said = (t) => (t.value === null ? 'not reachable' : `${percent(t.coverage, 0)} accepted`);
  function draw() {
    const now = targetNow();
    $('#target-buttons').replaceChildren(...targets.map((t) => el('button', { type: 'button', 'data-target': t.target, 'aria-pressed': String(t === now), title: said(t), onclick: () => update({ target: t.target === D.curve.target ? '' : String(t.target) }) },
      el('b', { text: level(t.target) }), el('span', { class: 'quiet', text: said(t) }))));
    $('#target-note').textContent = now?.value === null ? outOfReach(now)
      : state.target ? `Verdicts on this page follow a target of ${level(now.target)} (confidence ≥ ${threshold(now.level)}); samples.csv and the saved head keep ${level(D.curve.target)}.` : '';
  }
  watchers.push((change) => { if ('target' in change) draw(); });
  draw();
}
