// Folds changes into the page as they happen, and makes it usable by keyboard. Without it
// the page is complete, but stands still.
'use strict';
(() => {
  const base = document.body.dataset.base;
  let selected = document.body.dataset.selected;
  let number = document.body.dataset.number; // Of the changes that the page has.
  let events = null;
  const byID = (id) => document.getElementById(id);
  const live = (text) => { byID('live').textContent = text; };
  const cells = () => [...document.querySelectorAll('#map .cell')].filter((cell) => !cell.parentElement.hidden);

  // The server escapes what others wrote; scripts in HTML that is put in here do not run.
  const parse = (html) => {
    const template = document.createElement('template');
    template.innerHTML = html.trim();
    return template.content.firstElementChild;
  };

  const apply = (change) => {
    if (change.op === 'reload') { location.reload(); return; }
    const old = byID(change.id);
    if (change.op === 'remove') { if (old) old.remove(); return; }
    const fresh = parse(change.html);
    if (change.op === 'set' && old) {
      const had = old.contains(document.activeElement);
      const open = new Set([...old.querySelectorAll('details')].filter((d) => d.open).map((d) => d.querySelector('summary').textContent));
      const tab = old.querySelector('[tabindex="0"]') !== null;
      old.replaceWith(fresh);
      fresh.querySelectorAll('details').forEach((d) => { if (open.has(d.querySelector('summary').textContent)) d.open = true; });
      const link = fresh.querySelector('.cell');
      if (link && tab) link.tabIndex = 0;
      if (had) (link || fresh).focus();
    } else if (change.op === 'add') {
      if (old) old.remove(); // It has been told of before.
      const list = byID('list/' + change.list);
      const after = change.after && byID(change.after);
      if (after) after.after(fresh); else if (list) list.querySelector('.cells').prepend(fresh);
    }
  };

  const mark = () => {
    document.querySelectorAll('.cell[aria-current]').forEach((cell) => cell.removeAttribute('aria-current'));
    const current = selected && byID(selected);
    if (current) current.querySelector('.cell').setAttribute('aria-current', 'true');
  };

  const connect = () => {
    if (events) events.close();
    events = new EventSource(base + 'events?after=' + number + (selected ? '&cluster=' + encodeURIComponent(selected) : ''));
    let opened = false;
    events.onmessage = (message) => {
      if (!opened) { opened = true; live('live'); }
      const changes = JSON.parse(message.data);
      changes.forEach(apply);
      number = message.lastEventId || number;
      if (changes.length === 0) return;
      if (wanted()) filter();
      mark();
    };
    // The browser connects again, and is told what it has missed.
    events.onerror = () => { opened = false; live('connection lost; what you see stands still'); };
  };

  const open = async (id, push) => {
    selected = id;
    if (push) history.pushState({ id }, '', base + id);
    if (!id) {
      byID('detail').hidden = true;
    } else {
      const answer = await fetch(base + 'part/' + id);
      if (!answer.ok) { location.assign(base + id); return; }
      byID('detail').replaceWith(parse(await answer.text()));
      byID('detail').focus({ preventScroll: true });
    }
    mark();
    connect();
  };

  const close = () => {
    if (!selected) return;
    const from = byID(selected);
    open('', true);
    if (from) focus(from.querySelector('.cell'));
  };

  const focus = (cell) => {
    document.querySelectorAll('.cell[tabindex="0"]').forEach((other) => { other.tabIndex = -1; });
    cell.tabIndex = 0;
    cell.focus();
  };

  const search = byID('search');
  const wanted = () => search.value.trim().toLowerCase();
  const filter = () => {
    const word = wanted();
    document.querySelectorAll('#map .cell').forEach((cell) => { cell.parentElement.hidden = word !== '' && !cell.title.toLowerCase().includes(word); });
    document.querySelectorAll('#map .cells').forEach((list) => { list.hidden = word !== '' && !list.querySelector('li:not([hidden])'); });
  };
  search.addEventListener('input', () => {
    filter();
    const found = cells();
    live(wanted() ? found.length + ' clusters found' : 'live');
    if (found.length && !found.some((cell) => cell.tabIndex === 0)) {
      document.querySelectorAll('.cell[tabindex="0"]').forEach((other) => { other.tabIndex = -1; });
      found[0].tabIndex = 0;
    }
  });
  // The key that leads here is no search.
  search.addEventListener('beforeinput', (event) => {
    if (event.data === '/' && search.value === '') event.preventDefault();
  });
  search.form.addEventListener('submit', (event) => {
    event.preventDefault();
    const first = cells()[0];
    if (first) focus(first);
  });

  // The cell below or above: the nearest one of the next row.
  const vertical = (all, from, step) => {
    const here = all[from].getBoundingClientRect();
    for (let i = from + step, row = null, best = null; ; i += step) {
      const there = all[i] && all[i].getBoundingClientRect();
      if (!there || (row !== null && there.top !== row)) return best;
      if (there.top === here.top) continue;
      row = there.top;
      if (!best || Math.abs(there.left - here.left) < Math.abs(best.getBoundingClientRect().left - here.left)) best = all[i];
    }
  };
  const move = (key, cell) => {
    const all = cells();
    const at = all.indexOf(cell);
    switch (key) {
      case 'ArrowRight': return all[at + 1];
      case 'ArrowLeft': return all[at - 1];
      case 'ArrowDown': return vertical(all, at, 1);
      case 'ArrowUp': return vertical(all, at, -1);
      case 'Home': return all[0];
      case 'End': return all[all.length - 1];
      default: return null;
    }
  };

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === search;
    if (event.key === 'Escape') {
      if (typing && search.value) { search.value = ''; search.dispatchEvent(new Event('input')); } else { close(); }
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
    } else if (event.target.classList && event.target.classList.contains('cell')) {
      const to = move(event.key, event.target);
      if (to) { event.preventDefault(); focus(to); }
    }
  });

  document.addEventListener('click', (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const cell = event.target.closest('.cell');
    if (cell) { event.preventDefault(); open(cell.parentElement.id, true); }
    if (event.target.closest('#close')) { event.preventDefault(); close(); }
  });
  window.addEventListener('popstate', () => {
    const id = location.pathname.slice(base.length);
    open(decodeURIComponent(id), false);
  });

  mark();
  connect();
})();
