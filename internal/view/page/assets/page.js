// Replaces the page's contents when they have changed, and makes the page usable by keyboard. Without it the page is
// complete, but stands still.
'use strict';
(() => {
  const base = document.body.dataset.base;
  const byID = (id) => document.getElementById(id);
  const status = byID('live');
  const live = (text) => { status.textContent = text; };
  const search = byID('search');
  const wanted = () => search.value.trim().toLowerCase();
  const cells = () => [...document.querySelectorAll('#map .cell')].filter((cell) => !cell.parentElement.hidden);
  const here = () => decodeURIComponent(location.pathname.slice(base.length));
  const address = (id) => base + id.split('/').map(encodeURIComponent).join('/');
  let selected = here();
  let asking = new AbortController();

  // A click on what is replaced meanwhile would be lost.
  let released = Promise.resolve();
  document.addEventListener('pointerdown', () => {
    released = new Promise((done) => {
      for (const end of ['pointerup', 'pointercancel']) document.addEventListener(end, () => { setTimeout(done); }, { once: true });
    });
  });

  // What the reader has done to the page stays: the place, what is folded, the search, the focus.
  const replace = (html) => {
    // The browser has not laid out what is out of sight, and would guess how high a new list is. With the same heights, the
    // page stays where it is scrolled to.
    const blocks = () => [...document.querySelectorAll('.namespace, .cells')];
    const padding = (block) => parseFloat(getComputedStyle(block).paddingTop) + parseFloat(getComputedStyle(block).paddingBottom);
    const heights = blocks().map((block) => block.offsetHeight - padding(block));
    const [scrolled, caret] = [byID('detail').scrollTop, [search.selectionStart, search.selectionEnd]];
    const folds = new Map([...document.querySelectorAll('details')].map((fold) => [fold.id, fold.open]));
    const tab = document.querySelector('.cell[tabindex="0"]');
    const box = document.activeElement.closest('[id]');
    const inside = (element) => [...element.querySelectorAll('a, summary')];
    const nth = box ? inside(box).indexOf(document.activeElement) : -1;

    const fresh = document.createElement('template');
    fresh.innerHTML = html; // The server escapes what others wrote; scripts in here do not run.
    for (const kept of [search, status]) fresh.content.getElementById(kept.id).replaceWith(kept);
    document.body.replaceChildren(fresh.content);

    document.querySelectorAll('details').forEach((fold) => { if (folds.has(fold.id)) fold.open = folds.get(fold.id); });
    if (tab && byID(tab.parentElement.id)) tabbed(byID(tab.parentElement.id).firstElementChild);
    blocks().forEach((block, i) => { if (heights[i]) block.style.containIntrinsicBlockSize = `auto ${heights[i]}px`; });
    if (wanted()) filter();
    mark();
    byID('detail').scrollTop = scrolled;
    const again = box && byID(box.id);
    if (again) (inside(again)[nth] || again).focus({ preventScroll: true });
    if (again === search) search.setSelectionRange(...caret);
  };

  // The server answers when the page no longer is the one with the number.
  const ask = async (number, then) => {
    asking.abort();
    const { signal } = asking = new AbortController();
    for (let isLost = false; ; number = byID('number').value) {
      while (document.hidden) await new Promise((done) => { document.addEventListener('visibilitychange', done, { once: true }); });
      try {
        const answer = await fetch(address(selected) + '?after=' + number, { signal });
        if (!answer.ok) throw new Error(answer.statusText);
        const html = await answer.text();
        await released;
        if (signal.aborted) return;
        if (html) replace(html);
        if (isLost) live('live');
        isLost = false;
        if (then) then();
        then = null;
      } catch {
        if (signal.aborted) return;
        isLost = true;
        live('connection lost; what you see stands still');
        await new Promise((done) => { setTimeout(done, 2000); });
      }
    }
  };

  const mark = () => {
    const current = selected && byID(selected);
    if (current) current.firstElementChild.setAttribute('aria-current', 'true');
  };
  const open = (id) => {
    const from = selected;
    selected = id;
    ask(0, () => {
      if (id) byID('detail').focus({ preventScroll: true });
      else if (byID(from)) focus(byID(from).firstElementChild);
    });
  };
  const go = (id) => {
    if (id === selected) return;
    history.pushState(null, '', address(id));
    open(id);
  };
  window.addEventListener('popstate', () => { if (here() !== selected) open(here()); });

  const tabbed = (cell) => {
    document.querySelectorAll('.cell[tabindex="0"]').forEach((other) => { other.tabIndex = -1; });
    cell.tabIndex = 0;
  };
  const focus = (cell) => {
    tabbed(cell);
    cell.focus();
  };

  const filter = () => {
    const word = wanted();
    document.querySelectorAll('#map .cell').forEach((cell) => { cell.parentElement.hidden = word !== '' && !cell.title.toLowerCase().includes(word); });
    document.querySelectorAll('#map .cells').forEach((list) => { list.hidden = word !== '' && !list.querySelector('li:not([hidden])'); });
  };
  document.addEventListener('submit', (event) => {
    event.preventDefault();
    const first = cells()[0];
    if (first) focus(first);
  });
  search.addEventListener('input', () => {
    filter();
    const found = cells();
    live(wanted() ? found.length + ' clusters found' : 'live');
    if (found.length && !found.some((cell) => cell.tabIndex === 0)) tabbed(found[0]);
  });
  // The key that leads here is no search.
  search.addEventListener('beforeinput', (event) => {
    if (event.data === '/' && search.value === '') event.preventDefault();
  });

  // The cell above or below: the nearest one of the next row.
  const vertical = (all, from, step) => {
    const start = all[from].getBoundingClientRect();
    for (let i = from + step, row = null, best = null; ; i += step) {
      const there = all[i] && all[i].getBoundingClientRect();
      if (!there || (row !== null && there.top !== row)) return best;
      if (there.top === start.top) continue;
      row = there.top;
      if (!best || Math.abs(there.left - start.left) < Math.abs(best.getBoundingClientRect().left - start.left)) best = all[i];
    }
  };
  const moves = {
    ArrowRight: (all, at) => all[at + 1], ArrowLeft: (all, at) => all[at - 1],
    ArrowDown: (all, at) => vertical(all, at, 1), ArrowUp: (all, at) => vertical(all, at, -1),
    Home: (all) => all[0], End: (all) => all[all.length - 1],
  };

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === search;
    if (event.key === 'Escape') {
      if (typing && search.value) { search.value = ''; search.dispatchEvent(new Event('input')); } else { go(''); }
    } else if (typing) {
      return;
    } else if (event.key === '/') {
      event.preventDefault();
      search.focus();
    } else if (event.key === 'n') {
      const all = cells();
      const at = all.indexOf(document.activeElement);
      const next = [...all.slice(at + 1), ...all.slice(0, at + 1)].find((cell) => cell.classList.contains('Problem'));
      if (next) focus(next); else live('no problems');
    } else if (moves[event.key] && event.target.classList.contains('cell')) {
      const all = cells();
      const to = moves[event.key](all, all.indexOf(event.target));
      if (to) { event.preventDefault(); focus(to); }
    }
  });
  document.addEventListener('click', (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const cell = event.target.closest('.cell');
    if (cell) { event.preventDefault(); go(cell.parentElement.id); }
    if (event.target.closest('#close')) { event.preventDefault(); go(''); }
  });

  mark();
  live('live');
  ask(byID('number').value);
})();
