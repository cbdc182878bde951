// What is wrong with the layout of the page as it stands: a list of sentences.
() => {
  const floating = (node) => { for (let n = node; n && n !== document.body; n = n.parentElement) {
    const style = getComputedStyle(n);
    if (style.position === 'fixed' || (style.position === 'sticky' && !n.matches('nav, aside, th'))) return true;
    if (n.matches('.unseen, .skip')) return true;
  } return false; };
  const clip = (box, node) => {
    let { left, top, right, bottom } = box;
    for (let n = node; n && n !== document.documentElement; n = n.parentElement) {
      const style = getComputedStyle(n);
      if (style.overflowX !== 'visible' || style.overflowY !== 'visible') {
        const edge = n.getBoundingClientRect();
        left = Math.max(left, edge.left); right = Math.min(right, edge.right);
        top = Math.max(top, edge.top); bottom = Math.min(bottom, edge.bottom);
      }
    }
    return { left, top, right, bottom };
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const owner = node.parentElement;
    if (!node.data.trim() || owner.closest('script, style, noscript, option, title, [transform]') || !owner.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || floating(owner)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = clip(rect, owner);
      if (box.right - box.left > 1 && box.bottom - box.top > 1) texts.push({ ...box, text: node.data.trim().slice(0, 40), owner, svg: Boolean(owner.closest('svg')) });
    }
  }
  const faults = [];
  const wide = document.documentElement.clientWidth;
  for (const t of texts) {
    const column = t.owner.closest('main, aside, .hero, .top, .foot, figure, .tile, .action, .card, .pair > div') ?? document.body;
    const edge = column.getBoundingClientRect();
    if (t.right > edge.right + 1.5 || t.left < edge.left - 1.5 || t.right > wide + 1) faults.push(`outside ${column.tagName}.${column.className}#${column.id}: ${t.text}`);
  }
  for (const node of document.querySelectorAll('main *, .hero *')) {
    if (!node.checkVisibility() || node.closest('.unseen, svg') || floating(node)) continue;
    const box = clip(node.getBoundingClientRect(), node.parentElement);
    const edge = node.closest('figure, main, .hero').getBoundingClientRect();
    if (box.right - box.left > 1 && box.right > edge.right + 1.5) faults.push(`wider than its column: ${node.tagName}.${node.className}#${node.id}`);
  }
  for (const { owner, text } of texts) {
    const size = parseFloat(getComputedStyle(owner).fontSize) * (owner.ownerSVGElement?.getScreenCTM().a ?? 1);
    if (size < 9.5) faults.push(`too small to read (${size.toFixed(1)} px): ${text}`);
  }
  texts.sort((a, b) => a.top - b.top);
  for (let i = 0; i < texts.length; i += 1) {
    for (let j = i + 1; j < texts.length && texts[j].top < texts[i].bottom - 3; j += 1) {
      const [a, b] = [texts[i], texts[j]];
      if (a.owner === b.owner || a.owner.closest('th')?.matches('thead th') || b.owner.closest('th')?.matches('thead th')) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const slack = a.svg || b.svg ? 4 : 2;
      if (across > slack && down > slack + 2) faults.push(`"${a.text}" stands on "${b.text}"`);
    }
  }
  return [...new Set(faults)];
}
